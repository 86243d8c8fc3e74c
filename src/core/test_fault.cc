#include "core/test_fault.h"

#include <cstdlib>
#include <string>

#include "fast_ulysses/errors.h"

namespace fast_ulysses {
namespace {

// "transport-fail@2", "transport-fail-late@2": the set-up in Python fails on that rank.
bool is_of_another_layer(const std::string& name) {
  const std::string fault = name.substr(0, name.find('@'));
  return fault != name && (fault == "transport-fail" || fault == "transport-fail-late");
}

}  // namespace

TestFault test_fault_from_environment() {
  const char* const value = std::getenv("FAST_ULYSSES_TEST_FAULT");
  const std::string name = value == nullptr ? "" : value;
  if (name.empty() || is_of_another_layer(name)) return TestFault::kNone;
  if (name == "flip-bit") return TestFault::kFlipBit;
  if (name == "drop-wait") return TestFault::kDropWait;
  if (name == "early-signal") return TestFault::kEarlySignal;
  if (name == "drop-opening") return TestFault::kDropOpening;
  throw InvalidArgument("FAST_ULYSSES_TEST_FAULT is '" + name +
                        "'; flip-bit, drop-wait, early-signal, drop-opening, transport-fail@RANK and "
                        "transport-fail-late@RANK are known");
}

}  // namespace fast_ulysses
