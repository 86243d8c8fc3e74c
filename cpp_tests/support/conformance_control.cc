// Negative controls: the same check that finds nothing wrong in a sound group must find something once a fault is
// planted. What cannot be armed here (one rank alone has no peers) says so by checking nothing.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

#include "support/conformance.h"
#include "support/groups.h"
#include "support/slow_memory.h"

namespace fast_ulysses::tests {
namespace {

// Wrong elements on all ranks, over some exchanges in which each rank in turn is held up between its signal of the call
// before and its first row.
std::int64_t late_rank_mismatches(RankEnv& env) {
  GroupOptions options = test_options("late ranks");
  options.heap_bytes = 1 << 16;
  const auto group = UlyssesGroup::create(options, env.world());
  const TensorCase tensor = balanced_case({1, 8 * env.size(), 2 * env.size(), 8}, 2, 1, env.size());
  const auto bytes = static_cast<std::size_t>(numel(input_sizes(tensor, env.rank())) * tensor.elem_bytes);
  SlowMemory input(bytes);
  std::int64_t wrong = 0;
  for (int round = 0; round < env.size() + 1; ++round) {
    CodedTensor coded(tensor, env.rank(), static_cast<std::uint64_t>(round));
    std::memcpy(input.data(), coded.src(), bytes);
    const auto plan = group->plan("a2a", {coded.request()});
    env.barrier();
    if (round % env.size() == env.rank()) input.hold_up_next_access(40);
    group->exchange(*plan, {input.data()}, {coded.dst()});
    wrong += coded.mismatches();
    env.barrier();
  }
  group->destroy();
  return env.sum(wrong);
}

// Two windows that the caller holds: filled, read for a while by a slow rank, and filled again by ranks that are done.
std::int64_t held_window_mismatches(RankEnv& env) {
  GroupOptions options = test_options("held windows");
  options.heap_bytes = 1 << 16;
  const auto group = UlyssesGroup::create(options, env.world());
  const TensorCase tensor = balanced_case({1, 8 * env.size(), 2 * env.size(), 8}, 2, 1, env.size());
  const int a = group->empty_window(1 << 14), b = group->empty_window(1 << 14);
  std::int64_t wrong = 0;
  for (int round = 0; round < env.size(); ++round) {
    CodedTensor q(tensor, env.rank(), 2), k(tensor, env.rank(), 3), next(tensor, env.rank(), 4);
    const auto into = [&](CodedTensor& coded, int window) {
      void* const memory = group->window_memory(window).get();
      group->exchange(*group->plan("a2a", {coded.request()}), {coded.src()}, {memory}, {window});
    };
    into(q, a);
    into(k, b);
    if (round % env.size() == env.rank()) sleep_ms(40);  // attends
    wrong += q.mismatches_at(group->window_memory(a).get()) + k.mismatches_at(group->window_memory(b).get());
    into(next, a);
    env.barrier();
  }
  group->destroy();
  return env.sum(wrong);
}

void expect_red(RankEnv& env, const char* fault, std::int64_t (*mismatches)(RankEnv&)) {
  EXPECT_EQ(mismatches(env), 0) << "wrong without any fault";
  if (env.size() == 1 || kThreadSanitizer) return;  // no peers; or a fault that is a race by design
  env.barrier();
  if (env.rank() == 0 || !env.one_process()) setenv("FAST_ULYSSES_TEST_FAULT", fault, 1);
  env.barrier();
  EXPECT_GT(mismatches(env), 0) << fault << " was not noticed";
  env.barrier();
  if (env.rank() == 0 || !env.one_process()) unsetenv("FAST_ULYSSES_TEST_FAULT");
  env.barrier();
  EXPECT_EQ(mismatches(env), 0) << "wrong after the fault";
}

void flip_bit(RankEnv& env) { expect_red(env, "flip-bit", late_rank_mismatches); }
void drop_wait(RankEnv& env) { expect_red(env, "drop-wait", late_rank_mismatches); }
void early_signal(RankEnv& env) { expect_red(env, "early-signal", late_rank_mismatches); }
void drop_opening(RankEnv& env) { expect_red(env, "drop-opening", held_window_mismatches); }

}  // namespace

std::vector<ConformanceCase> control_cases() {
  return {{"control_flip_bit", flip_bit},
          {"control_drop_wait", drop_wait},
          {"control_early_signal", early_signal},
          {"control_drop_opening", drop_opening}};
}

}  // namespace fast_ulysses::tests
