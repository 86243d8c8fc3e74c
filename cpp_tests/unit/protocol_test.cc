#include "core/protocol.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <tuple>
#include <vector>

namespace fast_ulysses::protocol {
namespace {

constexpr std::uint32_t kCall = 0xabcdef01, kOther = 0x12345678;

TEST(Classify, KnowsOwnLateAndForeignFlags) {
  for (const std::uint32_t epoch : {1u, 2u, 77u, 0x7fffffffu, 0x80000000u, 0xffffffffu, 0u}) {
    EXPECT_EQ(classify(make_flag(epoch, kCall), epoch, kCall), Arrival::kHere) << epoch;
    EXPECT_EQ(classify(make_flag(epoch, kOther), epoch, kCall), Arrival::kMismatch) << epoch;
    EXPECT_EQ(classify(make_flag(epoch, kSignatureDestroy), epoch, kCall), Arrival::kMismatch) << epoch;
    EXPECT_EQ(classify(make_flag(epoch - 2, kCall), epoch, kCall), Arrival::kAbsent) << "the flag before it: " << epoch;
    EXPECT_EQ(classify(make_flag(epoch - 2, kOther), epoch, kCall), Arrival::kAbsent) << epoch;
    EXPECT_EQ(classify(make_flag(epoch + 2, kCall), epoch, kCall), Arrival::kMismatch) << "too far ahead: " << epoch;
    for (const std::uint32_t when : {epoch, epoch - 2, epoch + 1}) {
      EXPECT_EQ(classify(make_flag(when, kSignatureError), epoch, kCall), Arrival::kPeerInError) << epoch;
    }
  }
}

TEST(Classify, ClearedMemoryIsAbsentForTheFirstEpochs) {
  EXPECT_EQ(classify(0, 1, kCall), Arrival::kAbsent);
  EXPECT_EQ(classify(0, 2, kCall), Arrival::kAbsent);
}

TEST(Signature, IsNeverReserved) {
  std::mt19937 random(1);
  for (int i = 0; i < 200000; ++i) {
    const std::string text = "call " + std::to_string(random());
    ASSERT_GE(signature_of(text.data(), text.size()), kFirstSignature);
  }
  EXPECT_NE(signature_of("a2a", 3), signature_of("a2b", 3));
  EXPECT_NE(signature_of("", 0), 0u);
}

// Words by (to, from, parity).
struct FakeMemory {
  std::map<std::tuple<int, int, unsigned>, std::uint64_t>& words;
  int rank;
  std::vector<int>* order = nullptr;
  void store(int peer, unsigned parity, std::uint64_t flag) {
    words[{peer, rank, parity}] = flag;
    if (order != nullptr) order->push_back(peer);
  }
  std::uint64_t load(int peer, unsigned parity) { return words[{rank, peer, parity}]; }
};

TEST(Signal, GoesToEveryPeerAndIsSeenThere) {
  std::map<std::tuple<int, int, unsigned>, std::uint64_t> words;
  const std::uint32_t start = 0xfffffffd;  // over the wrap
  for (const std::uint32_t earlier : {start - 2, start - 1}) {
    for (int rank = 0; rank < 4; ++rank) {
      FakeMemory memory{words, rank};
      signal(memory, rank, 4, earlier, kCall);
    }
  }
  for (std::uint32_t step = 0; step < 8; ++step) {
    const std::uint32_t epoch = start + step;
    for (int rank = 0; rank < 4; ++rank) {
      std::vector<int> order;
      FakeMemory memory{words, rank, &order};
      for (int peer = 0; peer < 4; ++peer) {
        if (peer != rank) {
          EXPECT_EQ(look(memory, peer, epoch, kCall + step), peer < rank ? Arrival::kHere : Arrival::kAbsent);
        }
      }
      signal(memory, rank, 4, epoch, kCall + step);
      EXPECT_EQ(order, (std::vector<int>{(rank + 1) % 4, (rank + 2) % 4, (rank + 3) % 4}));
    }
    for (int rank = 0; rank < 4; ++rank) {
      FakeMemory memory{words, rank};
      for (int peer = 0; peer < 4; ++peer) {
        if (peer != rank) {
          EXPECT_EQ(look(memory, peer, epoch, kCall + step), Arrival::kHere) << epoch;
          if (step > 0) {
            EXPECT_EQ(look(memory, peer, epoch - 1, kCall + step - 1), Arrival::kHere) << "still readable";
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace fast_ulysses::protocol
