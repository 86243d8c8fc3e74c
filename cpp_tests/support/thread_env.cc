#include "support/thread_env.h"

#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "core/bootstrap_threads.h"

namespace fast_ulysses::tests {
namespace {

constexpr double kHubTimeoutSeconds = 60.0;

// The hubs of all groups of one test, found by members and by how often these members were asked for.
struct ThreadWorld {
  explicit ThreadWorld(int size) : hub(size, kHubTimeoutSeconds) {}

  std::shared_ptr<ThreadHub> hub_of(const std::vector<int>& members, int occasion) {
    const std::lock_guard<std::mutex> lock(mutex);
    std::shared_ptr<ThreadHub>& found = hubs[{members, occasion}];
    if (!found) found = std::make_shared<ThreadHub>(static_cast<int>(members.size()), kHubTimeoutSeconds);
    return found;
  }

  ThreadHub hub;
  std::mutex mutex;
  std::map<std::pair<std::vector<int>, int>, std::shared_ptr<ThreadHub>> hubs;
};

// Keeps its hub.
class SubBootstrap final : public Bootstrap {
 public:
  SubBootstrap(std::shared_ptr<ThreadHub> hub, int rank) : hub_(std::move(hub)), inner_(hub_->bootstrap(rank)) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::vector<std::string> allgather(const std::string& bytes) override { return inner_->allgather(bytes); }

 private:
  std::shared_ptr<ThreadHub> hub_;
  std::unique_ptr<Bootstrap> inner_;
};

class ThreadEnv final : public RankEnv {
 public:
  ThreadEnv(ThreadWorld& world, int rank) : shared_(world), world_(world.hub.bootstrap(rank)) {}
  Bootstrap& world() override { return *world_; }
  bool one_process() const override { return true; }
  std::unique_ptr<Bootstrap> subgroup(const std::vector<int>& members) override {
    const int occasion = occasions_[members]++;
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (members[i] != rank()) continue;
      return std::make_unique<SubBootstrap>(shared_.hub_of(members, occasion), static_cast<int>(i));
    }
    return nullptr;
  }

 private:
  ThreadWorld& shared_;
  std::unique_ptr<Bootstrap> world_;
  std::map<std::vector<int>, int> occasions_;
};

template <class PerRank>
void in_threads(int size, const PerRank& per_rank) {
  ThreadWorld world(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&world, &per_rank, rank] {
      ThreadEnv env(world, rank);
      per_rank(env);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

void run_ranks(int size, const std::function<void(RankEnv&)>& body) {
  in_threads(size, [&](RankEnv& env) {
    try {
      body(env);
    } catch (const std::exception& error) {
      ADD_FAILURE() << "rank " << env.rank() << ": " << error.what();
    }
  });
}

Outcome outcome_of(const std::function<void()>& body) {
  Outcome outcome;
  const auto start = std::chrono::steady_clock::now();
  try {
    body();
  } catch (const Error& error) {
    outcome.code = error.code();
    outcome.text = error.what();
  } catch (const std::exception& error) {
    outcome.text = error.what();
  }
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return outcome;
}

std::vector<Outcome> outcomes_of(int size, const std::function<void(RankEnv&)>& body) {
  std::vector<Outcome> outcomes(static_cast<std::size_t>(size));
  in_threads(size,
             [&](RankEnv& env) { outcomes[static_cast<std::size_t>(env.rank())] = outcome_of([&] { body(env); }); });
  return outcomes;
}

}  // namespace fast_ulysses::tests
