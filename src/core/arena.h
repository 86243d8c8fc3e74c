// A group's windows: regions of symmetric memory that peers write and this rank reads, and the books that say when one
// may be written again.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "fast_ulysses/heap.h"

namespace fast_ulysses {

// Handshakes are counted in program order, which is the same on all ranks, so all decide alike. A region whose last use
// was enqueued after `count` handshakes may be written again once one more has been enqueued: this rank's signal of
// that handshake is ordered after the use, and a peer writes only behind its own wait for that signal.
class Book {
 public:
  void used(std::uint64_t count) noexcept {
    last_use_ = count;
    used_ = true;
  }
  bool free_at(std::uint64_t count) const noexcept { return !used_ || count > last_use_; }

 private:
  bool used_ = false;
  std::uint64_t last_use_ = 0;
};

// Two windows for arriving rows, taken in turn, of one capacity.
class Arena {
 public:
  static constexpr int kTurns = 2;

  std::int64_t capacity_bytes() const noexcept { return capacity_bytes_; }
  // Collective: replaces the windows (the old ones are freed first) by windows of this capacity; 0: none. Nobody may be
  // using the old ones. When it throws there are none.
  void resize(std::int64_t capacity_bytes, Transport& transport, Bootstrap& bootstrap);

  // The next window; its number is the same on all ranks.
  int take_turn() noexcept { return turn_ = (turn_ + 1) % kTurns; }
  Book& book(int turn) noexcept { return books_[turn]; }
  char* window(int rank, int turn) const noexcept;
  void leak() noexcept { static_cast<void>(heap_.release()); }

 private:
  std::unique_ptr<SymmetricHeap> heap_;
  std::int64_t capacity_bytes_ = 0;
  int turn_ = 0;
  Book books_[kTurns];
};

}  // namespace fast_ulysses
