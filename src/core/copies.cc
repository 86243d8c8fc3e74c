// From a block of a tensor to the shortest list of pitched copies that moves it.
#include <utility>

#include "fast_ulysses/partition.h"
#include "fast_ulysses/plan.h"

namespace fast_ulysses {
namespace {

using Sizes = std::vector<std::int64_t>;

std::size_t at(int index) { return static_cast<std::size_t>(index); }

// One loop of a copy: `count` steps of these strides.
struct Loop {
  std::int64_t count, src_stride, dst_stride;
};

// Innermost loop first; loops of one step are dropped and loops that continue one another on both sides are joined, so
// a contiguous block becomes one loop whatever its number of dims.
std::vector<Loop> joined_loops(const Sizes& sizes, const Sizes& src_strides, const Sizes& dst_strides) {
  std::vector<Loop> loops;
  for (std::size_t i = sizes.size(); i-- > 0;) {
    const Loop loop{sizes[i], src_strides[i], dst_strides[i]};
    if (loop.count == 1) continue;
    if (!loops.empty()) {
      Loop& inner = loops.back();
      if (loop.src_stride == inner.count * inner.src_stride && loop.dst_stride == inner.count * inner.dst_stride) {
        inner.count *= loop.count;
        continue;
      }
    }
    loops.push_back(loop);
  }
  return loops;
}

std::int64_t dot(const Sizes& starts, const Sizes& strides) {
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < starts.size(); ++i) offset += starts[i] * strides[i];
  return offset;
}

CopyList lower(const Sizes& sizes, int elem_bytes, const Sizes& src_starts, const Sizes& src_strides,
               const Sizes& dst_starts, const Sizes& dst_strides) {
  for (const std::int64_t size : sizes) {
    if (size == 0) return {};
  }
  std::vector<Loop> loops = joined_loops(sizes, src_strides, dst_strides);
  std::int64_t row_bytes = elem_bytes;
  if (!loops.empty() && loops[0].src_stride == elem_bytes && loops[0].dst_stride == elem_bytes) {
    row_bytes = loops[0].count * elem_bytes;
    loops.erase(loops.begin());
  }
  while (loops.size() < 2) loops.push_back({1, 0, 0});
  CopyList copies{{dot(src_starts, src_strides), dot(dst_starts, dst_strides), row_bytes,  //
                   loops[0].count, loops[0].src_stride, loops[0].dst_stride,               //
                   loops[1].count, loops[1].src_stride, loops[1].dst_stride}};
  for (std::size_t i = 2; i < loops.size(); ++i) {  // outer loops: the copies so far, once a step
    CopyList repeated;
    repeated.reserve(copies.size() * static_cast<std::size_t>(loops[i].count));
    for (std::int64_t step = 0; step < loops[i].count; ++step) {
      for (StridedCopy copy : copies) {
        copy.src_offset_bytes += step * loops[i].src_stride;
        copy.dst_offset_bytes += step * loops[i].dst_stride;
        repeated.push_back(copy);
      }
    }
    copies = std::move(repeated);
  }
  return copies;
}

Sizes block_sizes(const Spec& spec, int from, int to) {
  Sizes sizes = spec.global;
  sizes[at(spec.gather_dim)] = spec.gather_splits[at(from)];
  sizes[at(spec.scatter_dim)] = spec.scatter_splits[at(to)];
  return sizes;
}

}  // namespace

CopyList block_copies(const Spec& spec, int from, int to, const Sizes& src_strides_bytes,
                      const Sizes& dst_strides_bytes) {
  Sizes src_starts(spec.global.size(), 0), dst_starts(spec.global.size(), 0);
  src_starts[at(spec.scatter_dim)] = spec.scatter_starts[at(to)];
  dst_starts[at(spec.gather_dim)] = part_starts(spec.gather_splits)[at(from)];
  return lower(block_sizes(spec, from, to), spec.elem_bytes, src_starts, src_strides_bytes, dst_starts,
               dst_strides_bytes);
}

CopyList placed_copies(const Spec& spec, int from, int to, const Sizes& src_strides_bytes,
                       const Sizes& dst_strides_bytes) {
  Sizes starts(spec.global.size(), 0);
  starts[at(spec.gather_dim)] = part_starts(spec.gather_splits)[at(from)];
  return lower(block_sizes(spec, from, to), spec.elem_bytes, starts, src_strides_bytes, starts, dst_strides_bytes);
}

}  // namespace fast_ulysses
