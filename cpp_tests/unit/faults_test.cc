// Ranks that are late, missing, interrupted or wrong: every wait ends, with an error that says why.
#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <thread>

#include "core/control.h"
#include "fast_ulysses/log.h"
#include "support/groups.h"
#include "support/thread_env.h"

namespace fast_ulysses::tests {
namespace {

TensorCase tensor_of(int ranks) { return balanced_case({1, 4 * ranks, 2 * ranks, 8}, 2, 1, ranks); }

std::int64_t usual(UlyssesGroup& group) { return exchange_coded(group, "a2a", {tensor_of(group.size())}, 1); }

bool holds(const Outcome& outcome, const std::string& text) { return outcome.text.find(text) != std::string::npos; }

std::unique_ptr<UlyssesGroup> group_with(RankEnv& env, double timeout_s, std::function<void()> poll = {}) {
  GroupOptions options = test_options("sp", timeout_s);
  options.poll_interrupt = std::move(poll);
  return UlyssesGroup::create(options, env.world());
}

TEST(Fault, AMissingRankIsNamed) {
  std::vector<Outcome> late(3);
  const std::vector<Outcome> outcomes = outcomes_of(3, [&](RankEnv& env) {
    const auto group = group_with(env, 0.5);
    usual(*group);
    const Outcome outcome = outcome_of([&] {
      if (env.rank() == 1) sleep_ms(1500);
      usual(*group);
    });
    late[static_cast<std::size_t>(env.rank())] = outcome_of([&] { group->check(); });
    group->destroy();
    env.barrier();
    if (outcome.code != ErrorCode::kNone) throw_error(outcome.code, outcome.text);
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.code, ErrorCode::kPeerTimeout) << outcome.text;
    EXPECT_TRUE(holds(outcome, "rank 1 (pid")) << outcome.text;
    EXPECT_TRUE(holds(outcome, "is at op 1, outside any call")) << outcome.text;
    EXPECT_TRUE(holds(outcome, "a2a bits16 [1, 12, 6, 8]")) << outcome.text;
    EXPECT_TRUE(holds(outcome, "0.5 s")) << outcome.text;
  }
  for (const Outcome& outcome : late) EXPECT_EQ(outcome.code, ErrorCode::kStateError) << outcome.text;
}

TEST(Fault, ALateRankIsNoFault) {
  run_ranks(3, [](RankEnv& env) {
    const auto group = group_with(env, 30);
    for (int round = 0; round < 3; ++round) {
      if (env.rank() == round) sleep_ms(500);
      EXPECT_EQ(usual(*group), 0);
    }
    if (env.rank() == 2) sleep_ms(300);
    group->destroy();
  });
}

TEST(Fault, AbortEndsWaitsEverywhere) {
  std::vector<Outcome> checks(2);
  const std::vector<Outcome> outcomes = outcomes_of(2, [&](RankEnv& env) {
    const auto group = group_with(env, 30);
    usual(*group);
    env.barrier();
    if (env.rank() == 0) {
      std::thread other([&] {
        sleep_ms(200);
        group->abort("the user is gone");
      });
      const Outcome outcome = outcome_of([&] { usual(*group); });
      other.join();
      checks[0] = outcome_of([&] { group->check(); });
      env.barrier();
      group->destroy();
      throw_error(outcome.code, outcome.text);
    }
    env.barrier();
    checks[1] = outcome_of([&] { group->check(); });
    const Outcome outcome = outcome_of([&] { usual(*group); });
    group->destroy();
    throw_error(outcome.code, outcome.text);
  });
  EXPECT_EQ(outcomes[0].code, ErrorCode::kPeerError) << outcomes[0].text;
  EXPECT_LT(outcomes[0].seconds, 5.0);
  EXPECT_EQ(checks[0].code, ErrorCode::kStateError) << checks[0].text;
  EXPECT_EQ(checks[1].code, ErrorCode::kPeerError) << "told once as what it is: " << checks[1].text;
  EXPECT_EQ(outcomes[1].code, ErrorCode::kStateError) << outcomes[1].text;
  for (const Outcome& outcome : {outcomes[0], outcomes[1], checks[0], checks[1]}) {
    EXPECT_TRUE(holds(outcome, "the user is gone")) << outcome.text;
    EXPECT_TRUE(holds(outcome, "rank 0 of 2")) << outcome.text;
  }
}

TEST(Fault, AbortReachesRanksThatWait) {
  const std::vector<Outcome> outcomes = outcomes_of(3, [&](RankEnv& env) {
    const auto group = group_with(env, 30);
    usual(*group);
    if (env.rank() != 1) return static_cast<void>(usual(*group));
    sleep_ms(200);
    group->abort("out of memory");
    group->destroy();
  });
  for (const int rank : {0, 2}) {
    const Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
    EXPECT_EQ(outcome.code, ErrorCode::kPeerError);
    EXPECT_TRUE(holds(outcome, "rank 1 reported")) << outcome.text;
    EXPECT_TRUE(holds(outcome, "out of memory")) << outcome.text;
  }
  EXPECT_EQ(outcomes[1].code, ErrorCode::kNone) << outcomes[1].text;
}

struct Interrupt : std::runtime_error {
  Interrupt() : std::runtime_error("Ctrl-C") {}
};

TEST(Fault, AnInterruptEndsTheWait) {
  std::atomic<bool> interrupt{false};
  double seconds = 0;
  const std::vector<Outcome> outcomes = outcomes_of(2, [&](RankEnv& env) {
    const auto group = group_with(env, 30, [&interrupt, rank = env.rank()] {
      if (rank == 0 && interrupt.load()) throw Interrupt();
    });
    usual(*group);
    env.barrier();
    Outcome outcome;
    if (env.rank() == 0) {
      interrupt = true;
      bool interrupted = false;
      outcome = outcome_of([&] {
        try {
          usual(*group);
        } catch (const Interrupt&) {
          interrupted = true;
        }
      });
      seconds = outcome.seconds;
      EXPECT_TRUE(interrupted) << outcome.text;
      EXPECT_THROW(usual(*group), StateError);
    }
    env.barrier();
    if (env.rank() == 1) outcome = outcome_of([&] { usual(*group); });
    group->destroy();
    if (outcome.code != ErrorCode::kNone) throw_error(outcome.code, outcome.text);
  });
  EXPECT_LT(seconds, 1.0) << "a tenth of a second is meant";
  EXPECT_EQ(outcomes[1].code, ErrorCode::kPeerError) << outcomes[1].text;
  EXPECT_TRUE(holds(outcomes[1], "interrupted in a2a")) << outcomes[1].text;
}

TEST(Fault, AnInterruptEndsDestroy) {
  const std::vector<Outcome> outcomes = outcomes_of(2, [&](RankEnv& env) {
    const auto group = group_with(env, 30, [rank = env.rank()] {
      if (rank == 0) throw Interrupt();
    });
    if (env.rank() == 0) {
      EXPECT_THROW(group->destroy(), Interrupt);
      group->destroy();  // idempotent
    }
    env.barrier();
    group->destroy();
  });
  EXPECT_EQ(outcomes[1].code, ErrorCode::kPeerError) << outcomes[1].text;
}

TEST(Create, OptionsMustAgree) {
  const auto differ = [](const std::function<void(GroupOptions&)>& change) {
    return outcomes_of(3, [&](RankEnv& env) {
      GroupOptions options = test_options("sp");
      if (env.rank() == 2) change(options);
      UlyssesGroup::create(options, env.world())->destroy();
    });
  };
  const struct {
    std::function<void(GroupOptions&)> change;
    const char* named;
  } changes[] = {{[](GroupOptions& options) { options.name = "tp"; }, "name 'tp'"},
                 {[](GroupOptions& options) { options.heap_bytes = 4096; }, "heap_bytes 4096"},
                 {[](GroupOptions& options) { options.transport = "shm"; }, "transport 'shm'"},
                 {[](GroupOptions& options) { options.transport = "carrier pigeon"; }, "'auto' and 'shm' are"},
                 {[](GroupOptions& options) { options.timeout_s = 0; }, "must be positive"},
                 {[](GroupOptions& options) { options.heap_bytes = -1; }, "must not be negative"}};
  for (const auto& change : changes) {
    for (const Outcome& outcome : differ(change.change)) {
      EXPECT_EQ(outcome.code, ErrorCode::kInvalidArgument) << outcome.text;
      EXPECT_TRUE(holds(outcome, change.named)) << outcome.text;
      EXPECT_TRUE(holds(outcome, "rank 2")) << outcome.text;
      EXPECT_LT(outcome.seconds, 10.0) << "somebody waited for the bootstrap's timeout";
    }
  }
}

TEST(Create, AnUnknownPlantedFaultIsRefused) {
  setenv("FAST_ULYSSES_TEST_FAULT", "drop-everything", 1);
  const std::vector<Outcome> outcomes = outcomes_of(2, [](RankEnv& env) { make_group(env); });
  unsetenv("FAST_ULYSSES_TEST_FAULT");
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.code, ErrorCode::kInvalidArgument) << outcome.text;
}

TEST(Create, HeapLargerThanTheMemory) {
  const std::vector<Outcome> outcomes = outcomes_of(3, [](RankEnv& env) {
    GroupOptions options = test_options("sp");
    options.heap_bytes = std::int64_t{1} << 45;
    const Outcome refused = outcome_of([&] { UlyssesGroup::create(options, env.world()); });
    options.heap_bytes = 1 << 16;
    const auto group = UlyssesGroup::create(options, env.world());
    EXPECT_EQ(usual(*group), 0) << "a smaller one works";
    group->destroy();
    throw_error(refused.code, refused.text);
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.code, ErrorCode::kTransportError) << outcome.text;
    EXPECT_TRUE(holds(outcome, "70368744177664 bytes")) << "the bytes asked, two windows: " << outcome.text;
    EXPECT_TRUE(holds(outcome, "are free")) << outcome.text;
    EXPECT_EQ(outcome.text, outcomes[0].text);
  }
}

// A rank that says it has this many, and no others.
class LonelyBootstrap final : public Bootstrap {
 public:
  explicit LonelyBootstrap(int size) : size_(size) {}
  int rank() const override { return 0; }
  int size() const override { return size_; }
  std::vector<std::string> allgather(const std::string& bytes) override {
    return std::vector<std::string>(static_cast<std::size_t>(size_), bytes);
  }

 private:
  int size_;
};

TEST(Create, NotMoreRanksThanFit) {
  LonelyBootstrap many(kMaxRanks + 1);
  const Outcome outcome = outcome_of([&] { UlyssesGroup::create(test_options("sp"), many); });
  EXPECT_EQ(outcome.code, ErrorCode::kInvalidArgument);
  EXPECT_TRUE(holds(outcome, "65 ranks; 1 to 64")) << outcome.text;
}

TEST(Arguments, LeaveTheGroupUsable) {
  run_ranks(4, [](RankEnv& env) {
    const auto group = group_with(env, 30);
    TensorRequest heads = request_of(balanced_case({1, 64, 30, 128}, 2, 1, 4), env.rank());
    heads.scatter_splits.reset();
    const Outcome outcome = outcome_of([&] { group->a2a(heads, nullptr, nullptr); });
    EXPECT_EQ(outcome.code, ErrorCode::kInvalidArgument);
    EXPECT_TRUE(holds(outcome, "[8, 8, 7, 7]")) << outcome.text;
    EXPECT_TRUE(holds(outcome, "2, 3, 5, 6, 10, 15, 30 ranks")) << outcome.text;
    EXPECT_THROW(group->all_to_all_single(nullptr, nullptr, 6), InvalidArgument);
    EXPECT_EQ(group->counters().at("handshakes"), 0);
    EXPECT_EQ(usual(*group), 0);
    group->destroy();
  });
}

TEST(Destructor, NamesTheForgottenCall) {
  std::atomic<int> lines{0};
  set_log_sink([&lines](LogLevel level, const std::string& text) {
    if (level == LogLevel::kWarning && text.find("group 'forgotten', rank") != std::string::npos &&
        text.find("destroy() was not called") != std::string::npos) {
      ++lines;
    }
  });
  run_ranks(2, [](RankEnv& env) {
    const auto group = make_group(env, "forgotten");
    usual(*group);
  });
  set_log_sink({});
  EXPECT_EQ(lines.load(), 2) << "one a rank";
}

}  // namespace
}  // namespace fast_ulysses::tests
