// Segments and heaps.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "fast_ulysses/errors.h"
#include "support/conformance.h"
#include "transport/segment.h"
#include "transport/shm.h"

namespace fast_ulysses::tests {
namespace {

constexpr std::int64_t kBytes = 3 * 4096 + 24;

void peers_see_writes(RankEnv& env) {
  const auto heap = make_shm_transport()->make_heap(kBytes, env.world());
  EXPECT_EQ(heap->bytes(), kBytes);
  EXPECT_EQ(heap->kind(), MemoryKind::kHost);
  EXPECT_EQ(heap->peer(env.rank()), heap->local());
  const auto* const bytes = static_cast<const char*>(heap->local());
  EXPECT_TRUE(std::all_of(bytes, bytes + kBytes, [](char byte) { return byte == 0; })) << "not zeroed";
  env.barrier();
  for (int peer = 0; peer < env.size(); ++peer) {
    ASSERT_NE(heap->peer(peer), nullptr);
    static_cast<std::int32_t*>(heap->peer(peer))[env.rank()] = 1000 * env.rank() + peer + 1;
    static_cast<char*>(heap->peer(peer))[kBytes - 1 - env.rank()] = static_cast<char>(env.rank() + 1);
  }
  env.barrier();
  for (int from = 0; from < env.size(); ++from) {
    EXPECT_EQ(static_cast<const std::int32_t*>(heap->local())[from], 1000 * from + env.rank() + 1);
    EXPECT_EQ(bytes[kBytes - 1 - from], from + 1);
  }
  env.barrier();
}

void local_memory_outlives_the_heap(RankEnv& env) {
  auto heap = make_shm_transport()->make_heap(kBytes, env.world());
  std::shared_ptr<void> memory = heap->share_local();
  EXPECT_EQ(memory.get(), heap->local());
  const int next = (env.rank() + 1) % env.size();
  std::memset(heap->peer(next), 'a' + env.rank(), kBytes);
  env.barrier();
  heap.reset();
  env.barrier();  // gone on every rank
  const int before = (env.rank() + env.size() - 1) % env.size();
  EXPECT_EQ(static_cast<const char*>(memory.get())[kBytes - 1], 'a' + before);
  static_cast<char*>(memory.get())[0] = 'z';
}

void all_are_alive(RankEnv& env) {
  const auto segments = SegmentSet::make(64, env.world(), "the test segment");
  segments->lock_own();
  env.barrier();
  for (int peer = 0; peer < env.size(); ++peer) EXPECT_TRUE(segments->alive(peer)) << "rank " << peer;
  env.barrier();
}

void too_large_a_heap_fails_on_all(RankEnv& env) {
  const auto transport = make_shm_transport();
  for (const std::int64_t bytes : {std::int64_t{1} << 45, std::int64_t{1} << 62}) {
    std::string text;
    try {
      transport->make_heap(bytes, env.world());
    } catch (const TransportError& error) {
      text = error.what();
    }
    EXPECT_NE(text.find(std::to_string(bytes)), std::string::npos) << text;
    EXPECT_NE(text.find("free"), std::string::npos) << text;
    for (const std::string& other : env.world().allgather(text)) EXPECT_EQ(other, text) << "not the same on all ranks";
  }
  const auto heap = transport->make_heap(kBytes, env.world());
  EXPECT_NE(heap->local(), nullptr) << "a smaller one works";
}

}  // namespace

std::vector<ConformanceCase> heap_cases() {
  return {{"heap_peers_see_writes", peers_see_writes},
          {"heap_local_memory_outlives_the_heap", local_memory_outlives_the_heap},
          {"heap_all_are_alive", all_are_alive},
          {"heap_too_large_a_heap_fails_on_all", too_large_a_heap_fails_on_all}};
}

}  // namespace fast_ulysses::tests
