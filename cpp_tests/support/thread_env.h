// Ranks as threads.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "fast_ulysses/errors.h"
#include "support/rank_env.h"

namespace fast_ulysses::tests {

// Runs `body` once a rank, each in a thread of its own, and joins them. What leaves it as an exception fails the test,
// with the rank's number.
void run_ranks(int size, const std::function<void(RankEnv&)>& body);

// How a rank's part ended.
struct Outcome {
  ErrorCode code = ErrorCode::kNone;
  std::string text;
  double seconds = 0;
};

// Runs `body` and says how it ended: errors of the library as they are, others as kNone with their text.
Outcome outcome_of(const std::function<void()>& body);

// The same over ranks: their outcomes, by rank.
std::vector<Outcome> outcomes_of(int size, const std::function<void(RankEnv&)>& body);

}  // namespace fast_ulysses::tests
