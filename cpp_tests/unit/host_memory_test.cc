#include "transport/host_memory.h"

#include <gtest/gtest.h>

namespace fast_ulysses {
namespace {

TEST(AvailableHostMemory, IsPlausible) {
  const std::int64_t bytes = available_host_memory_bytes();
  EXPECT_GT(bytes, std::int64_t{1} << 20);
  EXPECT_LT(bytes, std::int64_t{1} << 50);
}

}  // namespace
}  // namespace fast_ulysses
