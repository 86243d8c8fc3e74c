#pragma once

#include <cstdint>

namespace fast_ulysses {

// What this process can still take of the host's memory, in bytes: what the kernel calls available, within the limits
// of the control groups (v2, v1) it runs in. Where nothing can be read: the largest number.
std::int64_t available_host_memory_bytes();

}  // namespace fast_ulysses
