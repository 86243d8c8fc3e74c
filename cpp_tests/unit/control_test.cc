#include "core/control.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>

#include "support/thread_env.h"

namespace fast_ulysses::tests {
namespace {

TEST(ControlBoard, RecordsCanBeReadByPeers) {
  run_ranks(3, [](RankEnv& env) {
    ControlBoard board("sp", env.world());
    EXPECT_EQ(board.who(), "group 'sp', rank " + std::to_string(env.rank()) + " of 3");
    board.record(100 + static_cast<std::uint32_t>(env.rank()), "call of rank " + std::to_string(env.rank()));
    env.barrier();
    for (int peer = 0; peer < 3; ++peer) {
      EXPECT_EQ(board.recorded(peer, 100 + static_cast<std::uint32_t>(peer)), "call of rank " + std::to_string(peer));
      EXPECT_EQ(board.page(peer).pid.load(), getpid());
      EXPECT_TRUE(board.alive(peer));
    }
    EXPECT_NE(board.recorded(0, 999).find("999"), std::string::npos) << "a signature nobody recorded is still named";
    env.barrier();
  });
}

TEST(ControlBoard, TheTableIsBoundedAndKeepsTheLatest) {
  run_ranks(1, [](RankEnv& env) {
    ControlBoard board("sp", env.world());
    for (std::uint32_t call = 1; call <= 3 * kCallRecords; ++call) {
      board.record(call, "call " + std::to_string(call));
      board.record(call, "call " + std::to_string(call));  // again: takes no other place
    }
    for (std::uint32_t call = 1; call <= 3 * kCallRecords; ++call) {
      const bool kept = call > 2 * kCallRecords;
      EXPECT_EQ(board.recorded(0, call) == "call " + std::to_string(call), kept) << call;
    }
  });
}

TEST(ControlBoard, DescribesWhereARankIs) {
  run_ranks(1, [](RankEnv& env) {
    ControlBoard board("sp", env.world());
    const std::string who = "rank 0 (pid " + std::to_string(getpid()) + ")";
    EXPECT_EQ(board.describe(0), who + " is at op 0, outside any call");
    board.record(42, "a2a float32 [1, 2, 3]");
    board.mine().op.store(117);
    board.mine().current.store(42);
    EXPECT_EQ(board.describe(0), who + " is at op 117, in a2a float32 [1, 2, 3]");
    board.mine().state.store(static_cast<std::uint32_t>(RankState::kDestroyed));
    EXPECT_EQ(board.describe(0), who + " has destroyed the group");
  });
}

TEST(ControlBoard, TheFirstErrorStaysEverywhere) {
  run_ranks(3, [](RankEnv& env) {
    ControlBoard board("sp", env.world());
    EXPECT_NO_THROW(board.throw_if_error("a2a"));
    env.barrier();
    if (env.rank() == 1) {
      EXPECT_THROW(board.fail(ErrorCode::kPeerTimeout, "nobody came"), PeerTimeout);
    }
    env.barrier();
    if (env.rank() == 2) {
      EXPECT_THROW(board.fail(ErrorCode::kCollectiveMismatch, "later"), CollectiveMismatch) << "its own finding";
    }
    if (env.rank() == 1) board.publish_error(ErrorCode::kPeerError, "later still");
    env.barrier();
    EXPECT_TRUE(board.in_error());
    const Outcome outcome = outcome_of([&] { board.throw_if_error("a2a"); });
    EXPECT_EQ(outcome.code, ErrorCode::kPeerTimeout) << outcome.text;
    EXPECT_NE(outcome.text.find("group 'sp', rank 1 of 3: nobody came"), std::string::npos) << outcome.text;
    EXPECT_EQ(outcome.text.find("rank 1 reported") != std::string::npos, env.rank() != 1) << outcome.text;
    env.barrier();
  });
}

// abort() comes from another thread than the one that waits and fails.
TEST(ControlBoard, TwoThreadsMayFailAtOnce) {
  for (int round = 0; round < 200; ++round) {
    run_ranks(1, [](RankEnv& env) {
      ControlBoard board("sp", env.world());
      const std::string left(300, 'l'), right(1500, 'r');
      std::thread other([&] { board.publish_error(ErrorCode::kPeerError, left); });
      board.publish_error(ErrorCode::kPeerError, right);
      other.join();
      const std::string text = board.page(0).error_text.load();
      EXPECT_TRUE(text == left || text == right) << text;
    });
  }
}

}  // namespace
}  // namespace fast_ulysses::tests
