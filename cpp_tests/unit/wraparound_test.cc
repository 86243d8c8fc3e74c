// Epochs are 32 bits of a count that goes on: the protocol holds across their sign change and their end, and many calls
// leave nothing behind.
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "support/groups.h"
#include "support/thread_env.h"

namespace fast_ulysses::tests {
namespace {

constexpr std::uint64_t kSign = std::uint64_t{1} << 31, kEnd = std::uint64_t{1} << 32;

GroupOptions from(std::uint64_t handshakes) {
  GroupOptions options = test_options();
  options.handshakes_before = handshakes;
  return options;
}

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kMemoryIsKept = true;  // freed blocks stay in quarantine
#else
constexpr bool kMemoryIsKept = false;
#endif

// Pages of this process that are in memory.
std::int64_t resident_pages() {
  std::ifstream file("/proc/self/statm");
  std::int64_t size = 0, resident = 0;
  file >> size >> resident;
  return resident;
}

class Wraparound : public testing::TestWithParam<std::uint64_t> {};

TEST_P(Wraparound, ExchangesStayExactAndAllRanksAgree) {
  run_ranks(3, [](RankEnv& env) {
    const auto group = UlyssesGroup::create(from(GetParam() - 7), env.world());
    for (std::uint64_t call = 0; call < 40; ++call) {
      // Growing now and then, so that meetings and handshakes of every kind cross the edge.
      const std::int64_t tokens = call % 5 == 4 ? static_cast<std::int64_t>(call) * 40 : 12;
      EXPECT_EQ(exchange_coded(*group, "a2a", {balanced_case({1, tokens, 6, 8}, 2, 1, 3)}, call), 0) << "call " << call;
    }
    EXPECT_GE(group->counters().at("handshakes"), 40);
    group->destroy();
  });
}

TEST_P(Wraparound, AMismatchIsStillSeenBehindIt) {
  const auto outcomes = outcomes_of(2, [](RankEnv& env) {
    const auto group = UlyssesGroup::create(from(GetParam() - 3), env.world());
    const TensorCase same = balanced_case({1, 8, 4, 8}, 2, 1, 2);
    for (std::uint64_t call = 0; call < 6; ++call) EXPECT_EQ(exchange_coded(*group, "a2a", {same}, call), 0);
    env.barrier();
    const TensorCase other = balanced_case({1, env.rank() == 0 ? 8 : 4, 4, 8}, 2, 1, 2);
    exchange_coded(*group, "a2a", {other}, 7);
  });
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.code, ErrorCode::kCollectiveMismatch) << outcome.text;
}

INSTANTIATE_TEST_SUITE_P(At, Wraparound, testing::Values(kSign, kEnd), [](const auto& value) {
  return std::string(value.param == kSign ? "TheSignChange" : "TheEnd");
});

TEST(ManyCalls, AreFlatInMemoryAndCrossTheEnd) {
  const int calls = kThreadSanitizer || kMemoryIsKept ? 2000 : 100000;
  run_ranks(2, [calls](RankEnv& env) {
    const auto group = UlyssesGroup::create(from(kEnd - static_cast<std::uint64_t>(calls) / 2), env.world());
    const TensorRequest request{{1, 32, 8, 64}, {32 * 8 * 64, 8 * 64, 64, 1}, 2, "bf16", 2, 1, {}, {}, {}, {}};
    const auto plan = group->plan("a2a", {request});
    std::vector<std::uint16_t> src(32 * 8 * 64), dst(64 * 4 * 64);
    // By one rank while the others stand still: the look itself opens files, and ranks are threads of one process.
    const auto look = [&env] {
      env.barrier();
      const std::pair<std::int64_t, int> seen =
          env.rank() == 0 ? std::pair{resident_pages(), holdings().descriptors} : std::pair{std::int64_t{0}, 0};
      env.barrier();
      return seen;
    };
    std::pair<std::int64_t, int> before;
    for (int call = 0; call < calls; ++call) {
      if (call == calls / 10) before = look();
      src[0] = static_cast<std::uint16_t>(call * 2 + env.rank());
      group->exchange(*plan, {src.data()}, {dst.data()});
      // The first element of either rank's shard, where this rank's heads are the first ones.
      if (env.rank() == 0) {
        ASSERT_EQ(dst[0], static_cast<std::uint16_t>(call * 2)) << "call " << call;
        ASSERT_EQ(dst[32 * 4 * 64], static_cast<std::uint16_t>(call * 2 + 1)) << "call " << call;
      }
    }
    EXPECT_EQ(group->counters().at("calls"), calls);
    EXPECT_EQ(group->counters().at("native_bytes"), std::int64_t{calls} * plan->wire_bytes());
    const std::pair<std::int64_t, int> after = look();
    if (!kMemoryIsKept) {
      EXPECT_LE(after.first - before.first, 256) << "pages more than after a tenth of the calls";
    }
    EXPECT_EQ(after.second, before.second) << "descriptors";
    group->destroy();
  });
}

}  // namespace
}  // namespace fast_ulysses::tests
