// Text in shared memory that one rank writes and others may read at any moment.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>

namespace fast_ulysses {

// A sequence lock: odd while it is being written. Words are atomics, so a torn read is seen and never undefined.
template <std::size_t kWords>
class SharedText {
 public:
  static constexpr std::size_t kCapacity = kWords * sizeof(std::uint64_t) - 1;

  // Called by the owner alone. Longer texts are cut, with a mark.
  void store(const std::string& text) noexcept {
    char buffer[kWords * sizeof(std::uint64_t)] = {};
    std::memcpy(buffer, text.data(), std::min(text.size(), kCapacity));
    if (text.size() > kCapacity) std::memcpy(buffer + kCapacity - 3, "...", 3);
    const std::uint32_t before = version_.load(std::memory_order_relaxed);
    version_.store(before + 1);
    for (std::size_t i = 0; i < kWords; ++i) {
      std::uint64_t word;
      std::memcpy(&word, buffer + i * sizeof(word), sizeof(word));
      words_[i].store(word);
      if (buffer[(i + 1) * sizeof(word) - 1] == '\0') break;  // the end is in this word
    }
    version_.store(before + 2);
  }

  // Empty if nothing was written yet, or the owner stopped in the middle.
  std::string load() const {
    for (int attempt = 0; attempt < 1000; ++attempt) {
      const std::uint32_t before = version_.load();
      char buffer[kWords * sizeof(std::uint64_t)];
      for (std::size_t i = 0; i < kWords; ++i) {
        const std::uint64_t word = words_[i].load();
        std::memcpy(buffer + i * sizeof(word), &word, sizeof(word));
      }
      if (before % 2 == 0 && version_.load() == before) return std::string(buffer, strnlen(buffer, kCapacity));
    }
    return std::string();
  }

 private:
  std::atomic<std::uint32_t> version_{0};
  std::atomic<std::uint64_t> words_[kWords]{};
};

}  // namespace fast_ulysses
