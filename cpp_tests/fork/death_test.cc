// Ranks that die, stop or leave: the others are told within a bound, by name, and leave well themselves.
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "support/groups.h"
#include "support/launcher.h"

namespace fast_ulysses::tests {
namespace {

constexpr int kVictim = 1;
constexpr int kManyCalls = 200000;  // more than anyone gets to

std::int64_t call(UlyssesGroup& group, std::uint64_t seed) {
  return exchange_coded(group, "a2a", {balanced_case({1, 6 * group.size(), 2 * group.size(), 16}, 2, 1, group.size())},
                        seed);
}

std::unique_ptr<UlyssesGroup> group_of(ForkRank& rank, double timeout_s = 60.0) {
  return UlyssesGroup::create(test_options("sp", timeout_s), rank.world());
}

void calls(ForkRank& rank, UlyssesGroup& group, int count) {
  for (int i = 1; i <= count; ++i) {
    if (call(group, static_cast<std::uint64_t>(i)) != 0) throw std::runtime_error("wrong elements");
    rank.set_progress(i);
  }
}

bool holds(const Ended& ended, const std::string& text) { return ended.outcome.text.find(text) != std::string::npos; }

void expect_told(const Ended& ended, int rank, ErrorCode code, const std::string& text) {
  EXPECT_FALSE(ended.stuck) << "rank " << rank << " hangs";
  EXPECT_EQ(ended.outcome.code, code) << "rank " << rank << ": " << ended.outcome.text;
  EXPECT_TRUE(holds(ended, text)) << "rank " << rank << ": " << ended.outcome.text;
  EXPECT_EQ(ended.exit_code, kErrorExit + static_cast<int>(code)) << "rank " << rank << ", signal " << ended.signal;
}

class Ranks : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { before_ = leftovers(); }
  void TearDown() override {
    const Leftovers after = leftovers();
    EXPECT_EQ(after.shared_memory, before_.shared_memory) << "left in /dev/shm";
    EXPECT_EQ(after.descriptors, before_.descriptors);
  }

 private:
  Leftovers before_;
};

TEST_P(Ranks, KilledInTheMiddleOfCalls) {
  Launcher launcher(GetParam(), [](ForkRank& rank) {
    const auto group = group_of(rank);
    calls(rank, *group, kManyCalls);
  });
  ASSERT_TRUE(launcher.await_progress(kVictim, 300));
  launcher.signal_rank(kVictim, SIGKILL);  // and nobody reaps it until all have ended
  const double killed_s = Launcher::now_s();
  const std::vector<Ended> all = launcher.finish();
  for (int rank = 0; rank < GetParam(); ++rank) {
    const Ended& ended = all[static_cast<std::size_t>(rank)];
    if (rank == kVictim) {
      EXPECT_EQ(ended.signal, SIGKILL);
      continue;
    }
    expect_told(ended, rank, ErrorCode::kPeerError, "rank 1 (pid ");
    EXPECT_TRUE(holds(ended, "is dead, at op ")) << ended.outcome.text;
    EXPECT_LT(ended.at_s - killed_s, 3.0);
  }
}

TEST_P(Ranks, StoppedAndContinued) {
  Launcher launcher(GetParam(), [](ForkRank& rank) {
    const auto group = group_of(rank, 1.0);
    calls(rank, *group, kManyCalls);
  });
  ASSERT_TRUE(launcher.await_progress(kVictim, 50));
  launcher.signal_rank(kVictim, SIGSTOP);
  const double stopped_s = Launcher::now_s();
  for (int rank = 0; rank < GetParam(); ++rank) {
    if (rank != kVictim) {
      EXPECT_TRUE(launcher.await_end(rank, 15)) << "rank " << rank << " hangs";
    }
  }
  launcher.signal_rank(kVictim, SIGCONT);
  const std::vector<Ended> all = launcher.finish();
  for (int rank = 0; rank < GetParam(); ++rank) {
    const Ended& ended = all[static_cast<std::size_t>(rank)];
    if (rank == kVictim) {  // hears of it in the call it was stopped in, or in its next
      expect_told(ended, rank, ErrorCode::kPeerTimeout, "reported");
    } else {
      expect_told(ended, rank, ErrorCode::kPeerTimeout, "rank 1 (pid ");
      EXPECT_LT(ended.at_s - stopped_s, 10.0);
    }
  }
}

TEST_P(Ranks, LeavesWithoutDestroy) {
  for (const bool at_once : {true, false}) {  // by exit() with the group alive, by the end of its scope
    Launcher launcher(GetParam(), [at_once](ForkRank& rank) {
      auto group = group_of(rank);
      calls(rank, *group, 20);
      if (rank.rank() == kVictim) {
        sleep_ms(300);  // the others wait by now
        if (at_once) std::exit(0);
        return;
      }
      call(*group, 1);
    });
    const std::vector<Ended> all = launcher.finish();
    for (int rank = 0; rank < GetParam(); ++rank) {
      const Ended& ended = all[static_cast<std::size_t>(rank)];
      if (rank == kVictim) {
        EXPECT_EQ(ended.exit_code, 0) << "signal " << ended.signal << ", " << ended.outcome.text;
      } else {
        expect_told(ended, rank, ErrorCode::kPeerError, "rank 1 (pid ");
        EXPECT_TRUE(holds(ended, "is dead, at op 20")) << ended.outcome.text;
      }
    }
  }
}

TEST_P(Ranks, DestroyWhileAPeerIsDead) {
  Launcher launcher(GetParam(), [](ForkRank& rank) {
    const auto group = group_of(rank);
    calls(rank, *group, 5);
    if (rank.rank() == kVictim) raise(SIGKILL);
    const Outcome outcome = outcome_of([&] { group->destroy(); });
    group->destroy();  // nothing more to do
    if (outcome_of([&] { call(*group, 1); }).code != ErrorCode::kStateError) throw std::runtime_error("still in use");
    throw_error(outcome.code, outcome.text);
  });
  const std::vector<Ended> all = launcher.finish();
  for (int rank = 0; rank < GetParam(); ++rank) {
    if (rank == kVictim) continue;
    const Ended& ended = all[static_cast<std::size_t>(rank)];
    expect_told(ended, rank, ErrorCode::kPeerError, "is dead");
    EXPECT_LT(ended.outcome.seconds, 10.0);
  }
}

// At each of the meetings of a creation, just before the rank comes to it and just after.
TEST(Creation, EndsWhenARankIsKilledInIt) {
  constexpr int kRanks = 3;
  for (int number = 1; number <= 9; ++number) {
    for (const bool came : {false, true}) {
      Launcher launcher(
          kRanks,
          [number, came](ForkRank& rank) {
            if (rank.rank() == kVictim) {
              rank.on_meeting([number, came](int now, bool after) {
                if (now == number && after == came) raise(SIGKILL);
              });
            }
            GroupOptions options = test_options("sp", 5.0);
            options.heap_bytes = 4096;
            const auto group = UlyssesGroup::create(options, rank.world());
            call(*group, 1);
            throw std::runtime_error("the group works without rank 1");
          },
          0.5);
      const std::vector<Ended> all = launcher.finish(15.0);
      EXPECT_EQ(all[kVictim].signal, SIGKILL) << "creation has fewer meetings than " << number;
      for (int rank = 0; rank < kRanks; ++rank) {
        if (rank == kVictim) continue;
        const Ended& ended = all[static_cast<std::size_t>(rank)];
        EXPECT_FALSE(ended.stuck) << "rank " << rank << " hangs, meeting " << number;
        EXPECT_GT(ended.exit_code, kErrorExit) << ended.outcome.text;
        EXPECT_LT(ended.outcome.seconds, 10.0)
            << "meeting " << number << ", came " << came << ": " << ended.outcome.text;
      }
    }
  }
}

TEST_P(Ranks, EndWellAfterDestroy) {
  Launcher launcher(GetParam(), [](ForkRank& rank) {
    const auto warm = group_of(rank);
    warm->destroy();
    const Holdings before = holdings();
    const auto group = group_of(rank);
    calls(rank, *group, 100);
    group->empty_window(100);
    group->destroy();
    const Holdings after = holdings();
    if (after.descriptors != before.descriptors) throw std::runtime_error("descriptors left");
    if (after.mappings != before.mappings) throw std::runtime_error("mappings left");
  });
  const std::vector<Ended> all = launcher.finish();
  for (const Ended& ended : all) EXPECT_EQ(ended.exit_code, 0) << ended.outcome.text << ", signal " << ended.signal;
}

INSTANTIATE_TEST_SUITE_P(Number, Ranks, testing::Values(2, 3, 4),
                         [](const auto& instance) { return std::to_string(instance.param); });

}  // namespace
}  // namespace fast_ulysses::tests
