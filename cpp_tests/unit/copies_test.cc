// How few copies a block takes. That they move the right bytes is shown by plan_model_test.cc.
#include <gtest/gtest.h>

#include "fast_ulysses/plan.h"
#include "support/coded.h"

namespace fast_ulysses::tests {
namespace {

CopyList copies_of(const TensorCase& tensor, int from, int to) {
  const int ranks = static_cast<int>(tensor.scatter_splits.size());
  const Spec spec = resolve(request_of(tensor, from), from, ranks);
  Sizes src = make_strided(tensor.in, fast_ulysses::input_sizes(spec, from)).strides;
  for (std::int64_t& stride : src) stride *= tensor.elem_bytes;
  return block_copies(spec, from, to, src,
                      contiguous_strides_bytes(fast_ulysses::output_sizes(spec, to), tensor.elem_bytes));
}

void expect_copy(const StridedCopy& got, const StridedCopy& want) {
  EXPECT_EQ(got.src_offset_bytes, want.src_offset_bytes);
  EXPECT_EQ(got.dst_offset_bytes, want.dst_offset_bytes);
  EXPECT_EQ(got.row_bytes, want.row_bytes);
  EXPECT_EQ(got.rows, want.rows);
  EXPECT_EQ(got.src_pitch_bytes, want.src_pitch_bytes);
  EXPECT_EQ(got.dst_pitch_bytes, want.dst_pitch_bytes);
  EXPECT_EQ(got.planes, want.planes);
}

TEST(Copies, ScatterHeadsIsOnePitchedCopy) {  // [1, 4, 6, 8] of 8 tokens, 2 heads each: rows of two heads
  const CopyList copies = copies_of(balanced_case({1, 8, 6, 8}, 2, 1, 2), 1, 0);
  ASSERT_EQ(copies.size(), 1u);
  expect_copy(copies[0], {0, 4 * 3 * 8 * 2, 3 * 8 * 2, 4, 6 * 8 * 2, 3 * 8 * 2, 1, 0, 0});
}

TEST(Copies, GatherHeadsIsOnePitchedCopy) {
  const CopyList copies = copies_of(balanced_case({1, 8, 6, 8}, 1, 2, 2), 1, 1);
  ASSERT_EQ(copies.size(), 1u);
  expect_copy(copies[0], {4 * 3 * 8 * 2, 3 * 8 * 2, 3 * 8 * 2, 4, 3 * 8 * 2, 6 * 8 * 2, 1, 0, 0});
}

TEST(Copies, ABatchIsOneMoreDimOfTheSameCopy) {
  const CopyList copies = copies_of(balanced_case({5, 8, 6, 8}, 2, 1, 2), 0, 1);
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_EQ(copies[0].planes, 5);
}

TEST(Copies, ContiguousBlocksAreOneRow) {  // scatter the first dim, gather the second, which holds all that is left
  const CopyList copies = copies_of(balanced_case({4, 2, 8}, 0, 1, 1), 0, 0);
  ASSERT_EQ(copies.size(), 1u);
  expect_copy(copies[0], {0, 0, 4 * 2 * 8 * 2, 1, 0, 0, 1, 0, 0});
}

TEST(Copies, AFusedSliceCostsNothingMore) {
  TensorCase tensor = balanced_case({1, 8, 6, 8}, 2, 1, 2);
  tensor.in = Layout::kFused;
  const CopyList copies = copies_of(tensor, 0, 1);
  ASSERT_EQ(copies.size(), 1u);
  expect_copy(copies[0], {3 * 8 * 2, 0, 3 * 8 * 2, 4, 3 * 6 * 8 * 2, 3 * 8 * 2, 1, 0, 0});
}

TEST(Copies, HeadsThatAreNotAdjacentKeepRows) {  // BHSD seen as BSHD
  TensorCase tensor = balanced_case({1, 8, 6, 8}, 2, 1, 2);
  tensor.in = Layout::kSwapped;
  const CopyList copies = copies_of(tensor, 0, 1);
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_EQ(copies[0].row_bytes, 8 * 2);
  EXPECT_EQ(copies[0].rows * copies[0].planes, 3 * 4);
}

TEST(Copies, ARepeatedRowHasPitchZero) {
  TensorCase tensor = balanced_case({1, 8, 6, 8}, 2, 1, 2);
  tensor.in = Layout::kExpanded;
  const CopyList copies = copies_of(tensor, 0, 1);
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_EQ(copies[0].src_pitch_bytes, 0);
  EXPECT_EQ(copies[0].row_bytes, 8 * 2);
}

TEST(Copies, NoBytesNoCopies) {
  const TensorCase tensor = balanced_case({1, 3, 8, 8}, 2, 1, 4);  // the last rank has no tokens
  EXPECT_TRUE(copies_of(tensor, 3, 0).empty());
  EXPECT_FALSE(copies_of(tensor, 0, 3).empty());
}

}  // namespace
}  // namespace fast_ulysses::tests
