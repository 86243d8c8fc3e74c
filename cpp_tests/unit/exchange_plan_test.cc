// Plans of several tensors, and what plans say of themselves.
#include <gtest/gtest.h>

#include "fast_ulysses/errors.h"
#include "fast_ulysses/plan.h"
#include "support/coded.h"

namespace fast_ulysses::tests {
namespace {

std::vector<TensorCase> qkv(int ranks) {
  return {balanced_case({1, 2 * ranks + 1, 3 * ranks, 7}, 2, 1, ranks, 2),
          balanced_case({1, 2 * ranks + 1, ranks, 5}, 2, 1, ranks, 4),
          balanced_case({2, ranks - 1, ranks + 1, 3}, 2, 1, ranks, 1)};
}

std::shared_ptr<const ExchangePlan> plan_of(const std::vector<TensorCase>& tensors, int rank, int ranks) {
  std::vector<TensorRequest> requests;
  for (const TensorCase& tensor : tensors) requests.push_back(request_of(tensor, rank));
  return ExchangePlan::make("a2a_qkv", requests, rank, ranks);
}

TEST(ExchangePlan, TensorsShareAWindowWithoutOverlap) {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      const auto plan = plan_of(qkv(ranks), rank, ranks);
      const auto first = plan_of(qkv(ranks), 0, ranks);
      ASSERT_EQ(plan->parts().size(), 3u);
      for (std::size_t i = 0; i < 3; ++i) {
        const ExchangePlan::Part& part = plan->parts()[i];
        const std::int64_t end = i + 1 < 3 ? plan->parts()[i + 1].window_offset_bytes : plan->window_bytes();
        EXPECT_EQ(part.window_offset_bytes, first->parts()[i].window_offset_bytes) << "must be the same on all ranks";
        EXPECT_EQ(part.window_offset_bytes % 256, 0);
        EXPECT_LE(part.window_offset_bytes + part.largest_output_bytes, end);
        for (const CopyList& copies : part.push) {
          for (const StridedCopy& copy : copies) {
            const std::int64_t last = copy.dst_offset_bytes + (copy.planes - 1) * copy.dst_plane_bytes +
                                      (copy.rows - 1) * copy.dst_pitch_bytes + copy.row_bytes;
            EXPECT_LE(part.window_offset_bytes + last, end);
            EXPECT_GE(copy.dst_offset_bytes, 0);
          }
        }
      }
      EXPECT_EQ(plan->text(), first->text());
      EXPECT_EQ(plan->window_bytes(), first->window_bytes());
    }
  }
}

TEST(ExchangePlan, TextNamesWhatRanksMustAgreeOn) {
  TensorCase tensor = balanced_case({1, 9, 4, 8}, 2, 1, 2);
  EXPECT_EQ(plan_of({tensor}, 0, 2)->text(),
            "a2a_qkv bits16 [1, 9, 4, 8] scatter dim 2 by [2, 2], gather dim 1 from [5, 4]");
  tensor.in = Layout::kReversed;  // how it lies in memory is this rank's own affair
  tensor.out = Layout::kPadded;
  EXPECT_EQ(plan_of({tensor}, 1, 2)->text(), plan_of({balanced_case({1, 9, 4, 8}, 2, 1, 2)}, 0, 2)->text());
}

TEST(ExchangePlan, KnowsAContiguousResult) {
  TensorCase tensor = balanced_case({1, 9, 4, 8}, 2, 1, 2);
  EXPECT_TRUE(plan_of({tensor}, 0, 2)->parts()[0].contiguous_result);
  TensorRequest same = request_of(tensor, 0);
  same.out_strides = make_strided(Layout::kContiguous, output_sizes(tensor, 0)).strides;
  (*same.out_strides)[0] = 999;  // a stride nobody takes
  EXPECT_TRUE(ExchangePlan::make("a2a", {same}, 0, 2)->parts()[0].contiguous_result);
  tensor.out = Layout::kPadded;
  EXPECT_FALSE(plan_of({tensor}, 0, 2)->parts()[0].contiguous_result);
}

TEST(ExchangePlan, CountsBytes) {
  const auto plan = plan_of({balanced_case({1, 8, 4, 8}, 2, 1, 4)}, 1, 4);
  EXPECT_EQ(plan->own_bytes(), 2 * 1 * 8 * 2);
  EXPECT_EQ(plan->wire_bytes(), 3 * plan->own_bytes());
  EXPECT_EQ(plan_of({balanced_case({1, 8, 4, 8}, 2, 1, 1)}, 0, 1)->wire_bytes(), 0);
}

TEST(ExchangePlan, RefusalsNameTheOpAndTheTensor) {
  EXPECT_THROW(ExchangePlan::make("a2a", {}, 0, 2), InvalidArgument);
  std::vector<TensorRequest> requests;
  for (const TensorCase& tensor : qkv(2)) requests.push_back(request_of(tensor, 0));
  requests[1].elem_bytes = 3;
  try {
    ExchangePlan::make("a2a_qkv", requests, 0, 2);
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(std::string(error.what()).find("a2a_qkv, tensor 1: elements of 3 bytes"), 0u) << error.what();
  }
}

}  // namespace
}  // namespace fast_ulysses::tests
