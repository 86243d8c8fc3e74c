// A set-up step as a transaction: every rank tells how its part went, and all go on or all throw the same error.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "fast_ulysses/bootstrap.h"

namespace fast_ulysses {

// Collective. Runs `step` on every rank; it returns bytes for the others or throws. Returns every rank's bytes. When
// any rank threw, every rank throws TransportError, naming `what`, the first rank that failed, and its reason.
std::vector<std::string> vote(Bootstrap& bootstrap, const std::string& what, const std::function<std::string()>& step);

}  // namespace fast_ulysses
