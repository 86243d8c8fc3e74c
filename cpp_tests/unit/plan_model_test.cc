// The plan over its whole small domain: all ranks are simulated in one process, their copies executed by a naive
// interpreter and by the engine's copier, and every element of every result is held against its global position.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>

#include "engine/host_copy.h"
#include "fast_ulysses/partition.h"
#include "fast_ulysses/plan.h"
#include "support/coded.h"

namespace fast_ulysses::tests {
namespace {

constexpr char kCanary = '\x5a';
constexpr std::int64_t kGuardElems = 8;

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

// One rank's tensor: a buffer with a guard on either side, and how often each element was written.
struct Buffer {
  Buffer(std::int64_t elems, std::int64_t first, int bytes_each)
      : elem_bytes(bytes_each),
        first_elem(first + kGuardElems),
        bytes(at((elems + 2 * kGuardElems) * bytes_each), kCanary),
        writes(at(elems + 2 * kGuardElems), 0) {}

  char* data() { return bytes.data() + first_elem * elem_bytes; }

  int elem_bytes;
  std::int64_t first_elem;
  std::vector<char> bytes;
  std::vector<int> writes;
};

Buffer buffer_for(Layout layout, const Sizes& sizes, int elem_bytes) {
  const Strided strided = make_strided(layout, sizes);
  return Buffer(strided.span_elems, strided.offset_elems, elem_bytes);
}

// Executes copies element by element. False when one leaves [0, limit_bytes) of the destination, or its buffer.
bool interpret(const CopyList& copies, Buffer& src, Buffer& dst, std::int64_t limit_bytes) {
  const std::int64_t elem = dst.elem_bytes;
  for (const StridedCopy& copy : copies) {
    if (copy.row_bytes <= 0 || copy.rows <= 0 || copy.planes <= 0 || copy.row_bytes % elem != 0) return false;
    for (std::int64_t plane = 0; plane < copy.planes; ++plane) {
      for (std::int64_t row = 0; row < copy.rows; ++row) {
        for (std::int64_t byte = 0; byte < copy.row_bytes; byte += elem) {
          const std::int64_t from =
              copy.src_offset_bytes + plane * copy.src_plane_bytes + row * copy.src_pitch_bytes + byte;
          const std::int64_t to =
              copy.dst_offset_bytes + plane * copy.dst_plane_bytes + row * copy.dst_pitch_bytes + byte;
          const std::int64_t index = dst.first_elem + to / elem, source = src.first_elem + from / elem;
          if (to < 0 || to + elem > limit_bytes || to % elem != 0 || at(index) >= dst.writes.size()) return false;
          if (from < 0 || from % elem != 0 || at(source) >= src.writes.size()) return false;
          std::memcpy(dst.data() + to, src.data() + from, at(elem));
          ++dst.writes[at(index)];
        }
      }
    }
  }
  return true;
}

Sizes strides_bytes(Layout layout, const Sizes& sizes, int elem_bytes) {
  Sizes strides = make_strided(layout, sizes).strides;
  for (std::int64_t& stride : strides) stride *= elem_bytes;
  return strides;
}

class Simulation {
 public:
  Simulation(const TensorCase& tensor, int ranks) : tensor_(tensor), ranks_(ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      plans_.push_back(ExchangePlan::make("a2a", {request_of(tensor, rank)}, rank, ranks));
      outputs_.push_back(output_sizes(tensor, rank));
    }
  }

  // The results of all ranks, or an explanation in `wrong`.
  std::vector<Buffer> run(std::vector<Buffer>& inputs, std::string& wrong) {
    check_agreement(wrong);
    std::vector<Buffer> windows, windows_by_engine, results, by_engine, direct;
    for (int rank = 0; rank < ranks_; ++rank) {
      windows.emplace_back(plans_[at(rank)]->window_bytes() / tensor_.elem_bytes, 0, tensor_.elem_bytes);
      results.push_back(buffer_for(tensor_.out, outputs_[at(rank)], tensor_.elem_bytes));
    }
    windows_by_engine = windows;
    direct = by_engine = results;
    for (int from = 0; from < ranks_; ++from) {
      push(from, inputs, windows, windows_by_engine, wrong);
      place_directly(from, inputs, direct, wrong);
    }
    for (int rank = 0; rank < ranks_; ++rank) {
      place(rank, inputs[at(rank)], windows[at(rank)], results[at(rank)], wrong);
      place_by_engine(rank, inputs[at(rank)], windows_by_engine[at(rank)], by_engine[at(rank)]);
      if (results[at(rank)].bytes != direct[at(rank)].bytes) wrong += "push and place differ from the direct block; ";
      if (results[at(rank)].bytes != by_engine[at(rank)].bytes) wrong += "copy_rows differs from the interpreter; ";
    }
    return results;
  }

 private:
  const ExchangePlan::Part& part(int rank) const { return plans_[at(rank)]->parts()[0]; }
  std::int64_t output_bytes(int rank) const { return numel(outputs_[at(rank)]) * tensor_.elem_bytes; }
  std::int64_t span_bytes(int rank) const {
    return make_strided(tensor_.out, outputs_[at(rank)]).span_elems * tensor_.elem_bytes;
  }

  void check_agreement(std::string& wrong) const {
    std::int64_t largest = 0, moved = 0;
    for (int rank = 0; rank < ranks_; ++rank) {
      const ExchangePlan& plan = *plans_[at(rank)];
      largest = std::max(largest, output_bytes(rank));
      moved += plan.wire_bytes() + plan.own_bytes();
      if (plan.text() != plans_[0]->text()) wrong += "the ranks record different calls; ";
      if (plan.window_bytes() != plans_[0]->window_bytes()) wrong += "the ranks need different windows; ";
      if (part(rank).output_sizes != outputs_[at(rank)]) wrong += "output sizes; ";
      if (!part(rank).push[at(rank)].empty() || !part(rank).place[at(rank)].empty()) wrong += "sends to itself; ";
    }
    if (plans_[0]->window_bytes() < largest) wrong += "a window is too small; ";
    if (part(0).largest_output_bytes != largest) wrong += "the largest output; ";
    if (moved != numel(tensor_.global) * tensor_.elem_bytes) wrong += "bytes moved and bytes there differ; ";
  }

  void push(int from, std::vector<Buffer>& inputs, std::vector<Buffer>& windows, std::vector<Buffer>& by_engine,
            std::string& wrong) const {
    for (int to = 0; to < ranks_; ++to) {
      const CopyList& copies = part(from).push[at(to)];
      if (!interpret(copies, inputs[at(from)], windows[at(to)], output_bytes(to))) wrong += "push out of bounds; ";
      copy_rows(copies, inputs[at(from)].data(), by_engine[at(to)].data());
    }
  }

  void place(int rank, Buffer& input, Buffer& window, Buffer& result, std::string& wrong) const {
    for (const int writes : window.writes) {
      if (writes > 1) wrong += "a window is written twice; ";
    }
    for (const CopyList& copies : part(rank).place) {
      if (!interpret(copies, window, result, span_bytes(rank))) wrong += "place out of bounds; ";
    }
    if (!interpret(part(rank).own, input, result, span_bytes(rank))) wrong += "own rows out of bounds; ";
  }

  void place_by_engine(int rank, Buffer& input, Buffer& window, Buffer& result) const {
    for (const CopyList& copies : part(rank).place) copy_rows(copies, window.data(), result.data());
    copy_rows(part(rank).own, input.data(), result.data());
  }

  void place_directly(int from, std::vector<Buffer>& inputs, std::vector<Buffer>& direct, std::string& wrong) const {
    const Sizes src = strides_bytes(tensor_.in, input_sizes(tensor_, from), tensor_.elem_bytes);
    for (int to = 0; to < ranks_; ++to) {
      const Sizes dst = strides_bytes(tensor_.out, outputs_[at(to)], tensor_.elem_bytes);
      const CopyList copies = block_copies(part(from).spec, from, to, src, dst);
      if (!interpret(copies, inputs[at(from)], direct[at(to)], span_bytes(to))) wrong += "direct out of bounds; ";
    }
  }

  TensorCase tensor_;
  int ranks_;
  std::vector<std::shared_ptr<const ExchangePlan>> plans_;
  std::vector<Sizes> outputs_;
};

// Calls `visit(element, code)` for each element of a rank's tensor; its codes are those of the global position.
template <class Visit>
void with_codes(const TensorCase& tensor, Layout layout, const Sizes& sizes, int divided_dim, std::int64_t first,
                Buffer& buffer, const Visit& visit) {
  const std::vector<bool> repeated = repeated_dims(tensor.in, sizes.size());
  for_each_element(sizes, make_strided(layout, sizes).strides, [&](const Sizes& position, std::int64_t offset) {
    std::uint64_t index = 1;  // of the element in the global tensor: an 8-byte code is unique
    for (std::size_t dim = 0; dim < sizes.size(); ++dim) {
      const std::int64_t global = position[dim] + (dim == at(divided_dim) ? first : 0);
      index = index * static_cast<std::uint64_t>(tensor.global[dim] + 1) +
              (repeated[dim] ? 0 : static_cast<std::uint64_t>(global));
    }
    visit(buffer.data() + offset * buffer.elem_bytes, index * 0x9e3779b97f4a7c15u, buffer.first_elem + offset);
  });
}

std::string check(const TensorCase& tensor, int ranks) {
  std::string wrong;
  const Sizes gather_starts = part_starts(tensor.gather_splits), scatter_starts = part_starts(tensor.scatter_splits);
  std::vector<Buffer> inputs;
  for (int rank = 0; rank < ranks; ++rank) {
    const Sizes sizes = input_sizes(tensor, rank);
    inputs.push_back(buffer_for(tensor.in, sizes, tensor.elem_bytes));
    with_codes(tensor, tensor.in, sizes, tensor.gather_dim, gather_starts[at(rank)], inputs.back(),
               [&](char* element, std::uint64_t code, std::int64_t) {
                 code >>= 64 - 8 * tensor.elem_bytes;
                 std::memcpy(element, &code, at(tensor.elem_bytes));
               });
  }
  std::vector<Buffer> results = Simulation(tensor, ranks).run(inputs, wrong);
  for (int rank = 0; rank < ranks; ++rank) {
    Buffer& result = results[at(rank)];
    const Sizes sizes = output_sizes(tensor, rank);
    with_codes(tensor, tensor.out, sizes, tensor.scatter_dim, scatter_starts[at(rank)], result,
               [&](const char* element, std::uint64_t code, std::int64_t index) {
                 code >>= 64 - 8 * tensor.elem_bytes;
                 if (std::memcmp(element, &code, at(tensor.elem_bytes)) != 0) wrong += "a wrong element; ";
                 if (result.writes[at(index)] != 1) wrong += "an element not written once; ";
               });
    // With each element of the result written once, as many writes as elements leave none for what is outside.
    if (std::accumulate(result.writes.begin(), result.writes.end(), std::int64_t{0}) != numel(sizes)) {
      wrong += "something written outside; ";
    }
  }
  TensorCase back = inverse(tensor);
  if (back.out == Layout::kExpanded) back.out = Layout::kContiguous;
  std::vector<Buffer> again = Simulation(back, ranks).run(results, wrong);
  for (int rank = 0; rank < ranks; ++rank) {
    with_codes(tensor, back.out, input_sizes(tensor, rank), tensor.gather_dim, gather_starts[at(rank)], again[at(rank)],
               [&](const char* element, std::uint64_t code, std::int64_t) {
                 code >>= 64 - 8 * tensor.elem_bytes;
                 if (std::memcmp(element, &code, at(tensor.elem_bytes)) != 0) wrong += "the inverse is no identity; ";
               });
  }
  return wrong;
}

enum class Splits { kEven, kUneven, kEmptyAtEnd, kOnOne, kAny };

Sizes make_splits(Splits kind, int ranks, std::mt19937& random) {
  Sizes splits(at(ranks), 2);
  switch (kind) {
    case Splits::kEven:
      break;
    case Splits::kUneven:
      return balanced_split(ranks + 1 + ranks / 2, ranks);
    case Splits::kEmptyAtEnd:
      return balanced_split(ranks - 1, ranks);
    case Splits::kOnOne:
      splits.assign(at(ranks), 0);
      splits[at(ranks / 2)] = 5;
      break;
    case Splits::kAny:
      for (std::int64_t& split : splits) split = static_cast<std::int64_t>(random() % 4);
      break;
  }
  return splits;
}

TensorCase make_case(int dims, int scatter, int gather, const Sizes& scatter_splits, const Sizes& gather_splits) {
  TensorCase tensor;
  tensor.global.assign(at(dims), 2);
  tensor.global.back() = 3;
  tensor.scatter_dim = scatter;
  tensor.gather_dim = gather;
  tensor.scatter_splits = scatter_splits;
  tensor.gather_splits = gather_splits;
  tensor.global[at(scatter)] = std::accumulate(scatter_splits.begin(), scatter_splits.end(), std::int64_t{0});
  tensor.global[at(gather)] = std::accumulate(gather_splits.begin(), gather_splits.end(), std::int64_t{0});
  return tensor;
}

class PlanModel : public testing::TestWithParam<int> {};

TEST_P(PlanModel, EveryElementArrivesOnce) {
  const int ranks = GetParam();
  std::mt19937 random(static_cast<unsigned>(ranks));
  const std::pair<Splits, Splits> kinds[] = {
      {Splits::kEven, Splits::kEven},       {Splits::kEven, Splits::kUneven}, {Splits::kUneven, Splits::kEmptyAtEnd},
      {Splits::kEmptyAtEnd, Splits::kEven}, {Splits::kOnOne, Splits::kAny},   {Splits::kAny, Splits::kAny}};
  std::int64_t cases = 0;
  for (int dims = kMinDims; dims <= kMaxDims; ++dims) {
    for (int pair = 0; pair < (dims - 1) * (dims - 1); ++pair) {
      const int scatter = pair / (dims - 1), gather = pair % (dims - 1);
      if (scatter == gather) continue;
      for (const auto& [scatter_kind, gather_kind] : kinds) {
        TensorCase tensor = make_case(dims, scatter, gather, make_splits(scatter_kind, ranks, random),
                                      make_splits(gather_kind, ranks, random));
        for (const Layout in : kInputLayouts) {
          for (const Layout out : kOutputLayouts) {
            for (const int elem_bytes : {1, 2, 4, 8}) {
              tensor.in = in;
              tensor.out = out;
              tensor.elem_bytes = elem_bytes;
              ++cases;
              const std::string wrong = check(tensor, ranks);
              ASSERT_EQ(wrong, "") << ranks << " ranks, " << tensor.text();
            }
          }
        }
      }
    }
  }
  std::printf("%lld cases with %d ranks\n", static_cast<long long>(cases), ranks);
}

// Sanitizers make it ten times as slow, and more ranks show them nothing new.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kMostRanks = 4;
#else
constexpr int kMostRanks = 8;
#endif
INSTANTIATE_TEST_SUITE_P(Ranks, PlanModel, testing::Range(1, kMostRanks + 1));

}  // namespace
}  // namespace fast_ulysses::tests
