// The control pages of a group: one small shared page a rank, through which ranks of one host see one another's state.
//
// Who writes what: a rank writes its own page, except flags[from] and the doorbell, which peers write, and the error
// word, which any rank may set once (compare and swap from 0; the first cause stays).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/shared_text.h"
#include "fast_ulysses/errors.h"
#include "transport/segment.h"

namespace fast_ulysses {

inline constexpr int kMaxRanks = 64;
inline constexpr int kCallRecords = 32;  // calls of different kinds that can still be named
inline constexpr int kMeetingBytes = 1000;

enum class RankState : std::uint32_t { kStarting = 0, kAlive = 1, kDestroyed = 2 };

struct alignas(64) FlagPair {
  std::atomic<std::uint64_t> parity[2];
};

struct CallRecord {
  std::atomic<std::uint32_t> signature;
  SharedText<64> text;
};

// One host-side meeting: what this rank brings to it. Two, by parity: a rank comes to meeting m + 1 only when it has
// read all of m, so the slot of m + 2 is free once all have come to m + 1.
struct alignas(64) MeetingSlot {
  std::atomic<std::uint32_t> number;
  std::atomic<std::uint32_t> bytes;
  std::atomic<std::uint64_t> words[kMeetingBytes / 8];
};

struct ControlPage {
  std::atomic<std::uint32_t> state;  // RankState
  std::atomic<std::int32_t> pid;
  std::atomic<std::uint64_t> op;                      // calls begun
  std::atomic<std::uint32_t> current;                 // signature of the call this rank is in, 0 outside
  alignas(64) std::atomic<std::uint64_t> error_word;  // code | rank << 8; 0: none
  SharedText<256> error_text;                         // of the error that this rank was the first to find
  alignas(64) std::atomic<std::uint32_t> sleeping;    // 1 while this rank may sleep on its doorbell
  std::atomic<std::uint32_t> doorbell;                // a futex
  FlagPair flags[kMaxRanks];                          // by the rank that writes them
  MeetingSlot meetings[2];
  CallRecord records[kCallRecords];
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "words are shared between processes");

// One rank's view of all the pages. Its methods are local and, but for record(), safe from any thread.
class ControlBoard {
 public:
  // Collective (the segments are made).
  ControlBoard(const std::string& group, Bootstrap& bootstrap);

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  ControlPage& page(int rank) const noexcept { return *static_cast<ControlPage*>(segments_->at(rank)); }
  ControlPage& mine() const noexcept { return page(rank_); }
  bool alive(int rank) const noexcept { return segments_->alive(rank); }
  // "group 'sp', rank 1 of 4": how every message begins.
  const std::string& who() const noexcept { return who_; }

  // Wakes `peer` if it sleeps. After a store of the word it waits for, with sequentially consistent order.
  void ring(int peer) const noexcept;

  // Makes a call's text findable by its signature. The owner's thread alone.
  void record(std::uint32_t signature, const std::string& text) noexcept;
  // The text that `rank` recorded under `signature`.
  std::string recorded(int rank, std::uint32_t signature) const;
  // "rank 2 (pid 71) is at op 117, in a2a bfloat16 [...]": for messages about an absent rank.
  std::string describe(int rank) const;

  // Sets every rank's error word before anything else, then throws. The text is published first.
  [[noreturn]] void fail(ErrorCode code, const std::string& text);
  // The same without throwing: for abort(), and for exceptions that are not ours.
  void publish_error(ErrorCode code, const std::string& text) noexcept;
  // Throws what this rank's error word says, if it is set. `while_in` names the call that was cut short.
  void throw_if_error(const std::string& while_in) const;
  bool in_error() const noexcept { return mine().error_word.load() != 0; }

  // Keeps the pages mapped beyond this object: a peer may still write to them.
  void leak() noexcept;

 private:
  int rank_, size_;
  std::string who_;
  std::unique_ptr<SegmentSet> segments_;
  int next_record_ = 0;
  std::mutex publish_mutex_;
  bool published_ = false;
};

}  // namespace fast_ulysses
