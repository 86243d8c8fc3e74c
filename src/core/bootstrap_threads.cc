#include "core/bootstrap_threads.h"

#include <chrono>

#include "fast_ulysses/errors.h"

namespace fast_ulysses {

class ThreadBootstrap final : public Bootstrap {
 public:
  ThreadBootstrap(ThreadHub& hub, int rank) : hub_(hub), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return hub_.size(); }
  std::vector<std::string> allgather(const std::string& bytes) override { return hub_.allgather(rank_, bytes); }

 private:
  ThreadHub& hub_;
  int rank_;
};

ThreadHub::ThreadHub(int size, double timeout_s)
    : size_(size), timeout_s_(timeout_s), gathering_(static_cast<std::size_t>(size)) {}

std::unique_ptr<Bootstrap> ThreadHub::bootstrap(int rank) { return std::make_unique<ThreadBootstrap>(*this, rank); }

// The last to arrive publishes the round. Nobody can overwrite `gathered_` before all have copied it: that takes a
// whole further round, which takes all of them.
std::vector<std::string> ThreadHub::allgather(int rank, const std::string& bytes) {
  std::unique_lock<std::mutex> lock(mutex_);
  gathering_[static_cast<std::size_t>(rank)] = bytes;
  const std::uint64_t round = round_;
  if (++arrived_ == size_) {
    gathered_ = gathering_;
    arrived_ = 0;
    ++round_;
    all_here_.notify_all();
    return gathered_;
  }
  const auto limit = std::chrono::duration<double>(timeout_s_);
  if (!all_here_.wait_for(lock, limit, [&] { return round_ != round; })) {
    throw PeerTimeout("only " + std::to_string(arrived_) + " of " + std::to_string(size_) + " threads met in " +
                      std::to_string(timeout_s_) + " s");
  }
  return gathered_;
}

}  // namespace fast_ulysses
