// Life of groups: growth, several at once, overlapping ones, the end.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "support/conformance.h"
#include "support/groups.h"

namespace fast_ulysses::tests {
namespace {

TensorCase tensor_of(int ranks, std::int64_t tokens = 9, int elem_bytes = 2) {
  return balanced_case({1, tokens, 2 * ranks + 1, 8}, 2, 1, ranks, elem_bytes);
}

void larger_calls_grow_the_windows(RankEnv& env) {
  const auto group = make_group(env);
  const std::int64_t many = env.size() > 1 ? 1 : 0;  // one rank alone has no windows
  EXPECT_EQ(group->counters().at("capacity_bytes"), 0);
  std::int64_t growths = 0, handshakes = 0, calls = 0, capacity = 0;
  for (const std::int64_t tokens : {10, 3000, 20, 3000, 6000, 1}) {
    const TensorCase tensor = tensor_of(env.size(), tokens);
    EXPECT_EQ(exchange_coded(*group, "a2a", {tensor}, 1), 0) << tokens;
    const std::int64_t need = group->plan("a2a", {request_of(tensor, env.rank())})->window_bytes();
    const bool grew = many && need > capacity;
    growths += grew;
    handshakes += many + grew;
    ++calls;
    const auto counters = group->counters();
    capacity = counters.at("capacity_bytes");
    EXPECT_GE(capacity, many * need);
    EXPECT_EQ(counters.at("growths"), growths) << tokens;
    EXPECT_EQ(counters.at("handshakes"), handshakes) << tokens;
    EXPECT_EQ(counters.at("inserted_handshakes"), 0) << "two windows in turn need none";
    EXPECT_EQ(counters.at("calls"), calls);
  }
  group->destroy();
}

void reserve_and_trim(RankEnv& env) {
  GroupOptions options = test_options();
  options.heap_bytes = 1000;
  const auto group = UlyssesGroup::create(options, env.world());
  const bool many = env.size() > 1;
  if (many) {
    EXPECT_GE(group->counters().at("capacity_bytes"), 1000);
  }
  group->reserve(1 << 20);
  const std::int64_t reserved = group->counters().at("capacity_bytes");
  if (many) {
    EXPECT_GE(reserved, 1 << 20);
  }
  EXPECT_EQ(exchange_coded(*group, "a2a", {tensor_of(env.size(), 100)}, 1), 0);
  EXPECT_EQ(group->counters().at("growths"), 0);
  group->reserve(1 << 10);
  EXPECT_EQ(group->counters().at("capacity_bytes"), reserved) << "smaller than what is there";
  group->reserve(0);
  EXPECT_EQ(group->counters().at("capacity_bytes"), reserved) << "nothing to reserve";
  EXPECT_THROW(group->reserve(-1), InvalidArgument);
  group->trim();
  EXPECT_EQ(group->counters().at("capacity_bytes"), 0);
  group->trim();
  EXPECT_EQ(exchange_coded(*group, "a2a", {tensor_of(env.size(), 100)}, 2), 0);
  EXPECT_EQ(group->counters().at("growths"), many ? 1 : 0);
  group->destroy();
}

void more_than_the_memory_is_refused(RankEnv& env) {
  const auto group = make_group(env);
  for (const std::int64_t bytes : {std::int64_t{1} << 45, std::int64_t{1} << 62}) {
    if (env.size() == 1) {
      group->reserve(bytes);  // one rank alone has no windows
    } else {
      EXPECT_THROW(group->reserve(bytes), TransportError) << bytes;
    }
    EXPECT_THROW(group->empty_window(bytes), TransportError) << bytes;
  }
  group->check();
  EXPECT_EQ(exchange_coded(*group, "a2a", {tensor_of(env.size())}, 1), 0) << "a smaller call works";
  group->destroy();
}

void many_groups_at_once(RankEnv& env) {
  std::vector<std::unique_ptr<UlyssesGroup>> groups;
  for (int i = 0; i < 6; ++i) groups.push_back(make_group(env, "group " + std::to_string(i)));
  for (std::uint64_t round = 0; round < 4; ++round) {
    for (std::size_t i = 0; i < groups.size(); ++i) {
      if (i % 2 == 1 && round % 2 == 1) continue;  // not all of them equally often
      EXPECT_EQ(exchange_coded(*groups[i], "a2a", {tensor_of(env.size(), 5 + 40 * static_cast<int>(i))}, round), 0);
    }
  }
  for (std::size_t i = 0; i < groups.size(); i += 2) groups[i]->destroy();  // neither in order nor in reverse
  EXPECT_EQ(exchange_coded(*groups[1], "a2a", {tensor_of(env.size())}, 9), 0);
  for (std::size_t i = groups.size(); i-- > 0;) groups[i]->destroy();  // idempotent for those that are gone
}

void run_in(RankEnv& env, const std::vector<int>& members, int calls) {
  const auto bootstrap = env.subgroup(members);
  if (!bootstrap) return;
  const auto group = UlyssesGroup::create(test_options("part"), *bootstrap);
  EXPECT_EQ(members[static_cast<std::size_t>(group->rank())], env.rank());
  for (int call = 0; call < calls; ++call) {
    EXPECT_EQ(exchange_coded(*group, "a2a", {tensor_of(group->size(), 30)}, static_cast<std::uint64_t>(call)), 0);
  }
  group->destroy();
}

void subgroups_in_any_order(RankEnv& env) {
  const int last = env.size() - 1;
  std::vector<int> all, backwards, even, odd;
  for (int rank = 0; rank <= last; ++rank) {
    all.push_back(rank);
    backwards.insert(backwards.begin(), rank);
    (rank % 2 == 0 ? even : odd).push_back(rank);
  }
  if (last >= 1) run_in(env, {0, last}, 3);  // one pair, then all
  run_in(env, all, 2);
  run_in(env, backwards, 3);
  if (env.size() == 4) run_in(env, {3, 1, 2, 0}, 3);
  run_in(env, even, 7);  // two groups side by side, with nothing in common
  if (!odd.empty()) run_in(env, odd, 3);
}

void overlapping_groups(RankEnv& env) {
  if (env.size() < 3) return;
  const auto left = env.subgroup({0, 1}), right = env.subgroup({1, 2});
  std::unique_ptr<UlyssesGroup> in_left, in_right;
  if (left) in_left = UlyssesGroup::create(test_options("left"), *left);
  if (right) in_right = UlyssesGroup::create(test_options("right"), *right);
  for (std::uint64_t call = 0; call < 20; ++call) {
    if (in_left) {
      EXPECT_EQ(exchange_coded(*in_left, "a2a", {tensor_of(2, 11)}, call), 0);
    }
    if (in_right && call % 3 != 0) {
      EXPECT_EQ(exchange_coded(*in_right, "a2a", {tensor_of(2, 17, 4)}, call), 0);
    }
  }
  if (in_right) in_right->destroy();
  if (in_left) in_left->destroy();
}

void nothing_after_destroy(RankEnv& env) {
  const auto group = make_group(env, "gone");
  EXPECT_EQ(exchange_coded(*group, "a2a", {tensor_of(env.size())}, 1), 0);
  group->destroy();
  group->destroy();
  try {
    exchange_coded(*group, "a2a", {tensor_of(env.size())}, 1);
    ADD_FAILURE() << "an exchange in a group that was destroyed";
  } catch (const StateError& error) {
    EXPECT_NE(std::string(error.what()).find("gone"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("destroyed"), std::string::npos) << error.what();
  }
  EXPECT_THROW(group->reserve(1 << 20), StateError);
  EXPECT_THROW(group->trim(), StateError);
  EXPECT_THROW(group->empty_window(8), StateError);
  group->abort("too late to matter");
  EXPECT_EQ(group->counters().at("calls"), 1);
  EXPECT_EQ(group->rank(), env.rank());
}

void cycles_leave_nothing(RankEnv& env) {
  const auto cycle = [&](int i) {
    const auto group = make_group(env, "cycle " + std::to_string(i));
    EXPECT_EQ(exchange_coded(*group, "a2a", {tensor_of(env.size(), 100 + i)}, 1), 0);
    group->empty_window(5000);
    group->destroy();
  };
  cycle(0);
  env.barrier();
  const Holdings before = holdings();
  env.barrier();
  for (int i = 1; i <= 15; ++i) cycle(i);
  env.barrier();
  const Holdings after = holdings();
  env.barrier();
  if (env.one_process() && env.rank() != 0) return;  // counting opens a descriptor, which the others see
  EXPECT_LE(after.descriptors, before.descriptors + (env.one_process() ? 2 * env.size() : 0));
  EXPECT_EQ(after.mappings, before.mappings);
}

}  // namespace

std::vector<ConformanceCase> group_cases() {
  return {{"group_larger_calls_grow_the_windows", larger_calls_grow_the_windows},
          {"group_reserve_and_trim", reserve_and_trim},
          {"group_more_than_the_memory_is_refused", more_than_the_memory_is_refused},
          {"group_many_groups_at_once", many_groups_at_once},
          {"group_subgroups_in_any_order", subgroups_in_any_order},
          {"group_overlapping_groups", overlapping_groups},
          {"group_nothing_after_destroy", nothing_after_destroy},
          {"group_cycles_leave_nothing", cycles_leave_nothing}};
}

}  // namespace fast_ulysses::tests
