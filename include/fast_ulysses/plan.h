// The arithmetic of an exchange: which bytes go where. Pure functions of the arguments: no memory is touched, no
// rank is asked, so every rank that is given the same global facts computes the same plan.
//
// An exchange trades a shard of `gather_dim` for a shard of `scatter_dim`. Rank i holds X_i with all of scatter_dim and
// its shard of gather_dim; afterwards rank j holds Y_j with its shard of scatter_dim and all of gather_dim:
//     Y_j[..., gather range of i, ..., :] = X_i[..., scatter range of j, ..., :].
// "Scatter heads" of [B, s, H, D] is scatter_dim 2, gather_dim 1; "gather heads" is the inverse, 1 and 2.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fast_ulysses/visibility.h"

namespace fast_ulysses {

inline constexpr int kMinDims = 3;
inline constexpr int kMaxDims = 5;

// One tensor of an exchange, as the calling rank sees it.
struct TensorRequest {
  std::vector<std::int64_t> sizes;    // local input sizes, 3 to 5 dims; any may be 0
  std::vector<std::int64_t> strides;  // of the input, in elements; 0 (expanded) included, negative not
  int elem_bytes = 0;                 // 1, 2, 4 or 8
  std::string dtype;                  // a label: part of what ranks must agree on, and of messages
  int scatter_dim = 2;                // any two dims but the last; negative counts from the end
  int gather_dim = 1;
  // One length a rank. Absent: scatter_dim is divided evenly (or the call is refused), and every rank is taken to hold
  // as much of gather_dim as this one (a rank that holds another amount is found by the handshake).
  std::optional<std::vector<std::int64_t>> scatter_splits;
  std::optional<std::vector<std::int64_t>> gather_splits;
  std::optional<std::vector<std::int64_t>> out_strides;  // of the result, in elements; absent: contiguous
  // Where each rank's part of scatter_dim starts. Absent: one part behind the other, covering it all. Given, with
  // scatter_splits: parts may overlap, so several ranks get the same rows (replicated key/value heads).
  std::optional<std::vector<std::int64_t>> scatter_starts;
};

// `planes` times `rows` rows of `row_bytes` bytes: what one pitched copy of a copy engine can do. Offsets count from
// the first element of either tensor. A source pitch of 0 repeats a row.
struct StridedCopy {
  std::int64_t src_offset_bytes, dst_offset_bytes;
  std::int64_t row_bytes;
  std::int64_t rows, src_pitch_bytes, dst_pitch_bytes;
  std::int64_t planes, src_plane_bytes, dst_plane_bytes;

  std::int64_t bytes() const noexcept { return row_bytes * rows * planes; }
};
using CopyList = std::vector<StridedCopy>;

// A checked request: what the ranks have in common.
struct Spec {
  int size = 0;  // ranks
  int elem_bytes = 0;
  std::string dtype;
  int scatter_dim = 0, gather_dim = 0;                      // not negative
  std::vector<std::int64_t> global;                         // both dims whole
  std::vector<std::int64_t> scatter_splits, gather_splits;  // one length a rank
  std::vector<std::int64_t> scatter_starts;                 // one offset a rank
};

// Checks a request from its arguments alone (so all ranks refuse it alike) and resolves the defaults. `rank` is only
// used for the checks of the local sizes. Throws InvalidArgument, saying which number is wrong and which would do.
FU_API Spec resolve(const TensorRequest& request, int rank, int size);

FU_API std::vector<std::int64_t> input_sizes(const Spec& spec, int rank);
FU_API std::vector<std::int64_t> output_sizes(const Spec& spec, int rank);
FU_API std::vector<std::int64_t> contiguous_strides_bytes(const std::vector<std::int64_t>& sizes, int elem_bytes);

// The block that rank `from` holds in its input and rank `to` needs in its output, source offsets in the input of
// `from`, destination offsets in the output of `to`. Strides in bytes. Copies of no bytes are left out.
FU_API CopyList block_copies(const Spec& spec, int from, int to, const std::vector<std::int64_t>& src_strides_bytes,
                             const std::vector<std::int64_t>& dst_strides_bytes);

// The same block where it stands in the output of `to`, on both sides: from a window to the result.
FU_API CopyList placed_copies(const Spec& spec, int from, int to, const std::vector<std::int64_t>& src_strides_bytes,
                              const std::vector<std::int64_t>& dst_strides_bytes);

// All the copies of one exchange of one or several tensors, for one rank.
class FU_API ExchangePlan {
 public:
  struct Part {
    Spec spec;
    std::vector<std::int64_t> output_sizes;
    bool contiguous_result;             // this rank's, as a result in a window must be
    std::int64_t largest_output_bytes;  // of any rank, contiguous
    std::int64_t window_offset_bytes;   // where this tensor starts in a window, the same on every rank
    std::vector<CopyList> push;         // by peer: this rank's input -> the peer's contiguous output (empty for itself)
    std::vector<CopyList> place;        // by peer: this rank's window -> its result (empty for itself)
    CopyList own;                       // this rank's input -> its result
  };

  // `op` names the call in messages. Throws InvalidArgument.
  static std::shared_ptr<const ExchangePlan> make(const std::string& op, const std::vector<TensorRequest>& requests,
                                                  int rank, int size);

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  const std::vector<Part>& parts() const noexcept { return parts_; }
  // What the ranks must agree on, in words: the call record. Equal on all ranks that make the same call.
  const std::string& text() const noexcept { return text_; }
  // Its hash: what flags carry.
  std::uint32_t signature() const noexcept { return signature_; }
  // The largest window that any rank needs: a pure function of common facts, so all ranks grow alike.
  std::int64_t window_bytes() const noexcept { return window_bytes_; }
  // What this rank sends to its peers.
  std::int64_t wire_bytes() const noexcept { return wire_bytes_; }
  std::int64_t own_bytes() const noexcept { return own_bytes_; }

 private:
  int rank_ = 0, size_ = 0;
  std::vector<Part> parts_;
  std::string text_;
  std::uint32_t signature_ = 0;
  std::int64_t window_bytes_ = 0, wire_bytes_ = 0, own_bytes_ = 0;
};

}  // namespace fast_ulysses
