// Memory for large results on the host, kept when a result is freed and given out again.
//
// Results belong to the caller, so every call makes a new one. The C library maps and unmaps blocks of that size each
// time, and the kernel clears every page anew: for a result of 168 MB that took four times as long as filling it (139
// ms against 33 ms, one core of an AMD EPYC, 4 KiB pages). Blocks here stay mapped, and ask for huge pages.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "fast_ulysses/visibility.h"

namespace fast_ulysses {

class FU_API ResultPool {
 public:
  static ResultPool& instance();  // of the process; never destroyed, since results may outlive everything

  // At least `bytes` bytes, aligned to a huge page, contents undefined. Released by the last owner, from any thread.
  // Throws std::bad_alloc.
  std::shared_ptr<void> take(std::int64_t bytes);
  // Gives what nobody holds back to the system.
  void trim() noexcept;
  std::int64_t cached_bytes() const;

 private:
  struct Block {
    void* address;
    std::int64_t bytes;
  };
  void give_back(Block block) noexcept;
  void drop_until(std::int64_t most_bytes) noexcept;

  mutable std::mutex mutex_;
  std::vector<Block> cached_;  // the least recently used first
  std::int64_t cached_bytes_ = 0, live_bytes_ = 0, peak_live_bytes_ = 0;
};

}  // namespace fast_ulysses
