#include "fast_ulysses/log.h"

#include <mutex>
#include <utility>

namespace fast_ulysses {
namespace {

// Leaked on purpose: destructors of objects with static storage may still log while the process is leaving.
struct Sink {
  std::mutex mutex;
  LogSink function;
};
Sink& sink() {
  static Sink* const instance = new Sink;
  return *instance;
}

}  // namespace

void set_log_sink(LogSink function) {
  const std::lock_guard<std::mutex> lock(sink().mutex);
  sink().function = std::move(function);
}

void log(LogLevel level, const std::string& text) noexcept {
  try {
    LogSink function;
    {
      const std::lock_guard<std::mutex> lock(sink().mutex);
      function = sink().function;
    }
    if (function) function(level, text);  // outside the lock: the sink may block, or log itself
  } catch (...) {                         // a line for people is never worth an exception
  }
}

}  // namespace fast_ulysses
