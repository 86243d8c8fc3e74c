#include "core/arena.h"

#include <algorithm>

namespace fast_ulysses {
namespace {

constexpr std::int64_t kGranularityBytes = 64 * 1024;  // windows start on pages, large ones as small ones
// More than any machine has, and small enough that both windows together do not overflow: the transport refuses it.
constexpr std::int64_t kMostBytes = std::int64_t{1} << 60;

}  // namespace

void Arena::resize(std::int64_t capacity_bytes, Transport& transport, Bootstrap& bootstrap) {
  capacity_bytes_ = 0;
  heap_.reset();
  for (Book& book : books_) book = Book();  // books are kept by region: these regions are gone
  bootstrap.barrier();                      // the old memory is free on every rank before new memory is asked for
  if (capacity_bytes == 0) return;
  const std::int64_t asked = std::min(capacity_bytes, kMostBytes);
  const std::int64_t rounded = (asked + kGranularityBytes - 1) / kGranularityBytes * kGranularityBytes;
  heap_ = transport.make_heap(rounded * kTurns, bootstrap);
  capacity_bytes_ = rounded;
}

char* Arena::window(int rank, int turn) const noexcept {
  if (!heap_) return nullptr;  // no windows yet: calls of no bytes need none
  return static_cast<char*>(heap_->peer(rank)) + turn * capacity_bytes_;
}

}  // namespace fast_ulysses
