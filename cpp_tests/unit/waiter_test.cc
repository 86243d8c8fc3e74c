#include "core/waiter.h"

#include <gtest/gtest.h>

#include "support/thread_env.h"

namespace fast_ulysses::tests {
namespace {

constexpr auto kDestroyed = static_cast<std::uint32_t>(RankState::kDestroyed);
const std::vector<int> kRankOne{1};

// Runs `body(board, waiter)` on rank 0; rank 1 only lends its page.
void on_rank_zero(double timeout_s, const std::function<void(ControlBoard&, Waiter&)>& body) {
  run_ranks(2, [&](RankEnv& env) {
    ControlBoard board("sp", env.world());
    if (env.rank() == 0) {
      Waiter waiter(board, timeout_s, {});
      body(board, waiter);
    }
    env.barrier();
  });
}

TEST(Waiter, ReturnsAtOnceWhenReady) {
  on_rank_zero(0.001, [](ControlBoard&, Waiter& waiter) {
    int looks = 0;
    waiter.until(
        "a2a", [&] { return ++looks > 0; }, [] { return kRankOne; });
    EXPECT_EQ(looks, 1);
  });
}

TEST(Waiter, NamesWhoIsMissingAndTellsAll) {
  on_rank_zero(0.2, [](ControlBoard& board, Waiter& waiter) {
    const Outcome outcome = outcome_of([&] {
      waiter.until(
          "a2a 7", [] { return false; }, [] { return kRankOne; });
    });
    EXPECT_EQ(outcome.code, ErrorCode::kPeerTimeout);
    EXPECT_NE(outcome.text.find("group 'sp', rank 0 of 2: a2a 7: not arrived after 0.2 s: rank 1 (pid "),
              std::string::npos)
        << outcome.text;
    EXPECT_NE(board.page(1).error_word.load(), 0u);
    EXPECT_EQ(board.mine().sleeping.load(), 0u) << "also when it throws";
  });
}

TEST(Waiter, ARankThatLeftWithoutArrivingIsAnError) {
  on_rank_zero(30, [](ControlBoard& board, Waiter& waiter) {
    board.page(1).state.store(kDestroyed);
    const Outcome outcome = outcome_of([&] {
      waiter.until(
          "a2a", [] { return false; }, [] { return kRankOne; });
    });
    EXPECT_EQ(outcome.code, ErrorCode::kPeerError);
    EXPECT_NE(outcome.text.find("has destroyed the group, and has not arrived"), std::string::npos) << outcome.text;
    EXPECT_LT(outcome.seconds, 5.0);
  });
}

// The peer arrives and leaves between the waiter's two looks: at who is missing, and at who is gone.
TEST(Waiter, ARankThatArrivedAndThenLeftIsNone) {
  on_rank_zero(30, [](ControlBoard& board, Waiter& waiter) {
    bool arrived = false;
    const auto missing = [&] {
      std::vector<int> ranks;
      if (!arrived) ranks = kRankOne;
      arrived = true;
      board.page(1).state.store(kDestroyed);
      return ranks;
    };
    EXPECT_NO_THROW(waiter.until(
        "destroy", [&] { return arrived; }, missing));
  });
}

// The peer reports an error and leaves: what it reported is the cause, not that it left.
TEST(Waiter, WhatARankReportedBeforeItLeftCounts) {
  on_rank_zero(30, [](ControlBoard& board, Waiter& waiter) {
    const auto missing = [&] {
      board.page(1).error_text.store("out of memory");
      board.mine().error_word.store(static_cast<std::uint64_t>(ErrorCode::kCudaError) | 1 << 8);
      board.page(1).state.store(kDestroyed);
      return kRankOne;
    };
    const Outcome outcome = outcome_of([&] {
      waiter.until(
          "a2a", [] { return false; }, missing);
    });
    EXPECT_EQ(outcome.code, ErrorCode::kCudaError);
    EXPECT_NE(outcome.text.find("a2a: rank 1 reported: out of memory"), std::string::npos) << outcome.text;
  });
}

TEST(Waiter, IsWokenByARing) {
  double seconds = 1e9;
  run_ranks(2, [&](RankEnv& env) {
    ControlBoard board("sp", env.world());
    std::atomic<std::uint64_t>& word = board.page(0).flags[1].parity[0];
    if (env.rank() == 0) {
      Waiter waiter(board, 30, {});
      const Outcome outcome = outcome_of([&] {
        waiter.until(
            "a2a", [&] { return word.load() == 5; }, [] { return kRankOne; });
      });
      seconds = outcome.seconds;
      EXPECT_EQ(outcome.code, ErrorCode::kNone) << outcome.text;
    } else {
      sleep_ms(250);
      word.store(5);
      board.ring(0);
    }
    env.barrier();
  });
  EXPECT_LT(seconds, 5.0);
}

}  // namespace
}  // namespace fast_ulysses::tests
