#include "core/meeting.h"

#include <cstring>

namespace fast_ulysses {
namespace {

constexpr std::size_t kWordBytes = sizeof(std::uint64_t);

void put(MeetingSlot& slot, const std::string& bytes) {
  slot.bytes.store(static_cast<std::uint32_t>(bytes.size()));
  for (std::size_t i = 0; i * kWordBytes < bytes.size(); ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i * kWordBytes, std::min(kWordBytes, bytes.size() - i * kWordBytes));
    slot.words[i].store(word);
  }
}

std::string take(const MeetingSlot& slot) {
  std::string bytes(slot.bytes.load(), '\0');
  for (std::size_t i = 0; i * kWordBytes < bytes.size(); ++i) {
    const std::uint64_t word = slot.words[i].load();
    std::memcpy(bytes.data() + i * kWordBytes, &word, std::min(kWordBytes, bytes.size() - i * kWordBytes));
  }
  return bytes;
}

}  // namespace

std::vector<std::string> Meeting::allgather(const std::string& bytes) {
  if (bytes.size() > kMeetingBytes) {
    board_.fail(ErrorCode::kStateError, what_ + ": " + std::to_string(bytes.size()) + " bytes for one meeting; " +
                                            std::to_string(kMeetingBytes) + " at most");
  }
  const std::uint32_t number = ++number_;
  MeetingSlot& slot = board_.mine().meetings[number % 2];
  put(slot, bytes);
  slot.number.store(number);  // sequentially consistent: publishes the words, and orders with ring()
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) board_.ring(peer);
  }
  const auto there = [&](int peer) {  // at this meeting, or already at the next
    const auto ahead = static_cast<std::int32_t>(board_.page(peer).meetings[number % 2].number.load() - number);
    return ahead >= 0;
  };
  const auto missing = [&] {
    std::vector<int> ranks;
    for (int peer = 0; peer < size(); ++peer) {
      if (!there(peer)) ranks.push_back(peer);
    }
    return ranks;
  };
  waiter_.until(
      what_, [&] { return missing().empty(); }, missing);
  std::vector<std::string> all;
  for (int peer = 0; peer < size(); ++peer) all.push_back(take(board_.page(peer).meetings[number % 2]));
  return all;
}

}  // namespace fast_ulysses
