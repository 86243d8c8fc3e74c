// The conformance suite with ranks as processes.
#include <gtest/gtest.h>

#include <string>

#include "support/conformance.h"
#include "support/mpi_env.h"

namespace fast_ulysses::tests {
namespace {

class Processes : public testing::TestWithParam<ConformanceCase> {};

TEST_P(Processes, Conform) {
  MpiEnv env;
  GetParam().body(env);
}

INSTANTIATE_TEST_SUITE_P(Ranks, Processes, testing::ValuesIn(all_conformance_cases()),
                         [](const auto& instance) { return std::string(instance.param.name); });

}  // namespace
}  // namespace fast_ulysses::tests
