#include "core/meeting.h"

#include <gtest/gtest.h>

#include "core/vote.h"
#include "support/thread_env.h"

namespace fast_ulysses::tests {
namespace {

struct Host {
  Host(RankEnv& env, double timeout_s)
      : board("sp", env.world()), waiter(board, timeout_s, {}), meeting(board, waiter) {}
  ControlBoard board;
  Waiter waiter;
  Meeting meeting;
};

TEST(Meeting, GathersStringsOfAnyLength) {
  run_ranks(4, [](RankEnv& env) {
    Host host(env, 30);
    for (int number = 0; number < 300; ++number) {
      const auto mine = [number](int rank) {
        return std::string(static_cast<std::size_t>((number * 7 + rank * 311) % (kMeetingBytes + 1)),
                           static_cast<char>('a' + (number + rank) % 26));
      };
      if (number % 50 == env.rank()) sleep_ms(5);
      const std::vector<std::string> all = host.meeting.allgather(mine(env.rank()));
      ASSERT_EQ(all.size(), 4u);
      for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(all[static_cast<std::size_t>(rank)], mine(rank)) << number;
      if (number % 3 == 0) host.meeting.barrier();
    }
    env.barrier();
  });
}

TEST(Meeting, OfOneRankIsShort) {
  run_ranks(1, [](RankEnv& env) {
    Host host(env, 1);
    EXPECT_EQ(host.meeting.allgather("x"), std::vector<std::string>{"x"});
  });
}

TEST(Meeting, EndsWhenSomebodyIsMissing) {
  const std::vector<Outcome> outcomes = outcomes_of(3, [](RankEnv& env) {
    Host host(env, 0.3);
    host.meeting.set_purpose("reserve 4096 bytes");
    const Outcome outcome = outcome_of([&] {
      if (env.rank() != 2) host.meeting.barrier();
    });
    env.barrier();
    throw_error(outcome.code, outcome.text);
  });
  for (const int rank : {0, 1}) {
    const Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
    EXPECT_EQ(outcome.code, ErrorCode::kPeerTimeout) << outcome.text;
    EXPECT_NE(outcome.text.find("reserve 4096 bytes"), std::string::npos) << outcome.text;
    EXPECT_NE(outcome.text.find("rank 2 (pid"), std::string::npos) << outcome.text;
  }
}

TEST(Meeting, RefusesWhatDoesNotFit) {
  const std::vector<Outcome> outcomes = outcomes_of(2, [](RankEnv& env) {
    Host host(env, 30);
    const Outcome outcome = outcome_of([&] { host.meeting.allgather(std::string(kMeetingBytes + 1, 'x')); });
    env.barrier();
    throw_error(outcome.code, outcome.text);
  });
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.code, ErrorCode::kStateError) << outcome.text;
}

TEST(Vote, OneFailureIsEveryonesWithTheSameText) {
  for (const bool over_pages : {false, true}) {
    const std::vector<Outcome> outcomes = outcomes_of(3, [over_pages](RankEnv& env) {
      Host host(env, 30);
      Bootstrap& bootstrap = over_pages ? static_cast<Bootstrap&>(host.meeting) : env.world();
      EXPECT_EQ(vote(bootstrap, "step one", [&] { return std::to_string(env.rank()); }),
                (std::vector<std::string>{"0", "1", "2"}));
      const Outcome outcome = outcome_of([&] {
        vote(bootstrap, "step two", [&]() -> std::string {
          if (env.rank() > 0)
            throw StateError("rank " + std::to_string(env.rank()) + " cannot " + std::string(3000, '.'));
          return "fine";
        });
      });
      EXPECT_NO_THROW(vote(bootstrap, "step three", [] { return std::string(); })) << "the next step works";
      env.barrier();
      throw_error(outcome.code, outcome.text);
    });
    for (const Outcome& outcome : outcomes) {
      EXPECT_EQ(outcome.code, ErrorCode::kTransportError) << outcome.text;
      EXPECT_EQ(outcome.text.find("step two failed on rank 1 of 3: rank 1 cannot"), 0u) << outcome.text;
      EXPECT_EQ(outcome.text, outcomes[0].text);
    }
  }
}

}  // namespace
}  // namespace fast_ulysses::tests
