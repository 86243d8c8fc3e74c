#include "core/async_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>

namespace fast_ulysses {
namespace {

TEST(AsyncQueue, RunsJobsInTheirOrder) {
  AsyncQueue queue({});
  std::vector<int> order;  // written by the queue's thread, read behind drain()
  std::vector<std::shared_ptr<PendingExchange>> pending;
  for (int i = 0; i < 100; ++i) pending.push_back(queue.push([&order, i] { order.push_back(i); }));
  queue.drain();
  EXPECT_TRUE(queue.idle());
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
  for (const auto& one : pending) {
    EXPECT_TRUE(one->done());
    one->wait();
  }
  queue.stop();
}

TEST(AsyncQueue, AJobsErrorIsThrownByItsWaitAlone) {
  AsyncQueue queue({});
  const auto bad = queue.push([] { throw std::runtime_error("no peer"); });
  const auto good = queue.push([] {});
  queue.drain();
  EXPECT_THROW(bad->wait(), std::runtime_error);
  EXPECT_NO_THROW(good->wait());
  queue.stop();
}

TEST(AsyncQueue, AnInterruptEndsTheWaitAndNotTheJob) {
  std::atomic<bool> go{false};
  AsyncQueue queue([] { throw std::runtime_error("Ctrl-C"); });
  const auto pending = queue.push([&go] {
    while (!go.load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  EXPECT_THROW(queue.drain(), std::runtime_error);
  EXPECT_THROW(pending->wait([] { throw std::runtime_error("Ctrl-C"); }), std::runtime_error);
  EXPECT_FALSE(pending->done());
  go.store(true);
  pending->wait();
  queue.stop();
}

TEST(AsyncQueue, GoesWhileAJobIsRunningWithoutWaitingForIt) {
  static std::atomic<bool> go{false};
  std::shared_ptr<PendingExchange> pending;
  {
    AsyncQueue queue({});
    pending = queue.push([] {
      while (!go.load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
  }
  EXPECT_FALSE(pending->done());
  go.store(true);
  pending->wait();
}

}  // namespace
}  // namespace fast_ulysses
