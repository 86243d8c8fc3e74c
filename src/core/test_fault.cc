#include "core/test_fault.h"

#include <cstdlib>
#include <string>

#include "fast_ulysses/errors.h"

namespace fast_ulysses {

TestFault test_fault_from_environment() {
  const char* const value = std::getenv("FAST_ULYSSES_TEST_FAULT");
  const std::string name = value == nullptr ? "" : value;
  if (name.empty() || name.find('@') != std::string::npos) return TestFault::kNone;
  if (name == "flip-bit") return TestFault::kFlipBit;
  if (name == "drop-wait") return TestFault::kDropWait;
  if (name == "early-signal") return TestFault::kEarlySignal;
  if (name == "drop-opening") return TestFault::kDropOpening;
  throw InvalidArgument("FAST_ULYSSES_TEST_FAULT is '" + name +
                        "'; flip-bit, drop-wait, early-signal and drop-opening are known");
}

}  // namespace fast_ulysses
