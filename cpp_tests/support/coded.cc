#include "support/coded.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "fast_ulysses/partition.h"

namespace fast_ulysses::tests {
namespace {

constexpr std::int64_t kGuardBytes = 64;  // on either side of every buffer
constexpr char kCanary = '\x5a';

std::size_t at(int index) { return static_cast<std::size_t>(index); }

std::string text_of(const Sizes& values) {
  std::string text = "[";
  for (const std::int64_t value : values) text += (text.size() > 1 ? "," : "") + std::to_string(value);
  return text + "]";
}

Sizes packed_strides(const Sizes& sizes, const std::vector<std::size_t>& inner_to_outer) {
  Sizes strides(sizes.size());
  std::int64_t stride = 1;
  for (const std::size_t dim : inner_to_outer) {
    strides[dim] = stride;
    stride *= std::max<std::int64_t>(1, sizes[dim]);
  }
  return strides;
}

std::vector<std::size_t> dims_from_last(std::size_t dims) {
  std::vector<std::size_t> order(dims);
  for (std::size_t i = 0; i < dims; ++i) order[i] = dims - 1 - i;
  return order;
}

std::uint64_t mix(std::uint64_t value) {  // splitmix64
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9u;
  value = (value ^ value >> 27) * 0x94d049bb133111ebu;
  return value ^ value >> 31;
}

}  // namespace

const char* layout_name(Layout layout) {
  switch (layout) {
    case Layout::kContiguous:
      return "contiguous";
    case Layout::kSwapped:
      return "swapped";
    case Layout::kReversed:
      return "reversed";
    case Layout::kPadded:
      return "padded";
    case Layout::kFused:
      return "fused";
    case Layout::kExpanded:
      return "expanded";
  }
  return "?";
}

std::int64_t numel(const Sizes& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<std::int64_t>());
}

std::vector<bool> repeated_dims(Layout layout, std::size_t dims) {
  std::vector<bool> repeated(dims, false);
  if (layout == Layout::kExpanded) repeated[0] = repeated[dims - 2] = true;
  return repeated;
}

Strided make_strided(Layout layout, const Sizes& sizes) {
  const std::size_t dims = sizes.size();
  std::vector<std::size_t> order = dims_from_last(dims);
  Strided strided{packed_strides(sizes, order), 0, numel(sizes)};
  switch (layout) {
    case Layout::kContiguous:
      break;
    case Layout::kSwapped:
      std::swap(order[dims - 1 - (dims > 3 ? 1 : 0)], order[dims - 1 - (dims > 3 ? 2 : 1)]);
      strided.strides = packed_strides(sizes, order);
      break;
    case Layout::kReversed:
      std::reverse(order.begin(), order.end());
      strided.strides = packed_strides(sizes, order);
      break;
    case Layout::kPadded: {
      Sizes larger = sizes;
      for (std::int64_t& size : larger) ++size;
      strided = {packed_strides(larger, order), 1, numel(larger) + 1};
      break;
    }
    case Layout::kFused: {
      const std::int64_t one = std::max<std::int64_t>(1, sizes[dims - 1]) * std::max<std::int64_t>(1, sizes[dims - 2]);
      for (std::size_t dim = 0; dim + 2 < dims; ++dim) strided.strides[dim] *= 3;
      strided.offset_elems = one;
      strided.span_elems = 3 * numel(sizes) + 3 * one;
      break;
    }
    case Layout::kExpanded:
      strided.strides[0] = strided.strides[dims - 2] = 0;
      break;
  }
  return strided;
}

void for_each_element(const Sizes& sizes, const Sizes& strides,
                      const std::function<void(const Sizes&, std::int64_t)>& visit) {
  if (numel(sizes) == 0) return;
  Sizes position(sizes.size(), 0);
  std::int64_t offset = 0;
  for (;;) {
    visit(position, offset);
    std::size_t dim = sizes.size();
    while (dim-- > 0) {
      offset += strides[dim];
      if (++position[dim] < sizes[dim]) break;
      offset -= strides[dim] * sizes[dim];
      position[dim] = 0;
      if (dim == 0) return;
    }
  }
}

std::string TensorCase::text() const {
  return text_of(global) + " scatter " + std::to_string(scatter_dim) + " by " + text_of(scatter_splits) + " gather " +
         std::to_string(gather_dim) + " from " + text_of(gather_splits) + ", " + std::to_string(elem_bytes) +
         "-byte elements, " + layout_name(in) + " to " + layout_name(out);
}

TensorCase balanced_case(const Sizes& global, int scatter_dim, int gather_dim, int ranks, int elem_bytes) {
  TensorCase tensor;
  tensor.global = global;
  tensor.scatter_dim = scatter_dim;
  tensor.gather_dim = gather_dim;
  tensor.scatter_splits = balanced_split(global[at(scatter_dim)], ranks);
  tensor.gather_splits = balanced_split(global[at(gather_dim)], ranks);
  tensor.elem_bytes = elem_bytes;
  return tensor;
}

TensorCase inverse(const TensorCase& forward) {
  TensorCase back = forward;
  std::swap(back.scatter_dim, back.gather_dim);
  std::swap(back.scatter_splits, back.gather_splits);
  std::swap(back.in, back.out);
  return back;
}

Sizes input_sizes(const TensorCase& tensor, int rank) {
  Sizes sizes = tensor.global;
  sizes[at(tensor.gather_dim)] = tensor.gather_splits[at(rank)];
  return sizes;
}

Sizes output_sizes(const TensorCase& tensor, int rank) {
  Sizes sizes = tensor.global;
  sizes[at(tensor.scatter_dim)] = tensor.scatter_splits[at(rank)];
  return sizes;
}

TensorRequest request_of(const TensorCase& tensor, int rank) {
  TensorRequest request;
  request.sizes = input_sizes(tensor, rank);
  request.strides = make_strided(tensor.in, request.sizes).strides;
  request.elem_bytes = tensor.elem_bytes;
  request.dtype = "bits" + std::to_string(8 * tensor.elem_bytes);
  request.scatter_dim = tensor.scatter_dim;
  request.gather_dim = tensor.gather_dim;
  request.scatter_splits = tensor.scatter_splits;
  request.gather_splits = tensor.gather_splits;
  if (tensor.out != Layout::kContiguous) {
    request.out_strides = make_strided(tensor.out, output_sizes(tensor, rank)).strides;
  }
  return request;
}

std::uint64_t code(const Sizes& position, std::uint64_t seed) {
  std::uint64_t value = mix(seed);
  for (const std::int64_t index : position) value = mix(value ^ static_cast<std::uint64_t>(index));
  return value;
}

CodedTensor::CodedTensor(const TensorCase& tensor, int rank, std::uint64_t seed) : tensor_(tensor), rank_(rank) {
  const Sizes in_sizes = input_sizes(tensor, rank), out_sizes = output_sizes(tensor, rank);
  const Strided in = make_strided(tensor.in, in_sizes), out = make_strided(tensor.out, out_sizes);
  in_offset_bytes_ = kGuardBytes + in.offset_elems * tensor.elem_bytes;
  out_offset_bytes_ = kGuardBytes + out.offset_elems * tensor.elem_bytes;
  input_.assign(static_cast<std::size_t>(in.span_elems * tensor.elem_bytes + 2 * kGuardBytes), kCanary);
  result_.assign(static_cast<std::size_t>(out.span_elems * tensor.elem_bytes + 2 * kGuardBytes), kCanary);
  expected_ = result_;
  Sizes in_first(tensor.global.size(), 0), out_first(tensor.global.size(), 0);
  in_first[at(tensor.gather_dim)] = part_starts(tensor.gather_splits)[at(rank)];
  out_first[at(tensor.scatter_dim)] = part_starts(tensor.scatter_splits)[at(rank)];
  fill(input_, in_sizes, in, in_offset_bytes_, in_first, seed);
  fill(expected_, out_sizes, out, out_offset_bytes_, out_first, seed);
  expected_contiguous_.resize(static_cast<std::size_t>(numel(out_sizes) * tensor.elem_bytes));
  fill(expected_contiguous_, out_sizes, make_strided(Layout::kContiguous, out_sizes), 0, out_first, seed);
}

void CodedTensor::fill(std::vector<char>& buffer, const Sizes& sizes, const Strided& strided, std::int64_t offset_bytes,
                       const Sizes& first_position, std::uint64_t seed) const {
  const std::vector<bool> repeated = repeated_dims(tensor_.in, sizes.size());
  Sizes global(sizes.size());
  for_each_element(sizes, strided.strides, [&](const Sizes& position, std::int64_t offset) {
    for (std::size_t dim = 0; dim < sizes.size(); ++dim) {
      global[dim] = repeated[dim] ? 0 : position[dim] + first_position[dim];
    }
    const std::uint64_t bits = code(global, seed);
    std::memcpy(buffer.data() + offset_bytes + offset * tensor_.elem_bytes, &bits, at(tensor_.elem_bytes));
  });
}

void CodedTensor::overwrite_input() { std::fill(input_.begin(), input_.end(), '\xee'); }

std::int64_t CodedTensor::mismatches_at(const void* contiguous) const {
  return different(static_cast<const char*>(contiguous), expected_contiguous_.data(), expected_contiguous_.size());
}

std::int64_t CodedTensor::different(const char* got, const char* want, std::size_t bytes) const {
  if (bytes == 0 || std::memcmp(got, want, bytes) == 0) return 0;
  const auto elem = at(tensor_.elem_bytes);
  std::int64_t count = 0;
  for (std::size_t i = 0; i < bytes; i += elem) {
    if (std::memcmp(got + i, want + i, std::min(elem, bytes - i)) != 0) ++count;
  }
  return count;
}

}  // namespace fast_ulysses::tests
