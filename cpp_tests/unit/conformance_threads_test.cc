// The conformance suite with ranks as threads of one process.
#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "support/conformance.h"
#include "support/thread_env.h"

namespace fast_ulysses::tests {
namespace {

class Threads : public testing::TestWithParam<std::tuple<int, ConformanceCase>> {};

TEST_P(Threads, Conform) { run_ranks(std::get<0>(GetParam()), std::get<1>(GetParam()).body); }

INSTANTIATE_TEST_SUITE_P(Ranks, Threads,
                         testing::Combine(testing::Values(1, 2, 3, 4, 8), testing::ValuesIn(all_conformance_cases())),
                         [](const auto& instance) {
                           return std::string(std::get<1>(instance.param).name) + "_" +
                                  std::to_string(std::get<0>(instance.param));
                         });

}  // namespace
}  // namespace fast_ulysses::tests
