// Tensors whose every element is a bit pattern made from its global position, in several memory layouts: what an
// exchange delivered is right or wrong element by element, and what it wrote outside is seen.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "fast_ulysses/plan.h"

namespace fast_ulysses::tests {

using Sizes = std::vector<std::int64_t>;

enum class Layout {
  kContiguous,
  kSwapped,   // transpose(1, 2) of a contiguous tensor, of 3 dims transpose(0, 1)
  kReversed,  // all dims the other way round: no row of more than one element
  kPadded,    // the inside of a tensor that is larger in every dim
  kFused,     // the middle of three tensors packed side by side before the last two dims
  kExpanded,  // stride 0 in the first and in the last dim but one
};
inline constexpr Layout kInputLayouts[] = {Layout::kContiguous, Layout::kSwapped, Layout::kReversed,
                                           Layout::kPadded,     Layout::kFused,   Layout::kExpanded};
inline constexpr Layout kOutputLayouts[] = {Layout::kContiguous, Layout::kSwapped, Layout::kReversed, Layout::kPadded};
const char* layout_name(Layout layout);

// Strides and extent of a tensor in a buffer of its own, in elements.
struct Strided {
  Sizes strides;
  std::int64_t offset_elems;  // of its first element
  std::int64_t span_elems;    // of the buffer
};
Strided make_strided(Layout layout, const Sizes& sizes);

// The dims in which this layout repeats its elements.
std::vector<bool> repeated_dims(Layout layout, std::size_t dims);

std::int64_t numel(const Sizes& sizes);

// Calls `visit(coordinates, offset)` for every element of a tensor of these sizes; the offset is in units of `strides`.
void for_each_element(const Sizes& sizes, const Sizes& strides,
                      const std::function<void(const Sizes&, std::int64_t)>& visit);

// One tensor of an exchange as all ranks see it.
struct TensorCase {
  Sizes global;
  int scatter_dim = 2, gather_dim = 1;
  Sizes scatter_splits, gather_splits;
  int elem_bytes = 2;
  Layout in = Layout::kContiguous, out = Layout::kContiguous;

  std::string text() const;
};
// Balanced splits over `ranks` in both dims.
TensorCase balanced_case(const Sizes& global, int scatter_dim, int gather_dim, int ranks, int elem_bytes = 2);
// The exchange that takes the result of `forward` back.
TensorCase inverse(const TensorCase& forward);

Sizes input_sizes(const TensorCase& tensor, int rank);
Sizes output_sizes(const TensorCase& tensor, int rank);
TensorRequest request_of(const TensorCase& tensor, int rank);

// The pattern of the element at a global position; different seeds give different tensors.
std::uint64_t code(const Sizes& position, std::uint64_t seed);

// Input and result of one rank.
class CodedTensor {
 public:
  CodedTensor(const TensorCase& tensor, int rank, std::uint64_t seed);

  TensorRequest request() const { return request_of(tensor_, rank_); }
  const void* src() const { return input_.data() + in_offset_bytes_; }
  void* dst() { return result_.data() + out_offset_bytes_; }
  // Ends the use of the input, as a caller does who needs the memory for something else.
  void overwrite_input();
  // Wrong elements of the result and of what surrounds it.
  std::int64_t mismatches() const { return different(result_.data(), expected_.data(), expected_.size()); }
  // Wrong elements of a contiguous result that stands somewhere else.
  std::int64_t mismatches_at(const void* contiguous) const;

 private:
  std::int64_t different(const char* got, const char* want, std::size_t bytes) const;
  void fill(std::vector<char>& buffer, const Sizes& sizes, const Strided& strided, std::int64_t offset_bytes,
            const Sizes& first_position, std::uint64_t seed) const;

  TensorCase tensor_;
  int rank_;
  std::int64_t in_offset_bytes_ = 0, out_offset_bytes_ = 0;
  std::vector<char> input_, result_, expected_, expected_contiguous_;
};

}  // namespace fast_ulysses::tests
