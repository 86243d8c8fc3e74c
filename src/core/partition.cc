#include "fast_ulysses/partition.h"

#include <string>

#include "fast_ulysses/errors.h"

namespace fast_ulysses {

std::vector<std::int64_t> balanced_split(std::int64_t total, int parts) {
  if (total < 0)
    throw InvalidArgument("balanced_split: total is " + std::to_string(total) + "; it must not be negative");
  if (parts < 1) throw InvalidArgument("balanced_split: parts is " + std::to_string(parts) + "; it must be at least 1");
  std::vector<std::int64_t> split(static_cast<std::size_t>(parts), total / parts);
  for (std::int64_t i = 0; i < total % parts; ++i) ++split[static_cast<std::size_t>(i)];
  return split;
}

std::vector<std::int64_t> part_starts(const std::vector<std::int64_t>& parts) {
  std::vector<std::int64_t> starts;
  starts.reserve(parts.size());
  std::int64_t start = 0;
  for (const std::int64_t part : parts) {
    starts.push_back(start);
    start += part;
  }
  return starts;
}

}  // namespace fast_ulysses
