// Small pieces of text for messages.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fast_ulysses {

inline std::string list_text(const std::vector<std::int64_t>& values) {
  std::string text = "[";
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(values[i]);
  }
  return text + "]";
}

}  // namespace fast_ulysses
