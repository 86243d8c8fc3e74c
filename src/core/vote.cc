#include "core/vote.h"

#include <exception>
#include <string_view>

#include "fast_ulysses/errors.h"

namespace fast_ulysses {
namespace {

constexpr std::size_t kReasonBytes = 800;  // so that a ballot fits any bootstrap

}  // namespace

std::vector<std::string> vote(Bootstrap& bootstrap, const std::string& what, const std::function<std::string()>& step) {
  std::string ballot;
  try {
    ballot = "+" + step();
  } catch (const std::exception& error) {
    ballot = "-" + std::string(std::string_view(error.what()).substr(0, kReasonBytes));
  }
  std::vector<std::string> ballots = bootstrap.allgather(ballot);
  for (std::size_t rank = 0; rank < ballots.size(); ++rank) {
    if (ballots[rank].empty() || ballots[rank][0] != '+') {
      throw TransportError(what + " failed on rank " + std::to_string(rank) + " of " + std::to_string(ballots.size()) +
                           ": " + (ballots[rank].empty() ? "no answer" : ballots[rank].substr(1)));
    }
    ballots[rank].erase(0, 1);
  }
  return ballots;
}

}  // namespace fast_ulysses
