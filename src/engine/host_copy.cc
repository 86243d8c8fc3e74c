#include "engine/host_copy.h"

#include <unistd.h>

#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace fast_ulysses {
namespace {

// A constant row size lets the compiler turn memcpy into one move: rows of one element are what a transposed view has.
template <std::size_t kRowBytes>
void copy_narrow(const StridedCopy& copy, const char* src, char* dst) noexcept {
  for (std::int64_t row = 0; row < copy.rows; ++row) {
    std::memcpy(dst, src, kRowBytes);
    src += copy.src_pitch_bytes;
    dst += copy.dst_pitch_bytes;
  }
}

void copy_cached(const StridedCopy& copy, const char* src, char* dst) noexcept {
  switch (copy.row_bytes) {
    case 1:
      return copy_narrow<1>(copy, src, dst);
    case 2:
      return copy_narrow<2>(copy, src, dst);
    case 4:
      return copy_narrow<4>(copy, src, dst);
    case 8:
      return copy_narrow<8>(copy, src, dst);
    default:
      break;
  }
  for (std::int64_t row = 0; row < copy.rows; ++row) {
    std::memcpy(dst, src, static_cast<std::size_t>(copy.row_bytes));
    src += copy.src_pitch_bytes;
    dst += copy.dst_pitch_bytes;
  }
}

#if defined(__x86_64__)

// Rows shorter than this would leave write-combining buffers half full.
constexpr std::int64_t kLeastStreamedRowBytes = 128;
constexpr std::size_t kLine = 64;

// One row. The head up to a line boundary and the tail are plain stores; whole lines are streamed.
__attribute__((target("avx"))) void stream_row(const char* src, char* dst, std::size_t bytes) noexcept {
  const std::size_t head = (kLine - reinterpret_cast<std::uintptr_t>(dst) % kLine) % kLine;
  std::memcpy(dst, src, head);
  src += head;
  dst += head;
  bytes -= head;
  for (; bytes >= kLine; bytes -= kLine, src += kLine, dst += kLine) {
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src));
    const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src + 32));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(dst), low);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(dst + 32), high);
  }
  std::memcpy(dst, src, bytes);
}

__attribute__((target("avx"))) void copy_streaming(const StridedCopy& copy, const char* src, char* dst) noexcept {
  for (std::int64_t row = 0; row < copy.rows; ++row) {
    stream_row(src, dst, static_cast<std::size_t>(copy.row_bytes));
    src += copy.src_pitch_bytes;
    dst += copy.dst_pitch_bytes;
  }
}

bool can_stream() noexcept {
  static const bool has_avx = __builtin_cpu_supports("avx");
  return has_avx;
}

void fence_streaming() noexcept { _mm_sfence(); }

#else

constexpr std::int64_t kLeastStreamedRowBytes = 0;
void copy_streaming(const StridedCopy& copy, const char* src, char* dst) noexcept { copy_cached(copy, src, dst); }
bool can_stream() noexcept { return false; }
void fence_streaming() noexcept {}

#endif

std::int64_t last_level_cache_bytes() noexcept {
  static const std::int64_t bytes = [] {
    const long l3 = sysconf(_SC_LEVEL3_CACHE_SIZE);
    return static_cast<std::int64_t>(l3 > 0 ? l3 : 8L << 20);
  }();
  return bytes;
}

}  // namespace

Stores stores_for(std::int64_t bytes, int ranks) noexcept {
  // Every rank reads and writes `bytes`, and all ranks share the cache.
  return can_stream() && 2 * bytes * ranks > last_level_cache_bytes() ? Stores::kStreaming : Stores::kCached;
}

void copy_rows(const CopyList& copies, const char* src, char* dst, Stores stores) noexcept {
  bool streamed = false;
  for (const StridedCopy& copy : copies) {
    const bool stream = stores == Stores::kStreaming && can_stream() && copy.row_bytes >= kLeastStreamedRowBytes;
    streamed |= stream;
    for (std::int64_t plane = 0; plane < copy.planes; ++plane) {
      const char* const from = src + copy.src_offset_bytes + plane * copy.src_plane_bytes;
      char* const to = dst + copy.dst_offset_bytes + plane * copy.dst_plane_bytes;
      if (stream) {
        copy_streaming(copy, from, to);
      } else {
        copy_cached(copy, from, to);
      }
    }
  }
  if (streamed) fence_streaming();
}

}  // namespace fast_ulysses
