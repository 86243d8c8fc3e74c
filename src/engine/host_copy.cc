#include "engine/host_copy.h"

#include <cstring>

namespace fast_ulysses {
namespace {

// A constant row size lets the compiler turn memcpy into one move: rows of one element are what a transposed view has.
template <std::size_t kRowBytes>
void copy_plane(const StridedCopy& copy, const char* src, char* dst) noexcept {
  for (std::int64_t row = 0; row < copy.rows; ++row) {
    std::memcpy(dst, src, kRowBytes);
    src += copy.src_pitch_bytes;
    dst += copy.dst_pitch_bytes;
  }
}

void copy_plane(const StridedCopy& copy, const char* src, char* dst) noexcept {
  switch (copy.row_bytes) {
    case 1:
      return copy_plane<1>(copy, src, dst);
    case 2:
      return copy_plane<2>(copy, src, dst);
    case 4:
      return copy_plane<4>(copy, src, dst);
    case 8:
      return copy_plane<8>(copy, src, dst);
    default:
      break;
  }
  for (std::int64_t row = 0; row < copy.rows; ++row) {
    std::memcpy(dst, src, static_cast<std::size_t>(copy.row_bytes));
    src += copy.src_pitch_bytes;
    dst += copy.dst_pitch_bytes;
  }
}

}  // namespace

void copy_rows(const CopyList& copies, const char* src, char* dst) noexcept {
  for (const StridedCopy& copy : copies) {
    for (std::int64_t plane = 0; plane < copy.planes; ++plane) {
      copy_plane(copy, src + copy.src_offset_bytes + plane * copy.src_plane_bytes,
                 dst + copy.dst_offset_bytes + plane * copy.dst_plane_bytes);
    }
  }
}

}  // namespace fast_ulysses
