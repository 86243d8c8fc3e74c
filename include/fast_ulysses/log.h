// Where the library's few lines for people go: a sink that the host program sets. Without one they are dropped.
#pragma once

#include <functional>
#include <string>

#include "fast_ulysses/visibility.h"

namespace fast_ulysses {

enum class LogLevel : int { kDebug = 10, kInfo = 20, kWarning = 30 };

using LogSink = std::function<void(LogLevel, const std::string&)>;

// Replaces the sink of the process; an empty function drops lines again.
FU_API void set_log_sink(LogSink sink);
// Never throws: it is called from destructors.
FU_API void log(LogLevel level, const std::string& text) noexcept;

}  // namespace fast_ulysses
