// Exchanges that run while their caller goes on: one thread a group, in the order of the calls.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "fast_ulysses/group.h"

namespace fast_ulysses {

class AsyncQueue {
 public:
  explicit AsyncQueue(std::function<void()> poll_interrupt) : poll_interrupt_(std::move(poll_interrupt)) {}
  // Meets nobody and waits for nothing: a thread that is still in a job is left behind, with what it holds.
  ~AsyncQueue();
  AsyncQueue(const AsyncQueue&) = delete;
  AsyncQueue& operator=(const AsyncQueue&) = delete;

  // Local. Starts the thread with the first job.
  std::shared_ptr<PendingExchange> push(std::function<void()> job);
  // Blocks until every job so far has ended, well or not. Throws what poll_interrupt throws, and nothing of the jobs.
  void drain();
  bool idle();
  // After drain(), or when the jobs are known to end soon: ends the thread.
  void stop();

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::pair<std::function<void()>, std::shared_ptr<PendingExchange>>> jobs;  // the first is being run
    bool stopping = false;
  };
  static void run(const std::shared_ptr<State>& state);

  const std::function<void()> poll_interrupt_;
  std::shared_ptr<State> state_ = std::make_shared<State>();
  std::thread thread_;
};

}  // namespace fast_ulysses
