#include "core/shared_text.h"

#include <gtest/gtest.h>

#include <thread>

namespace fast_ulysses {
namespace {

using Text = SharedText<16>;

TEST(SharedText, HoldsWhatWasStoredLast) {
  Text text;
  EXPECT_EQ(text.load(), "");
  for (const std::string& value : {std::string("a"), std::string(40, 'b'), std::string("12345678"), std::string(),
                                   std::string("1234567"), std::string(Text::kCapacity, 'z')}) {
    text.store(value);
    EXPECT_EQ(text.load(), value);
  }
}

TEST(SharedText, CutsWithAMark) {
  Text text;
  text.store(std::string(1000, 'x'));
  const std::string cut = text.load();
  EXPECT_EQ(cut.size(), Text::kCapacity);
  EXPECT_EQ(cut.substr(cut.size() - 4), "x...");
}

TEST(SharedText, IsNeverSeenHalfWritten) {
  Text text;
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (int i = 0; i < 20000; ++i)
      text.store(std::string(static_cast<std::size_t>(i % 100 + 1), static_cast<char>('a' + i % 26)));
    stop = true;
  });
  std::int64_t torn = 0;
  while (!stop) {
    const std::string seen = text.load();
    torn += !seen.empty() && seen.find_first_not_of(seen[0]) != std::string::npos;
  }
  writer.join();
  EXPECT_EQ(torn, 0);
  EXPECT_FALSE(text.load().empty());
}

}  // namespace
}  // namespace fast_ulysses
