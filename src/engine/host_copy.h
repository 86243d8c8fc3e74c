// Moving rows on the host.
#pragma once

#include <cstdint>

#include "fast_ulysses/plan.h"

namespace fast_ulysses {

enum class Stores {
  kCached,     // the destination is likely to be read from the cache soon
  kStreaming,  // non-temporal: the destination is not read first, and the cache keeps what it holds
};

// Streaming pays once an exchange is too large for the last-level cache to hold what all ranks move. A pure function of
// the bytes that an exchange moves on one rank and of the machine.
Stores stores_for(std::int64_t bytes, int ranks) noexcept;

// Moves the rows of every copy; source and destination do not overlap. Streaming stores are fenced before it returns,
// so a flag that is stored afterwards releases them (docs/protocol.md, step 4).
void copy_rows(const CopyList& copies, const char* src, char* dst, Stores stores = Stores::kCached) noexcept;

}  // namespace fast_ulysses
