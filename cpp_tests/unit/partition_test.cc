#include "fast_ulysses/partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "fast_ulysses/errors.h"

namespace fast_ulysses {
namespace {

using Parts = std::vector<std::int64_t>;

TEST(BalancedSplit, KnownValues) {
  EXPECT_EQ(balanced_split(30, 4), (Parts{8, 8, 7, 7}));
  EXPECT_EQ(balanced_split(12, 4), (Parts{3, 3, 3, 3}));
  EXPECT_EQ(balanced_split(14310, 4), (Parts{3578, 3578, 3577, 3577}));
  EXPECT_EQ(balanced_split(5, 8), (Parts{1, 1, 1, 1, 1, 0, 0, 0}));
  EXPECT_EQ(balanced_split(0, 3), (Parts{0, 0, 0}));
  EXPECT_EQ(balanced_split(7, 1), (Parts{7}));
}

TEST(BalancedSplit, AddsUpAndDiffersByOneAtMost) {
  for (std::int64_t total = 0; total <= 70; ++total) {
    for (int parts = 1; parts <= 17; ++parts) {
      const Parts split = balanced_split(total, parts);
      ASSERT_EQ(split.size(), static_cast<std::size_t>(parts));
      EXPECT_EQ(std::accumulate(split.begin(), split.end(), std::int64_t{0}), total);
      EXPECT_TRUE(std::is_sorted(split.rbegin(), split.rend())) << "larger ones first";
      EXPECT_LE(split.front() - split.back(), 1);
    }
  }
  EXPECT_EQ(balanced_split(std::int64_t{1} << 62, 3).front(), (std::int64_t{1} << 62) / 3 + 1);
}

TEST(BalancedSplit, SaysWhichNumberIsWrong) {
  try {
    balanced_split(-3, 2);
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(), "balanced_split: total is -3; it must not be negative");
  }
  try {
    balanced_split(3, 0);
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(), "balanced_split: parts is 0; it must be at least 1");
  }
}

TEST(PartStarts, AreRunningSums) {
  EXPECT_EQ(part_starts({8, 8, 7, 7}), (Parts{0, 8, 16, 23}));
  EXPECT_EQ(part_starts({0, 5, 0}), (Parts{0, 0, 5}));
  EXPECT_TRUE(part_starts({}).empty());
}

}  // namespace
}  // namespace fast_ulysses
