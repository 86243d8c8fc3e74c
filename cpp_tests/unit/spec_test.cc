// Every refusal says which number is wrong and which would do.
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "fast_ulysses/errors.h"
#include "fast_ulysses/plan.h"

namespace fast_ulysses {
namespace {

using Sizes = std::vector<std::int64_t>;

TensorRequest request() {
  TensorRequest request;
  request.sizes = {2, 6, 12, 8};
  request.strides = {576, 96, 8, 1};
  request.elem_bytes = 2;
  request.dtype = "bfloat16";
  return request;
}

TEST(Resolve, FillsInEvenSplits) {
  const Spec spec = resolve(request(), 1, 3);
  EXPECT_EQ(spec.size, 3);
  EXPECT_EQ(spec.elem_bytes, 2);
  EXPECT_EQ(spec.dtype, "bfloat16");
  EXPECT_EQ(spec.scatter_dim, 2);
  EXPECT_EQ(spec.gather_dim, 1);
  EXPECT_EQ(spec.global, (Sizes{2, 18, 12, 8}));
  EXPECT_EQ(spec.scatter_splits, (Sizes{4, 4, 4}));
  EXPECT_EQ(spec.gather_splits, (Sizes{6, 6, 6}));
  EXPECT_EQ(input_sizes(spec, 1), (Sizes{2, 6, 12, 8}));
  EXPECT_EQ(output_sizes(spec, 1), (Sizes{2, 18, 4, 8}));
}

TEST(Resolve, TakesSplitsAndNegativeDims) {
  TensorRequest uneven = request();
  uneven.scatter_dim = -2;
  uneven.gather_dim = -3;
  uneven.scatter_splits = Sizes{0, 12};
  uneven.gather_splits = Sizes{7, 6};
  const Spec spec = resolve(uneven, 1, 2);
  EXPECT_EQ(spec.scatter_dim, 2);
  EXPECT_EQ(spec.gather_dim, 1);
  EXPECT_EQ(spec.global, (Sizes{2, 13, 12, 8}));
  EXPECT_EQ(output_sizes(spec, 0), (Sizes{2, 13, 0, 8}));
  EXPECT_EQ(input_sizes(spec, 0), (Sizes{2, 7, 12, 8}));
}

TEST(Resolve, StridesMayRepeat) {
  TensorRequest expanded = request();
  expanded.strides = {0, 0, 8, 1};
  EXPECT_NO_THROW(resolve(expanded, 0, 3));
}

struct Refusal {
  const char* name;
  std::function<void(TensorRequest&)> change;
  std::vector<std::string> said;
};

constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();

std::vector<Refusal> refusals() {
  return {
      {"two_dims",
       [](TensorRequest& r) {
         r.sizes = {4, 4};
       },
       {"2 dims [4, 4]", "3 to 5"}},
      {"six_dims", [](TensorRequest& r) { r.sizes = {1, 1, 1, 1, 1, 1}; }, {"6 dims", "3 to 5"}},
      {"element", [](TensorRequest& r) { r.elem_bytes = 16; }, {"16 bytes (bfloat16)", "1, 2, 4 and 8"}},
      {"stride_count",
       [](TensorRequest& r) {
         r.strides = {8, 1};
       },
       {"2 strides [8, 1]", "[2, 6, 12, 8]"}},
      {"negative_stride", [](TensorRequest& r) { r.strides[1] = -96; }, {"[576, -96, 8, 1]", "negative"}},
      {"out_stride_count",
       [](TensorRequest& r) {
         r.out_strides = Sizes{8, 1};
       },
       {"2 strides [8, 1]"}},
      {"negative_out_stride",
       [](TensorRequest& r) {
         r.out_strides = Sizes{1, 1, -8, 1};
       },
       {"-8", "negative"}},
      {"negative_size", [](TensorRequest& r) { r.sizes[0] = -2; }, {"[-2, 6, 12, 8]", "negative"}},
      {"huge_size", [](TensorRequest& r) { r.sizes[0] = kHuge; }, {"overflow"}},
      {"huge_stride", [](TensorRequest& r) { r.strides[0] = kHuge; }, {"overflow"}},
      {"huge_out_stride",
       [](TensorRequest& r) {
         r.out_strides = Sizes{kHuge, 32, 8, 1};
       },
       {"overflow"}},
      {"scatter_dim", [](TensorRequest& r) { r.scatter_dim = 4; }, {"scatter_dim is 4", "-4 to 3"}},
      {"gather_dim", [](TensorRequest& r) { r.gather_dim = -5; }, {"gather_dim is -5", "-4 to 3"}},
      {"last_dim", [](TensorRequest& r) { r.scatter_dim = -1; }, {"scatter_dim is -1", "last dim", "first 3 dims"}},
      {"same_dim", [](TensorRequest& r) { r.gather_dim = -2; }, {"both 2", "must differ"}},
      {"uneven",
       [](TensorRequest& r) { r.sizes[2] = 30; },
       {"scatter_dim 2 has size 30", "4 ranks", "[8, 8, 7, 7]", "2, 3, 5, 6, 10, 15, 30 ranks"}},
      {"prime", [](TensorRequest& r) { r.sizes[2] = 127; }, {"size 127", "1 ranks"}},
      {"scatter_count",
       [](TensorRequest& r) {
         r.scatter_splits = Sizes{6, 6};
       },
       {"scatter_splits [6, 6]", "4 ranks"}},
      {"scatter_sum",
       [](TensorRequest& r) {
         r.scatter_splits = Sizes{4, 4, 4, 4};
       },
       {"add up to 16", "size 12"}},
      {"scatter_negative",
       [](TensorRequest& r) {
         r.scatter_splits = Sizes{14, -2, 0, 0};
       },
       {"-2", "negative"}},
      {"scatter_overflow",
       [](TensorRequest& r) {
         r.scatter_splits = Sizes{kHuge, kHuge, 14, 0};
       },
       {"64 bits"}},
      {"gather_count", [](TensorRequest& r) { r.gather_splits = Sizes{6}; }, {"gather_splits [6]", "4 ranks"}},
      {"gather_own",
       [](TensorRequest& r) {
         r.gather_splits = Sizes{6, 5, 6, 6};
       },
       {"rank 1 holds 5", "size 6", "gather_dim 1"}},
      {"gather_negative",
       [](TensorRequest& r) {
         r.gather_splits = Sizes{-1, 6, 6, 6};
       },
       {"-1", "negative"}},
      {"gather_overflow",
       [](TensorRequest& r) {
         r.gather_splits = Sizes{kHuge, 6, 1, 1};
       },
       {"64 bits"}},
      {"gather_huge",
       [](TensorRequest& r) {
         r.gather_splits = Sizes{kHuge / 2, 6, 1, 1};
       },
       {"overflow"}},
  };
}

class Refused : public testing::TestWithParam<Refusal> {};

TEST_P(Refused, SaysWhyAndWhatWouldDo) {
  TensorRequest wrong = request();
  GetParam().change(wrong);
  try {
    resolve(wrong, 1, 4);
    FAIL() << "accepted";
  } catch (const InvalidArgument& error) {
    for (const std::string& text : GetParam().said) {
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << text << ": " << error.what();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Requests, Refused, testing::ValuesIn(refusals()),
                         [](const auto& instance) { return std::string(instance.param.name); });

TEST(Resolve, NamesARankThatDoesNotExist) {
  for (const auto& [rank, size] : {std::pair{4, 4}, std::pair{-1, 4}, std::pair{0, 0}}) {
    EXPECT_THROW(resolve(request(), rank, size), InvalidArgument) << rank << " of " << size;
  }
}

TEST(ContiguousStrides, CountEmptyDimsAsOne) {
  EXPECT_EQ(contiguous_strides_bytes({2, 3, 4}, 2), (Sizes{24, 8, 2}));
  EXPECT_EQ(contiguous_strides_bytes({2, 0, 4}, 8), (Sizes{32, 32, 8}));
}

}  // namespace
}  // namespace fast_ulysses
