#include <algorithm>
#include <numeric>

#include "core/protocol.h"
#include "core/strings.h"
#include "fast_ulysses/errors.h"
#include "fast_ulysses/partition.h"
#include "fast_ulysses/plan.h"

namespace fast_ulysses {
namespace {

using Sizes = std::vector<std::int64_t>;

constexpr std::int64_t kPartAlignBytes = 256;  // of each tensor in a window: wide accesses stay aligned

std::int64_t round_up(std::int64_t value, std::int64_t to) { return (value + to - 1) / to * to; }

std::int64_t numel(const Sizes& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<std::int64_t>());
}

Sizes in_bytes(Sizes strides, int elem_bytes) {
  for (std::int64_t& stride : strides) stride *= elem_bytes;
  return strides;
}

std::int64_t total_bytes(const CopyList& copies) {
  std::int64_t bytes = 0;
  for (const StridedCopy& copy : copies) bytes += copy.bytes();
  return bytes;
}

// The call record of one tensor. It holds global facts alone, so equal calls have equal texts on all ranks.
std::string spec_text(const Spec& spec) {
  return spec.dtype + " " + list_text(spec.global) + " scatter dim " + std::to_string(spec.scatter_dim) + " by " +
         list_text(spec.scatter_splits) +
         (spec.scatter_starts == part_starts(spec.scatter_splits) ? "" : " at " + list_text(spec.scatter_starts)) +
         ", gather dim " + std::to_string(spec.gather_dim) + " from " + list_text(spec.gather_splits);
}

std::int64_t largest_output_bytes(const Spec& spec) {
  std::int64_t largest = 0;
  for (int rank = 0; rank < spec.size; ++rank) {
    largest = std::max(largest, numel(output_sizes(spec, rank)) * spec.elem_bytes);
  }
  return largest;
}

// Strides of dims of one element say nothing.
bool same_layout(const Sizes& sizes, const Sizes& strides, const Sizes& others) {
  if (numel(sizes) == 0) return true;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] > 1 && strides[i] != others[i]) return false;
  }
  return true;
}

ExchangePlan::Part make_part(const TensorRequest& request, Spec spec, int rank) {
  ExchangePlan::Part part;
  const Sizes src_strides = in_bytes(request.strides, spec.elem_bytes);
  part.output_sizes = output_sizes(spec, rank);
  part.largest_output_bytes = largest_output_bytes(spec);
  const Sizes window_strides = contiguous_strides_bytes(part.output_sizes, spec.elem_bytes);
  const Sizes out_strides = request.out_strides ? in_bytes(*request.out_strides, spec.elem_bytes) : window_strides;
  part.contiguous_result = same_layout(part.output_sizes, out_strides, window_strides);
  for (int peer = 0; peer < spec.size; ++peer) {
    const Sizes peer_strides = contiguous_strides_bytes(output_sizes(spec, peer), spec.elem_bytes);
    const bool self = peer == rank;
    part.push.push_back(self ? CopyList{} : block_copies(spec, rank, peer, src_strides, peer_strides));
    part.place.push_back(self ? CopyList{} : placed_copies(spec, peer, rank, window_strides, out_strides));
  }
  part.own = block_copies(spec, rank, rank, src_strides, out_strides);
  part.spec = std::move(spec);
  return part;
}

}  // namespace

std::shared_ptr<const ExchangePlan> ExchangePlan::make(const std::string& op,
                                                       const std::vector<TensorRequest>& requests, int rank, int size) {
  if (requests.empty()) throw InvalidArgument(op + ": no tensor given");
  auto plan = std::make_shared<ExchangePlan>();
  plan->rank_ = rank;
  plan->size_ = size;
  plan->text_ = op;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const std::string where = requests.size() == 1 ? op : op + ", tensor " + std::to_string(i);
    try {
      plan->parts_.push_back(make_part(requests[i], resolve(requests[i], rank, size), rank));
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(where + ": " + error.what());
    }
    ExchangePlan::Part& part = plan->parts_.back();
    plan->text_ += (i == 0 ? " " : "; ") + spec_text(part.spec);
    part.window_offset_bytes = plan->window_bytes_;
    plan->window_bytes_ += round_up(part.largest_output_bytes, kPartAlignBytes);
    for (const CopyList& copies : part.push) plan->wire_bytes_ += total_bytes(copies);
    plan->own_bytes_ += total_bytes(part.own);
  }
  plan->signature_ = protocol::signature_of(plan->text_.data(), plan->text_.size());
  return plan;
}

}  // namespace fast_ulysses
