// One rank of a test's world, whatever ranks are: threads of this process or processes under mpirun.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "fast_ulysses/bootstrap.h"
#include "fast_ulysses/group.h"

namespace fast_ulysses::tests {

class RankEnv {
 public:
  virtual ~RankEnv() = default;
  virtual Bootstrap& world() = 0;
  // Collective over the world, the same list on every rank: a bootstrap of these ranks, in this order; null on others.
  virtual std::unique_ptr<Bootstrap> subgroup(const std::vector<int>& members) = 0;
  // Whether the ranks share one process: its descriptors and mappings are then everyone's.
  virtual bool one_process() const = 0;

  int rank() { return world().rank(); }
  int size() { return world().size(); }
  void barrier() { world().barrier(); }
  std::int64_t sum(std::int64_t value) {
    std::int64_t total = 0;
    for (const std::string& other : world().allgather(std::to_string(value))) total += std::stoll(other);
    return total;
  }
};

inline void sleep_ms(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

}  // namespace fast_ulysses::tests
