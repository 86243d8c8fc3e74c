#include "core/result_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

namespace fast_ulysses {
namespace {

constexpr std::int64_t kHugePageBytes = std::int64_t{2} << 20;
// A block may serve a result that fills at least this much of it.
constexpr std::int64_t kLeastFillPercent = 80;

void* map_aligned(std::int64_t bytes) {
  // One huge page more than asked, and the ends cut off: the kernel backs only aligned ranges with huge pages.
  const auto whole = static_cast<std::size_t>(bytes + kHugePageBytes);
  void* const mapped = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  const auto start = reinterpret_cast<std::uintptr_t>(mapped);
  const std::uintptr_t aligned = (start + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  const std::size_t before = aligned - start;
  const std::size_t after = static_cast<std::size_t>(kHugePageBytes) - before;
  if (before > 0) munmap(mapped, before);
  if (after > 0) munmap(reinterpret_cast<void*>(aligned + static_cast<std::uintptr_t>(bytes)), after);
  void* const address = reinterpret_cast<void*>(aligned);
  madvise(address, static_cast<std::size_t>(bytes), MADV_HUGEPAGE);  // a wish: small pages work too
  return address;
}

}  // namespace

ResultPool& ResultPool::instance() {
  static ResultPool* const pool = new ResultPool;
  return *pool;
}

std::shared_ptr<void> ResultPool::take(std::int64_t bytes) {
  const std::int64_t rounded = std::max(kHugePageBytes, (bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes);
  Block block{nullptr, rounded};
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto best = cached_.end();
    for (auto it = cached_.begin(); it != cached_.end(); ++it) {
      const bool fits = it->bytes >= rounded && rounded * 100 >= it->bytes * kLeastFillPercent;
      if (fits && (best == cached_.end() || it->bytes <= best->bytes)) best = it;
    }
    if (best != cached_.end()) {
      block = *best;
      cached_.erase(best);
      cached_bytes_ -= block.bytes;
    }
    live_bytes_ += block.bytes;
    peak_live_bytes_ = std::max(peak_live_bytes_, live_bytes_);
    drop_until(peak_live_bytes_ - live_bytes_);  // live and cached together stay at what was once needed at a time
  }
  if (block.address == nullptr) {
    try {
      block.address = map_aligned(rounded);
    } catch (...) {
      const std::lock_guard<std::mutex> lock(mutex_);
      live_bytes_ -= rounded;
      throw;
    }
  }
  return std::shared_ptr<void>(block.address, [this, block](void*) { give_back(block); });
}

void ResultPool::give_back(Block block) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  live_bytes_ -= block.bytes;
  try {
    cached_.push_back(block);
    cached_bytes_ += block.bytes;
  } catch (...) {
    munmap(block.address, static_cast<std::size_t>(block.bytes));
  }
}

void ResultPool::drop_until(std::int64_t most_bytes) noexcept {
  while (!cached_.empty() && cached_bytes_ > most_bytes) {
    const Block oldest = cached_.front();
    cached_.erase(cached_.begin());
    cached_bytes_ -= oldest.bytes;
    munmap(oldest.address, static_cast<std::size_t>(oldest.bytes));
  }
}

void ResultPool::trim() noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  drop_until(0);
  peak_live_bytes_ = live_bytes_;
}

std::int64_t ResultPool::cached_bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return cached_bytes_;
}

}  // namespace fast_ulysses
