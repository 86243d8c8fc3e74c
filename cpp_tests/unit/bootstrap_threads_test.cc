#include "core/bootstrap_threads.h"

#include <gtest/gtest.h>

#include <thread>

#include "fast_ulysses/errors.h"
#include "support/thread_env.h"

namespace fast_ulysses::tests {
namespace {

TEST(ThreadHub, GathersByRank) {
  run_ranks(5, [](RankEnv& env) {
    for (int round = 0; round < 500; ++round) {
      const std::vector<std::string> all = env.world().allgather(std::to_string(100 * round + env.rank()));
      ASSERT_EQ(all.size(), 5u);
      for (int rank = 0; rank < 5; ++rank) {
        EXPECT_EQ(all[static_cast<std::size_t>(rank)], std::to_string(100 * round + rank));
      }
    }
  });
}

TEST(ThreadHub, DoesNotWaitForever) {
  ThreadHub hub(2, 0.1);
  const auto alone = hub.bootstrap(1);
  EXPECT_EQ(alone->rank(), 1);
  EXPECT_EQ(alone->size(), 2);
  EXPECT_THROW(alone->barrier(), PeerTimeout);
}

}  // namespace
}  // namespace fast_ulysses::tests
