#pragma once

#include "fast_ulysses/plan.h"

namespace fast_ulysses {

// Moves the rows of every copy, in plain cached stores. Source and destination do not overlap.
void copy_rows(const CopyList& copies, const char* src, char* dst) noexcept;

}  // namespace fast_ulysses
