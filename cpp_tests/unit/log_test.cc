#include "fast_ulysses/log.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <utility>
#include <vector>

namespace fast_ulysses {
namespace {

TEST(Log, GoesToTheSinkOfTheProcess) {
  std::vector<std::pair<LogLevel, std::string>> lines;
  log(LogLevel::kInfo, "before there is a sink");
  set_log_sink([&lines](LogLevel level, const std::string& text) { lines.emplace_back(level, text); });
  log(LogLevel::kWarning, "one");
  log(LogLevel::kDebug, "two");
  set_log_sink({});
  log(LogLevel::kInfo, "after it is gone");
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0], std::pair(LogLevel::kWarning, std::string("one")));
  EXPECT_EQ(lines[1], std::pair(LogLevel::kDebug, std::string("two")));
}

TEST(Log, NeverThrowsAndMayNest) {
  int calls = 0;
  set_log_sink([&calls](LogLevel, const std::string& text) {
    ++calls;
    if (text == "outer") log(LogLevel::kInfo, "inner");
    throw std::runtime_error("a sink that fails");
  });
  log(LogLevel::kInfo, "outer");
  set_log_sink({});
  EXPECT_EQ(calls, 2);
}

TEST(Log, LevelsAreThoseOfPython) {
  EXPECT_EQ(static_cast<int>(LogLevel::kDebug), 10);
  EXPECT_EQ(static_cast<int>(LogLevel::kInfo), 20);
  EXPECT_EQ(static_cast<int>(LogLevel::kWarning), 30);
}

}  // namespace
}  // namespace fast_ulysses
