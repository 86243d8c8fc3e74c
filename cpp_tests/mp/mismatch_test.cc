// One process makes another call than the others: all hear of it by both names, and a new group works.
#include <gtest/gtest.h>

#include "support/groups.h"
#include "support/mpi_env.h"
#include "support/thread_env.h"

namespace fast_ulysses::tests {
namespace {

void exchange_of(UlyssesGroup& group, std::int64_t width) {
  const int ranks = group.size();
  EXPECT_EQ(exchange_coded(group, "a2a", {balanced_case({1, 4 * ranks, 2 * ranks, width}, 2, 1, ranks)}, 1), 0);
}

void check(RankEnv& env, const Outcome& outcome, const std::string& one, const std::string& other) {
  EXPECT_EQ(outcome.code, ErrorCode::kCollectiveMismatch) << outcome.text;
  EXPECT_NE(outcome.text.find(one), std::string::npos) << "rank " << env.rank() << ": " << outcome.text;
  EXPECT_NE(outcome.text.find(other), std::string::npos) << "rank " << env.rank() << ": " << outcome.text;
}

TEST(Mismatch, OfShapesAndOfDestroy) {
  MpiEnv env;
  if (env.size() == 1) GTEST_SKIP() << "one rank has nobody to differ from";
  const bool other = env.rank() == env.size() - 1;
  for (const bool shapes : {true, false}) {
    const auto group = make_group(env);
    exchange_of(*group, 8);
    env.barrier();
    if (shapes) {
      check(env, outcome_of([&] { exchange_of(*group, other ? 16 : 8); }), ", 8] scatter", ", 16] scatter");
    } else {
      check(env, outcome_of([&] { other ? group->destroy() : exchange_of(*group, 8); }), "a2a bits16", "destroy");
    }
    EXPECT_EQ(outcome_of([&] { exchange_of(*group, 8); }).code, ErrorCode::kStateError);
    group->destroy();
    env.barrier();
  }
  const auto group = make_group(env);
  exchange_of(*group, 8);
  group->destroy();
}

}  // namespace
}  // namespace fast_ulysses::tests
