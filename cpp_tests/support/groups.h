// Making groups and exchanges in tests.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fast_ulysses/group.h"
#include "support/coded.h"
#include "support/rank_env.h"

namespace fast_ulysses::tests {

#if defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif

// A name, a timeout that ends a broken test soon, and windows made at the first exchange.
GroupOptions test_options(const std::string& name = "test", double timeout_s = 30.0);

std::unique_ptr<UlyssesGroup> make_group(RankEnv& env, const std::string& name = "test");

// One exchange of coded tensors; each tensor's seed follows from `seed`. Overwrites the inputs as soon as the call
// returns. The number of wrong elements on this rank.
std::int64_t exchange_coded(UlyssesGroup& group, const std::string& op, const std::vector<TensorCase>& tensors,
                            std::uint64_t seed);

// The sum of what the plans of these tensors send to peers and keep.
struct Moved {
  std::int64_t wire_bytes = 0, own_bytes = 0;
};
Moved moved_by(const std::vector<TensorCase>& tensors, int rank, int size);

// What a process holds: descriptors, and mappings of this library's segments.
struct Holdings {
  int descriptors = 0, mappings = 0;
};
Holdings holdings();

}  // namespace fast_ulysses::tests
