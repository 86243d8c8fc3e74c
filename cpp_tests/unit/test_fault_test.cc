#include "core/test_fault.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "fast_ulysses/errors.h"

namespace fast_ulysses {
namespace {

TestFault parsed(const char* value) {
  if (value == nullptr) {
    unsetenv("FAST_ULYSSES_TEST_FAULT");
  } else {
    setenv("FAST_ULYSSES_TEST_FAULT", value, 1);
  }
  try {
    const TestFault fault = test_fault_from_environment();
    unsetenv("FAST_ULYSSES_TEST_FAULT");
    return fault;
  } catch (...) {
    unsetenv("FAST_ULYSSES_TEST_FAULT");
    throw;
  }
}

TEST(TestFaultNames, AreParsed) {
  EXPECT_EQ(parsed(nullptr), TestFault::kNone);
  EXPECT_EQ(parsed(""), TestFault::kNone);
  EXPECT_EQ(parsed("flip-bit"), TestFault::kFlipBit);
  EXPECT_EQ(parsed("drop-wait"), TestFault::kDropWait);
  EXPECT_EQ(parsed("early-signal"), TestFault::kEarlySignal);
  EXPECT_EQ(parsed("drop-opening"), TestFault::kDropOpening);
  EXPECT_EQ(parsed("transport-fail@2"), TestFault::kNone) << "of another layer";
}

TEST(TestFaultNames, ATypingErrorIsNoUnarmedControl) {
  for (const char* const value : {"flip_bit", "Flip-bit", "drop-wait ", "x"}) {
    EXPECT_THROW(parsed(value), InvalidArgument) << value;
  }
}

}  // namespace
}  // namespace fast_ulysses
