// How a length is divided over ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "fast_ulysses/visibility.h"

namespace fast_ulysses {

// `total` units over `parts`, sizes differing by at most one, the larger ones first: 30 over 4 is {8, 8, 7, 7}.
// parts > total gives empty parts at the end. Throws InvalidArgument for total < 0 or parts < 1.
FU_API std::vector<std::int64_t> balanced_split(std::int64_t total, int parts);

// Where each part starts: {0, a, a+b, ...}, one entry a part.
FU_API std::vector<std::int64_t> part_starts(const std::vector<std::int64_t>& parts);

}  // namespace fast_ulysses
