#include "core/result_pool.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace fast_ulysses {
namespace {

constexpr std::int64_t kMiB = 1 << 20;

TEST(ResultPool, GivesAFreedBlockOutAgain) {
  ResultPool pool;
  std::shared_ptr<void> first = pool.take(5 * kMiB);
  void* const address = first.get();
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(address) % (2 * kMiB), 0u);
  first.reset();
  EXPECT_EQ(pool.take(5 * kMiB).get(), address);
  EXPECT_NE(pool.take(50 * kMiB).get(), address) << "too small for this one";
}

TEST(ResultPool, LiveResultsNeverShareMemory) {
  ResultPool pool;
  std::vector<std::shared_ptr<void>> live;
  for (int i = 0; i < 20; ++i) {
    live.push_back(pool.take(3 * kMiB));
    std::memset(live.back().get(), i, 3 * kMiB);
    if (i % 3 == 2) live.erase(live.begin());
  }
  for (std::size_t i = 1; i < live.size(); ++i) {
    const auto* const bytes = static_cast<const unsigned char*>(live[i].get());
    EXPECT_EQ(bytes[0], bytes[3 * kMiB - 1]);
    EXPECT_NE(bytes[0], *static_cast<const unsigned char*>(live[i - 1].get()));
  }
}

TEST(ResultPool, KeepsNoMoreThanWasOnceInUse) {
  ResultPool pool;
  for (int mib = 2; mib <= 60; mib += 2) pool.take(mib * kMiB).reset();
  EXPECT_LE(pool.cached_bytes(), 60 * kMiB);
  EXPECT_GT(pool.cached_bytes(), 0);
  pool.trim();
  EXPECT_EQ(pool.cached_bytes(), 0);
}

}  // namespace
}  // namespace fast_ulysses
