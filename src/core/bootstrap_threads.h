// Ranks as threads of one process: for unit tests, and for C++ programs that drive several ranks from one process.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fast_ulysses/bootstrap.h"

namespace fast_ulysses {

// The place where the threads meet. Must outlive its bootstraps.
class FU_API ThreadHub {
 public:
  explicit ThreadHub(int size, double timeout_s = 60.0);
  std::unique_ptr<Bootstrap> bootstrap(int rank);
  int size() const noexcept { return size_; }

 private:
  friend class ThreadBootstrap;
  std::vector<std::string> allgather(int rank, const std::string& bytes);

  const int size_;
  const double timeout_s_;
  std::mutex mutex_;
  std::condition_variable all_here_;
  std::uint64_t round_ = 0;
  int arrived_ = 0;
  std::vector<std::string> gathering_, gathered_;
};

}  // namespace fast_ulysses
