#include "core/async_queue.h"

#include <chrono>

namespace fast_ulysses {
namespace {

constexpr std::chrono::milliseconds kSlice{100};

}  // namespace

void PendingExchange::finish(std::exception_ptr error) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  error_ = std::move(error);
  done_ = true;
  changed_.notify_all();
}

bool PendingExchange::done() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return done_;
}

void PendingExchange::wait(const std::function<void()>& poll_interrupt) {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!done_) {
    if (changed_.wait_for(lock, kSlice, [this] { return done_; })) break;
    if (!poll_interrupt) continue;
    lock.unlock();
    poll_interrupt();
    lock.lock();
  }
  if (error_) std::rethrow_exception(error_);
}

AsyncQueue::~AsyncQueue() {
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->stopping = true;
    state_->changed.notify_all();
  }
  if (thread_.joinable()) thread_.detach();
}

std::shared_ptr<PendingExchange> AsyncQueue::push(std::function<void()> job) {
  auto pending = std::make_shared<PendingExchange>();
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->jobs.emplace_back(std::move(job), pending);
    state_->changed.notify_all();
  }
  if (!thread_.joinable()) thread_ = std::thread([state = state_] { run(state); });
  return pending;
}

void AsyncQueue::run(const std::shared_ptr<State>& state) {
  std::unique_lock<std::mutex> lock(state->mutex);
  for (;;) {
    state->changed.wait(lock, [&] { return state->stopping || !state->jobs.empty(); });
    if (state->jobs.empty()) return;  // stopping, and nothing left
    const std::function<void()> job = std::move(state->jobs.front().first);
    const std::shared_ptr<PendingExchange> pending = state->jobs.front().second;
    lock.unlock();
    std::exception_ptr error;
    try {
      job();
    } catch (...) {
      error = std::current_exception();
    }
    pending->finish(std::move(error));
    lock.lock();
    state->jobs.pop_front();
    state->changed.notify_all();
  }
}

void AsyncQueue::drain() {
  std::unique_lock<std::mutex> lock(state_->mutex);
  while (!state_->jobs.empty()) {
    if (state_->changed.wait_for(lock, kSlice, [this] { return state_->jobs.empty(); })) break;
    if (!poll_interrupt_) continue;
    lock.unlock();
    poll_interrupt_();
    lock.lock();
  }
}

bool AsyncQueue::idle() {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->jobs.empty();
}

void AsyncQueue::stop() {
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->stopping = true;
    state_->changed.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

}  // namespace fast_ulysses
