// Checks of a request and the shapes that follow from it.
#include <algorithm>
#include <limits>
#include <numeric>

#include "core/strings.h"
#include "fast_ulysses/errors.h"
#include "fast_ulysses/partition.h"
#include "fast_ulysses/plan.h"

namespace fast_ulysses {
namespace {

using Sizes = std::vector<std::int64_t>;

std::size_t at(int index) { return static_cast<std::size_t>(index); }

std::string divisors_text(std::int64_t total) {
  std::string text;
  for (std::int64_t p = 2; p <= 64 && p <= total; ++p) {
    if (total % p == 0) text += (text.empty() ? "" : ", ") + std::to_string(p);
  }
  return text.empty() ? "1" : text;
}

int checked_dim(const char* name, int dim, int ndim) {
  const int positive = dim < 0 ? dim + ndim : dim;
  if (positive < 0 || positive >= ndim) {
    throw InvalidArgument(std::string(name) + " is " + std::to_string(dim) + "; a tensor of " + std::to_string(ndim) +
                          " dims has dims " + std::to_string(-ndim) + " to " + std::to_string(ndim - 1));
  }
  if (positive == ndim - 1) {
    throw InvalidArgument(std::string(name) + " is " + std::to_string(dim) +
                          ", the last dim; rows of the last dim are never divided: pick one of the first " +
                          std::to_string(ndim - 1) + " dims");
  }
  return positive;
}

// Leaves room for sums over tensors, windows and ranks.
constexpr std::int64_t kMostBytes = std::numeric_limits<std::int64_t>::max() / 4096;

void check_bytes(const Sizes& sizes, int elem_bytes) {
  std::int64_t bytes = elem_bytes;
  for (const std::int64_t size : sizes) {
    if (size > 0 && bytes > kMostBytes / size) {
      throw InvalidArgument("sizes " + list_text(sizes) + " overflow 64-bit byte counts");
    }
    if (size > 0) bytes *= size;
  }
}

void check_reach(const Sizes& sizes, const Sizes& strides, int elem_bytes) {
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (strides[i] > kMostBytes / elem_bytes / std::max<std::int64_t>(1, sizes[i])) {
      throw InvalidArgument("strides " + list_text(strides) + " of sizes " + list_text(sizes) +
                            " overflow 64-bit byte counts");
    }
  }
}

void check_layout(const TensorRequest& request) {
  const int ndim = static_cast<int>(request.sizes.size());
  if (ndim < kMinDims || ndim > kMaxDims) {
    throw InvalidArgument("the tensor has " + std::to_string(ndim) + " dims " + list_text(request.sizes) +
                          "; 3 to 5 are supported");
  }
  if (request.elem_bytes != 1 && request.elem_bytes != 2 && request.elem_bytes != 4 && request.elem_bytes != 8) {
    throw InvalidArgument("elements of " + std::to_string(request.elem_bytes) + " bytes (" + request.dtype +
                          "); elements of 1, 2, 4 and 8 bytes are supported");
  }
  for (const Sizes* strides : {&request.strides, request.out_strides ? &*request.out_strides : &request.strides}) {
    if (strides->size() != request.sizes.size()) {
      throw InvalidArgument(std::to_string(strides->size()) + " strides " + list_text(*strides) +
                            " for a tensor of sizes " + list_text(request.sizes));
    }
    for (const std::int64_t stride : *strides) {
      if (stride < 0) throw InvalidArgument("strides " + list_text(*strides) + ": a stride must not be negative");
    }
  }
  for (const std::int64_t size : request.sizes) {
    if (size < 0) throw InvalidArgument("sizes " + list_text(request.sizes) + ": a size must not be negative");
  }
  check_bytes(request.sizes, request.elem_bytes);
}

Sizes checked_splits(const char* name, const Sizes& splits, int size) {
  if (splits.size() != at(size)) {
    throw InvalidArgument(std::string(name) + " " + list_text(splits) + " has " + std::to_string(splits.size()) +
                          " entries; the group has " + std::to_string(size) + " ranks, one entry each is needed");
  }
  std::int64_t sum = 0;
  for (const std::int64_t part : splits) {
    if (part < 0)
      throw InvalidArgument(std::string(name) + " " + list_text(splits) + ": an entry must not be negative");
    if (__builtin_add_overflow(sum, part, &sum)) {
      throw InvalidArgument(std::string(name) + " " + list_text(splits) + " add up to more than 64 bits hold");
    }
  }
  return splits;
}

Sizes resolve_scatter(const TensorRequest& request, int dim, int size) {
  const std::int64_t total = request.sizes[at(dim)];
  if (!request.scatter_splits) {
    if (total % size != 0) {
      throw InvalidArgument("scatter_dim " + std::to_string(dim) + " has size " + std::to_string(total) + ", which " +
                            std::to_string(size) + " ranks do not divide evenly; pass scatter_splits (for example " +
                            list_text(balanced_split(total, size)) + ") or use one of " + divisors_text(total) +
                            " ranks");
    }
    return Sizes(at(size), total / size);
  }
  Sizes splits = checked_splits("scatter_splits", *request.scatter_splits, size);
  if (request.scatter_starts) return splits;  // checked against their starts
  const std::int64_t sum = std::accumulate(splits.begin(), splits.end(), std::int64_t{0});
  if (sum != total) {
    throw InvalidArgument("scatter_splits " + list_text(splits) + " add up to " + std::to_string(sum) +
                          "; scatter_dim " + std::to_string(dim) + " has size " + std::to_string(total));
  }
  return splits;
}

Sizes resolve_starts(const TensorRequest& request, const Sizes& splits, int dim, int size) {
  if (!request.scatter_starts) return part_starts(splits);
  if (!request.scatter_splits) throw InvalidArgument("scatter_starts are given without scatter_splits");
  Sizes starts = checked_splits("scatter_starts", *request.scatter_starts, size);
  const std::int64_t total = request.sizes[at(dim)];
  for (std::size_t rank = 0; rank < starts.size(); ++rank) {
    if (starts[rank] > total || splits[rank] > total - starts[rank]) {
      throw InvalidArgument("scatter_starts " + list_text(starts) + " and scatter_splits " + list_text(splits) +
                            ": the part of rank " + std::to_string(rank) + " ends beyond scatter_dim " +
                            std::to_string(dim) + ", which has size " + std::to_string(total));
    }
  }
  return starts;
}

Sizes resolve_gather(const TensorRequest& request, int dim, int rank, int size) {
  const std::int64_t local = request.sizes[at(dim)];
  if (!request.gather_splits) return Sizes(at(size), local);
  Sizes splits = checked_splits("gather_splits", *request.gather_splits, size);
  if (splits[at(rank)] != local) {
    throw InvalidArgument("gather_splits " + list_text(splits) + " say that rank " + std::to_string(rank) + " holds " +
                          std::to_string(splits[at(rank)]) + "; its tensor has size " + std::to_string(local) +
                          " in gather_dim " + std::to_string(dim));
  }
  return splits;
}

}  // namespace

Spec resolve(const TensorRequest& request, int rank, int size) {
  if (size < 1 || rank < 0 || rank >= size) {
    throw InvalidArgument("rank " + std::to_string(rank) + " of " + std::to_string(size) + " ranks does not exist");
  }
  check_layout(request);
  const int ndim = static_cast<int>(request.sizes.size());
  Spec spec;
  spec.size = size;
  spec.elem_bytes = request.elem_bytes;
  spec.dtype = request.dtype;
  spec.scatter_dim = checked_dim("scatter_dim", request.scatter_dim, ndim);
  spec.gather_dim = checked_dim("gather_dim", request.gather_dim, ndim);
  if (spec.scatter_dim == spec.gather_dim) {
    throw InvalidArgument("scatter_dim and gather_dim are both " + std::to_string(spec.scatter_dim) +
                          "; they must differ");
  }
  spec.scatter_splits = resolve_scatter(request, spec.scatter_dim, size);
  spec.scatter_starts = resolve_starts(request, spec.scatter_splits, spec.scatter_dim, size);
  spec.gather_splits = resolve_gather(request, spec.gather_dim, rank, size);
  spec.global = request.sizes;
  spec.global[at(spec.gather_dim)] =
      std::accumulate(spec.gather_splits.begin(), spec.gather_splits.end(), std::int64_t{0});
  check_bytes(spec.global, spec.elem_bytes);
  check_reach(spec.global, request.strides, spec.elem_bytes);
  if (request.out_strides) check_reach(spec.global, *request.out_strides, spec.elem_bytes);
  return spec;
}

Sizes input_sizes(const Spec& spec, int rank) {
  Sizes sizes = spec.global;
  sizes[at(spec.gather_dim)] = spec.gather_splits[at(rank)];
  return sizes;
}

Sizes output_sizes(const Spec& spec, int rank) {
  Sizes sizes = spec.global;
  sizes[at(spec.scatter_dim)] = spec.scatter_splits[at(rank)];
  return sizes;
}

Sizes contiguous_strides_bytes(const Sizes& sizes, int elem_bytes) {
  Sizes strides(sizes.size());
  std::int64_t stride = elem_bytes;
  for (std::size_t i = sizes.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= sizes[i] > 0 ? sizes[i] : 1;
  }
  return strides;
}

}  // namespace fast_ulysses
