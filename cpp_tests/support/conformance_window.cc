// Symmetric memory that the caller holds, and exchanges into it.
#include <gtest/gtest.h>

#include <cstring>

#include "support/conformance.h"
#include "support/groups.h"

namespace fast_ulysses::tests {
namespace {

TensorCase tensor_of(RankEnv& env, std::int64_t heads_a_rank = 2) {
  return balanced_case({1, 4 * env.size() + 1, heads_a_rank * env.size(), 8}, 2, 1, env.size());
}

std::int64_t largest_bytes(const TensorCase& tensor) {
  std::int64_t largest = 0;
  for (int rank = 0; rank < static_cast<int>(tensor.scatter_splits.size()); ++rank) {
    largest = std::max(largest, numel(output_sizes(tensor, rank)) * tensor.elem_bytes);
  }
  return largest;
}

void every_rank_gets_the_largest(RankEnv& env) {
  const auto group = make_group(env);
  const int first = group->empty_window(100 * env.rank() + 1);
  const int second = group->empty_window(0);
  EXPECT_EQ(first, 0);
  EXPECT_EQ(second, 1);
  EXPECT_EQ(group->window_bytes(first), 100 * (env.size() - 1) + 1);
  EXPECT_GE(group->window_bytes(second), 1);
  std::memset(group->window_memory(first).get(), 1, static_cast<std::size_t>(group->window_bytes(first)));
  EXPECT_THROW(group->window_memory(2), InvalidArgument);
  EXPECT_THROW(group->window_bytes(-1), InvalidArgument);
  EXPECT_THROW(group->empty_window(-1), InvalidArgument);
  group->destroy();
}

void results_arrive_in_windows(RankEnv& env) {
  const auto group = make_group(env);
  const TensorCase q = tensor_of(env), k = tensor_of(env, 1);
  const int a = group->empty_window(largest_bytes(q)), b = group->empty_window(largest_bytes(k));
  const std::shared_ptr<void> a_memory = group->window_memory(a), b_memory = group->window_memory(b);
  group->reserve(1 << 16);  // so that no growth counts below
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    CodedTensor in_a(q, env.rank(), 3 * seed), in_b(k, env.rank(), 3 * seed + 1), own(k, env.rank(), 3 * seed + 2);
    const auto before = group->counters();
    const auto plan = group->plan("a2a_qkv", {in_a.request(), in_b.request(), own.request()});
    group->exchange(*plan, {in_a.src(), in_b.src(), own.src()}, {a_memory.get(), b_memory.get(), own.dst()},
                    {a, b, -1});
    const auto after = group->counters();
    EXPECT_EQ(in_a.mismatches_at(a_memory.get()), 0);
    EXPECT_EQ(in_b.mismatches_at(b_memory.get()), 0);
    EXPECT_EQ(own.mismatches(), 0);
    EXPECT_EQ(after.at("handshakes") - before.at("handshakes"), env.size() > 1 ? 2 : 0) << "an opening and its own";
    EXPECT_EQ(after.at("native_bytes") - before.at("native_bytes"), plan->wire_bytes());
  }
  group->destroy();
}

void windows_outlive_the_group(RankEnv& env) {
  const TensorCase tensor = tensor_of(env);
  CodedTensor coded(tensor, env.rank(), 4);
  std::shared_ptr<void> memory;
  {
    const auto group = make_group(env);
    const int window = group->empty_window(largest_bytes(tensor));
    memory = group->window_memory(window);
    group->exchange(*group->plan("a2a", {coded.request()}), {coded.src()}, {memory.get()}, {window});
    group->destroy();
  }
  EXPECT_EQ(coded.mismatches_at(memory.get()), 0);
  static_cast<char*>(memory.get())[0] = 1;
}

// Arguments that are wrong alike on all ranks: refused before anything is sent, and the group works on.
void wrong_arguments_leave_the_group_usable(RankEnv& env) {
  const auto group = make_group(env);
  const TensorCase tensor = tensor_of(env);
  CodedTensor coded(tensor, env.rank(), 9), other(tensor, env.rank(), 10);
  const int window = group->empty_window(largest_bytes(tensor)), small = group->empty_window(8);
  char* const memory = static_cast<char*>(group->window_memory(window).get());
  const auto plan = group->plan("a2a", {coded.request()});
  const auto pair = group->plan("a2a", {coded.request(), other.request()});
  const auto handshakes = group->counters().at("handshakes");
  EXPECT_THROW(group->exchange(*plan, {coded.src()}, {memory}, {7}), InvalidArgument) << "no such window";
  EXPECT_THROW(group->exchange(*plan, {coded.src()}, {memory + 8}, {window}), InvalidArgument) << "not its start";
  EXPECT_THROW(group->exchange(*plan, {coded.src()}, {group->window_memory(small).get()}, {small}), InvalidArgument);
  EXPECT_THROW(group->exchange(*plan, {coded.src()}, {coded.dst()}, {-1, -1}), InvalidArgument) << "too many windows";
  EXPECT_THROW(group->exchange(*plan, {}, {coded.dst()}), InvalidArgument);
  EXPECT_THROW(group->exchange(*pair, {coded.src(), other.src()}, {memory, memory}, {window, window}), InvalidArgument)
      << "two results in one window";
  TensorRequest strided = coded.request();
  strided.out_strides = make_strided(Layout::kReversed, output_sizes(tensor, env.rank())).strides;
  EXPECT_THROW(group->exchange(*group->plan("a2a", {strided}), {coded.src()}, {memory}, {window}), InvalidArgument)
      << "peers write a contiguous result";
  const auto foreign = ExchangePlan::make("a2a", {request_of(tensor_of(env), env.rank())}, env.rank(), env.size());
  const auto larger = ExchangePlan::make(
      "a2a", {request_of(balanced_case({1, 8, 8, 8}, 2, 1, env.size() + 1), env.rank())}, env.rank(), env.size() + 1);
  EXPECT_THROW(group->exchange(*larger, {coded.src()}, {coded.dst()}), InvalidArgument) << "a plan for other ranks";
  EXPECT_EQ(group->counters().at("handshakes"), handshakes) << "something was sent";
  group->check();
  group->exchange(*foreign, {coded.src()}, {memory}, {window});
  EXPECT_EQ(coded.mismatches_at(memory), 0);
  group->destroy();
}

}  // namespace

std::vector<ConformanceCase> window_cases() {
  return {{"window_every_rank_gets_the_largest", every_rank_gets_the_largest},
          {"window_results_arrive_in_windows", results_arrive_in_windows},
          {"window_windows_outlive_the_group", windows_outlive_the_group},
          {"window_wrong_arguments_leave_the_group_usable", wrong_arguments_leave_the_group_usable}};
}

}  // namespace fast_ulysses::tests
