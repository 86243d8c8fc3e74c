// Ranks that fork, as data loaders do: a child neither keeps a dead rank alive nor makes a living one look dead.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "support/groups.h"
#include "support/launcher.h"

namespace fast_ulysses::tests {
namespace {

constexpr int kForker = 1;

std::int64_t call(UlyssesGroup& group) {
  return exchange_coded(group, "a2a", {balanced_case({1, 12, 6, 16}, 2, 1, group.size())}, 1);
}

TEST(Worker, ThatOutlivesItsRankDoesNotKeepItAlive) {
  Launcher launcher(3, [](ForkRank& rank) {
    const auto group = UlyssesGroup::create(test_options("sp", 60.0), rank.world());
    call(*group);
    if (rank.rank() == kForker) {
      const pid_t worker = fork();
      if (worker == 0) {
        alarm(60);  // should the test not come to its end
        for (;;) pause();
      }
      rank.set_progress(worker);
      raise(SIGKILL);
    }
    call(*group);
  });
  ASSERT_TRUE(launcher.await_progress(kForker, 1));
  const pid_t worker = launcher.progress(kForker);
  const double dead_s = Launcher::now_s();
  for (const int rank : {0, 2}) EXPECT_TRUE(launcher.await_end(rank, 20)) << "rank " << rank << " hangs";
  EXPECT_EQ(kill(worker, 0), 0) << "the worker should have outlived them";
  kill(worker, SIGKILL);
  const std::vector<Ended> all = launcher.finish();
  for (const std::size_t rank : {0u, 2u}) {
    EXPECT_EQ(all[rank].outcome.code, ErrorCode::kPeerError) << all[rank].outcome.text;
    EXPECT_NE(all[rank].outcome.text.find("rank 1 (pid"), std::string::npos) << all[rank].outcome.text;
    EXPECT_LT(all[rank].at_s - dead_s, 3.0);
  }
}

TEST(Worker, ThatEndsFirstDoesNotTakeItsRankAlong) {
  for (const bool plain : {true, false}) {  // _exit(), and the way through destructors
    Launcher launcher(3, [plain](ForkRank& rank) {
      auto group = UlyssesGroup::create(test_options("sp", 60.0), rank.world());
      call(*group);
      if (rank.rank() == kForker) {
        const pid_t worker = fork();
        if (worker == 0) {
          if (!plain) group.reset();
          _exit(0);
        }
        waitpid(worker, nullptr, 0);
        sleep_ms(500);  // the others look around several times meanwhile
      }
      if (call(*group) != 0) throw std::runtime_error("wrong elements");
      group->destroy();
    });
    for (const Ended& ended : launcher.finish()) {
      EXPECT_EQ(ended.exit_code, 0) << ended.outcome.text << ", signal " << ended.signal;
    }
  }
}

}  // namespace
}  // namespace fast_ulysses::tests
