// Parts of scatter_dim that overlap: several ranks receive the same rows. And exchanges that run while the caller goes
// on.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "core/bootstrap_threads.h"
#include "fast_ulysses/group.h"
#include "support/groups.h"

namespace fast_ulysses::tests {
namespace {

using Ints = std::vector<std::int64_t>;
constexpr int kRanks = 4;
constexpr std::int64_t kTokens = 3, kHeads = 2, kWidth = 5;

// [1, tokens, heads, width] of this rank; a number says where it came from.
std::vector<std::int32_t> shard_of(int rank) {
  std::vector<std::int32_t> data;
  for (int token = 0; token < kTokens; ++token) {
    for (int head = 0; head < kHeads; ++head) {
      for (int i = 0; i < kWidth; ++i) data.push_back(((rank * 100 + token) * 10 + head) * 10 + i);
    }
  }
  return data;
}

TensorRequest replicated(const Ints& lengths, const Ints& starts) {
  TensorRequest request;
  request.sizes = {1, kTokens, kHeads, kWidth};
  request.strides = {kTokens * kHeads * kWidth, kHeads * kWidth, kWidth, 1};
  request.elem_bytes = 4;
  request.dtype = "int32";
  request.scatter_splits = lengths;
  request.scatter_starts = starts;
  return request;
}

void expect_head_of_every_token(const std::vector<std::int32_t>& result, int head) {
  std::size_t at = 0;
  for (int from = 0; from < kRanks; ++from) {
    for (int token = 0; token < kTokens; ++token) {
      for (int i = 0; i < kWidth; ++i) {
        ASSERT_EQ(result[at++], ((from * 100 + token) * 10 + head) * 10 + i)
            << "from rank " << from << " head " << head;
      }
    }
  }
}

template <class Body>
void on_threads(Body body) {
  ThreadHub hub(kRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&hub, &body, rank] {
      const auto bootstrap = hub.bootstrap(rank);
      const auto group = UlyssesGroup::create(test_options(), *bootstrap);
      body(*group, rank);
      group->destroy();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Replicas, EachRankGetsTheHeadItAsksForAndNoMoreTravels) {
  on_threads([](UlyssesGroup& group, int rank) {
    const auto plan = group.plan("a2a", {replicated({1, 1, 1, 1}, {0, 0, 1, 1})});
    EXPECT_EQ(plan->wire_bytes(), 3 * kTokens * kWidth * 4);
    EXPECT_NE(plan->text().find("by [1, 1, 1, 1] at [0, 0, 1, 1]"), std::string::npos) << plan->text();
    const std::vector<std::int32_t> src = shard_of(rank);
    std::vector<std::int32_t> dst(kRanks * kTokens * kWidth, -1);
    group.exchange(*plan, {src.data()}, {dst.data()});
    expect_head_of_every_token(dst, rank / 2);
  });
}

TEST(Replicas, PartsMustLieInsideTheDim) {
  EXPECT_THROW(ExchangePlan::make("a2a", {replicated({1, 1, 1, 1}, {0, 0, 1, 2})}, 0, kRanks), InvalidArgument);
  EXPECT_THROW(ExchangePlan::make("a2a", {replicated({1, 1, 1, 2}, {0, 0, 1, 1})}, 0, kRanks), InvalidArgument);
  EXPECT_THROW(ExchangePlan::make("a2a", {replicated({1, 1, 1, 1}, {0, 0, 1})}, 0, kRanks), InvalidArgument);
  TensorRequest alone = replicated({1, 1, 1, 1}, {0, 0, 1, 1});
  alone.scatter_splits.reset();
  EXPECT_THROW(ExchangePlan::make("a2a", {alone}, 0, kRanks), InvalidArgument);
}

TEST(AsyncExchange, ManyUnderWayAndLaterCallsComeAfterThem) {
  on_threads([](UlyssesGroup& group, int rank) {
    const auto plan = group.plan("a2a", {replicated({1, 1, 1, 1}, {0, 0, 1, 1})});
    const std::vector<std::int32_t> src = shard_of(rank);
    std::vector<std::vector<std::int32_t>> results(40, std::vector<std::int32_t>(kRanks * kTokens * kWidth, -1));
    std::vector<std::shared_ptr<PendingExchange>> pending;
    for (auto& result : results) pending.push_back(group.exchange_async(plan, {src.data()}, {result.data()}));
    std::vector<std::int32_t> last(kRanks * kTokens * kWidth, -1);
    group.exchange(*plan, {src.data()}, {last.data()});
    for (const auto& one : pending) EXPECT_TRUE(one->done());
    for (const auto& result : results) EXPECT_EQ(result, last);
    expect_head_of_every_token(last, rank / 2);
    EXPECT_EQ(group.counters().at("calls"), 41);
  });
}

TEST(AsyncExchange, DestroyFinishesWhatIsUnderWay) {
  on_threads([](UlyssesGroup& group, int rank) {
    const auto plan = group.plan("a2a", {replicated({1, 1, 1, 1}, {0, 0, 1, 1})});
    const std::vector<std::int32_t> src = shard_of(rank);
    std::vector<std::int32_t> result(kRanks * kTokens * kWidth, -1);
    const auto pending = group.exchange_async(plan, {src.data()}, {result.data()});
    group.destroy();
    pending->wait();
    expect_head_of_every_token(result, rank / 2);
  });
}

TEST(AsyncExchange, APeersAbortIsThrown) {
  on_threads([](UlyssesGroup& group, int rank) {
    const auto plan = group.plan("a2a", {replicated({1, 1, 1, 1}, {0, 0, 1, 1})});
    const std::vector<std::int32_t> src = shard_of(rank);
    std::vector<std::int32_t> result(kRanks * kTokens * kWidth, -1);
    if (rank == 2) return group.abort("no more");
    // By the call itself, if the abort came before it.
    EXPECT_THROW(group.exchange_async(plan, {src.data()}, {result.data()})->wait(), PeerError);
  });
}

}  // namespace
}  // namespace fast_ulysses::tests
