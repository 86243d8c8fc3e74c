// What every transport and engine must do, written once: each case is one rank's part, and holds over threads
// (unit/conformance_threads_test.cc) and over processes (mp/conformance_test.cc), whatever their number.
#pragma once

#include <vector>

#include "support/rank_env.h"

namespace fast_ulysses::tests {

struct ConformanceCase {
  const char* name;
  void (*body)(RankEnv& env);
};

std::vector<ConformanceCase> heap_cases();      // conformance_heap.cc
std::vector<ConformanceCase> exchange_cases();  // conformance_exchange.cc
std::vector<ConformanceCase> window_cases();    // conformance_window.cc
std::vector<ConformanceCase> group_cases();     // conformance_group.cc
std::vector<ConformanceCase> control_cases();   // conformance_control.cc: planted faults that the checks must find

inline std::vector<ConformanceCase> all_conformance_cases() {
  std::vector<ConformanceCase> all;
  for (const auto& cases : {heap_cases(), exchange_cases(), window_cases(), group_cases(), control_cases()}) {
    all.insert(all.end(), cases.begin(), cases.end());
  }
  return all;
}

}  // namespace fast_ulysses::tests
