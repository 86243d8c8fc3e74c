// Streaming and cached copies move the same bytes and touch no others, at every alignment.
#include "engine/host_copy.h"

#include <gtest/gtest.h>

#include <vector>

namespace fast_ulysses {
namespace {

std::vector<char> numbered(std::size_t bytes) {
  std::vector<char> data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) data[i] = static_cast<char>(i * 131 + i / 251);
  return data;
}

void expect_equal_copies(std::int64_t row_bytes, std::int64_t src_start, std::int64_t dst_start) {
  const std::int64_t rows = 5, planes = 3, src_pitch = row_bytes + 7, dst_pitch = row_bytes + 3;
  const CopyList copies{{src_start, dst_start, row_bytes, rows, src_pitch, dst_pitch, planes, rows * src_pitch + 11,
                         rows * dst_pitch + 5}};
  const std::vector<char> src = numbered(static_cast<std::size_t>(src_start + planes * (rows * src_pitch + 11)));
  const auto dst_bytes = static_cast<std::size_t>(dst_start + planes * (rows * dst_pitch + 5));
  std::vector<char> expected(dst_bytes, 'x'), cached(dst_bytes, 'x'), streamed(dst_bytes, 'x');
  for (std::int64_t plane = 0; plane < planes; ++plane) {
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t i = 0; i < row_bytes; ++i) {
        expected[static_cast<std::size_t>(dst_start + plane * copies[0].dst_plane_bytes + row * dst_pitch + i)] =
            src[static_cast<std::size_t>(src_start + plane * copies[0].src_plane_bytes + row * src_pitch + i)];
      }
    }
  }
  copy_rows(copies, src.data(), cached.data(), Stores::kCached);
  copy_rows(copies, src.data(), streamed.data(), Stores::kStreaming);
  EXPECT_EQ(cached, expected) << "row of " << row_bytes << ", starts " << src_start << ", " << dst_start;
  EXPECT_EQ(streamed, expected) << "row of " << row_bytes << ", starts " << src_start << ", " << dst_start;
}

TEST(HostCopy, StreamedRowsEqualCachedRows) {
  for (const std::int64_t row_bytes : {1, 2, 4, 8, 63, 127, 128, 129, 191, 192, 256, 1000, 5120}) {
    for (std::int64_t start = 0; start < 66; start += 13) expect_equal_copies(row_bytes, start, 66 - start);
  }
}

TEST(HostCopy, LargeExchangesStreamAndSmallOnesDoNot) {
  EXPECT_EQ(stores_for(1 << 10, 2), Stores::kCached);
  EXPECT_EQ(stores_for(std::int64_t{1} << 40, 2), Stores::kStreaming) << "this machine has no AVX?";
}

}  // namespace
}  // namespace fast_ulysses
