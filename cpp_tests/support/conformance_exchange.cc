// Exchanges of every kind move every bit to its place.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "support/conformance.h"
#include "support/groups.h"

namespace fast_ulysses::tests {
namespace {

// There and back; the counters say that it went over the native path, to the byte.
void check_both_ways(RankEnv& env, UlyssesGroup& group, const TensorCase& tensor) {
  for (const TensorCase& way : {tensor, inverse(tensor)}) {
    const auto before = group.counters();
    EXPECT_EQ(exchange_coded(group, "a2a", {way}, 7), 0) << way.text() << ", rank " << env.rank();
    const auto after = group.counters();
    const Moved moved = moved_by({way}, env.rank(), env.size());
    EXPECT_EQ(after.at("native_bytes") - before.at("native_bytes"), moved.wire_bytes) << way.text();
    EXPECT_EQ(after.at("own_bytes") - before.at("own_bytes"), moved.own_bytes) << way.text();
    EXPECT_EQ(after.at("calls") - before.at("calls"), 1);
  }
}

void layouts_and_element_sizes(RankEnv& env) {
  const auto group = make_group(env);
  EXPECT_EQ(group->transport(), "shm");
  EXPECT_EQ(group->rank(), env.rank());
  EXPECT_EQ(group->size(), env.size());
  const std::int64_t ranks = env.size();
  for (const int elem_bytes : {1, 2, 4, 8}) {
    for (const Layout in : kInputLayouts) {
      for (const Layout out : kOutputLayouts) {
        TensorCase tensor = balanced_case({2, 2 * ranks + 1, ranks + 1, 5}, 2, 1, env.size(), elem_bytes);
        tensor.in = in;
        tensor.out = out;
        EXPECT_EQ(exchange_coded(*group, "a2a", {tensor}, 3), 0) << tensor.text();
      }
    }
    check_both_ways(env, *group, balanced_case({3, 2 * ranks, 3 * ranks, 4}, 2, 1, env.size(), elem_bytes));
  }
  group->destroy();
}

void dims_and_splits(RankEnv& env) {
  const auto group = make_group(env);
  const std::int64_t ranks = env.size();
  for (int dims = 3; dims <= 5; ++dims) {
    for (int scatter = 0; scatter < dims - 1; ++scatter) {
      for (int gather = 0; gather < dims - 1; ++gather) {
        if (scatter == gather) continue;
        Sizes global(static_cast<std::size_t>(dims), 2);
        global.back() = 3;
        global[static_cast<std::size_t>(scatter)] = 2 * ranks + 1;
        global[static_cast<std::size_t>(gather)] = ranks - 1;  // an empty shard
        check_both_ways(env, *group, balanced_case(global, scatter, gather, env.size(), 4));
      }
    }
  }
  TensorCase lumped = balanced_case({1, 9, 6, 72}, 2, 1, env.size());  // all of it on one rank
  lumped.scatter_splits.assign(lumped.scatter_splits.size(), 0);
  lumped.scatter_splits.back() = 6;
  check_both_ways(env, *group, lumped);
  for (const std::int64_t width : {1, 4, 72, 80, 96}) {
    check_both_ways(env, *group, balanced_case({1, 5, ranks, width}, 2, 1, env.size()));
  }
  check_both_ways(env, *group, balanced_case({2, 0, 4, 8}, 2, 1, env.size()));  // nothing at all
  group->destroy();
}

void defaults_are_even(RankEnv& env) {  // no splits, dims counted from the end
  const auto group = make_group(env);
  const std::int64_t ranks = env.size();
  const TensorCase tensor = balanced_case({1, 4 * ranks, 2 * ranks, 8}, 2, 1, env.size(), 4);
  CodedTensor coded(tensor, env.rank(), 5);
  TensorRequest request = coded.request();
  request.scatter_splits.reset();
  request.gather_splits.reset();
  request.scatter_dim = -2;
  request.gather_dim = -3;
  group->a2a(request, coded.src(), coded.dst());
  EXPECT_EQ(coded.mismatches(), 0);
  group->destroy();
}

void qkv_with_unequal_heads(RankEnv& env) {
  const auto group = make_group(env);
  const std::int64_t ranks = env.size();
  const TensorCase q = balanced_case({1, 3 * ranks + 2, 4 * ranks, 16}, 2, 1, env.size());
  TensorCase k = balanced_case({1, 3 * ranks + 2, ranks, 16}, 2, 1, env.size());
  TensorCase v = balanced_case({1, 3 * ranks + 2, ranks - 1, 8}, 2, 1, env.size(), 4);
  k.in = Layout::kFused;
  v.in = Layout::kSwapped;
  EXPECT_EQ(exchange_coded(*group, "a2a_qkv", {q, k, v}, 11), 0);

  CodedTensor a(q, env.rank(), 1), b(k, env.rank(), 2), c(v, env.rank(), 3);
  group->a2a_qkv({a.request(), b.request(), c.request()}, {a.src(), b.src(), c.src()}, {a.dst(), b.dst(), c.dst()});
  EXPECT_EQ(a.mismatches() + b.mismatches() + c.mismatches(), 0);
  const Moved moved = moved_by({q, k, v}, env.rank(), env.size());
  EXPECT_EQ(group->counters().at("native_bytes"), 2 * moved.wire_bytes);
  EXPECT_EQ(group->counters().at("own_bytes"), 2 * moved.own_bytes);
  group->destroy();
}

void all_to_all_single_of_bytes(RankEnv& env) {
  const auto group = make_group(env);
  for (const std::int64_t part : {0, 1, 7, 4096, 70000}) {
    std::string src, expected;
    for (int peer = 0; peer < env.size(); ++peer) {
      src.append(static_cast<std::size_t>(part), static_cast<char>(16 * env.rank() + peer));
      expected.append(static_cast<std::size_t>(part), static_cast<char>(16 * peer + env.rank()));
    }
    std::string dst(src.size(), '?');
    group->all_to_all_single(src.data(), dst.data(), static_cast<std::int64_t>(src.size()));
    EXPECT_EQ(dst, expected) << part << " bytes a rank";
  }
  group->destroy();
}

void earlier_results_stay(RankEnv& env) {
  const auto group = make_group(env);
  const TensorCase tensor = balanced_case({1, 8 * env.size() + 3, 2 * env.size(), 8}, 2, 1, env.size());
  std::vector<CodedTensor> coded;
  for (std::uint64_t call = 0; call < 9; ++call) coded.emplace_back(tensor, env.rank(), call);
  for (CodedTensor& call : coded) {
    group->a2a(call.request(), call.src(), call.dst());
    call.overwrite_input();
  }
  for (const CodedTensor& call : coded) EXPECT_EQ(call.mismatches(), 0);
  group->destroy();
}

void one_plan_many_times(RankEnv& env) {
  const auto group = make_group(env);
  const TensorCase tensor = balanced_case({2, 3 * env.size(), env.size(), 4}, 2, 1, env.size());
  const auto plan = group->plan("a2a", {request_of(tensor, env.rank())});
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    CodedTensor coded(tensor, env.rank(), seed);
    group->exchange(*plan, {coded.src()}, {coded.dst()});
    EXPECT_EQ(coded.mismatches(), 0);
  }
  EXPECT_EQ(group->counters().at("native_bytes"), 5 * plan->wire_bytes());
  EXPECT_EQ(group->counters().at("own_bytes"), 5 * plan->own_bytes());
  group->destroy();
}

// The same exchanges on all ranks, each rank late at random, inputs overwritten at once.
void random_exchanges_with_delays(RankEnv& env) {
  const auto group = make_group(env);
  std::mt19937 common(2024), own(static_cast<unsigned>(77 + env.rank()));
  const auto pick = [&](int most) { return static_cast<std::int64_t>(common() % static_cast<unsigned>(most + 1)); };
  Moved moved;
  for (int call = 0; call < 200; ++call) {
    std::vector<TensorCase> tensors;
    for (std::int64_t count = pick(2); count >= 0; --count) {
      const Sizes global{1 + pick(1), pick(3 * env.size()), pick(2 * env.size()), 1 + pick(32)};
      TensorCase tensor = balanced_case(global, 2, 1, env.size(), 1 << pick(3));
      tensor.in = kInputLayouts[pick(5)];
      tensor.out = kOutputLayouts[pick(3)];
      tensors.push_back(pick(1) == 0 || tensor.in == Layout::kExpanded ? tensor : inverse(tensor));
    }
    if (own() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 1500));
    EXPECT_EQ(exchange_coded(*group, "random", tensors, static_cast<std::uint64_t>(call)), 0) << "call " << call;
    const Moved one = moved_by(tensors, env.rank(), env.size());
    moved.wire_bytes += one.wire_bytes;
    moved.own_bytes += one.own_bytes;
  }
  EXPECT_EQ(group->counters().at("calls"), 200);
  EXPECT_EQ(group->counters().at("native_bytes"), moved.wire_bytes);
  EXPECT_EQ(group->counters().at("own_bytes"), moved.own_bytes);
  group->destroy();
}

}  // namespace

std::vector<ConformanceCase> exchange_cases() {
  return {{"exchange_layouts_and_element_sizes", layouts_and_element_sizes},
          {"exchange_dims_and_splits", dims_and_splits},
          {"exchange_defaults_are_even", defaults_are_even},
          {"exchange_qkv_with_unequal_heads", qkv_with_unequal_heads},
          {"exchange_all_to_all_single_of_bytes", all_to_all_single_of_bytes},
          {"exchange_earlier_results_stay", earlier_results_stay},
          {"exchange_one_plan_many_times", one_plan_many_times},
          {"exchange_random_exchanges_with_delays", random_exchanges_with_delays}};
}

}  // namespace fast_ulysses::tests
