#include "core/arena.h"

#include <gtest/gtest.h>

#include "support/thread_env.h"
#include "transport/shm.h"

namespace fast_ulysses::tests {
namespace {

TEST(Book, ARegionIsFreeOnceAHandshakeFollowedItsLastUse) {
  Book book;
  EXPECT_TRUE(book.free_at(0)) << "never used";
  book.used(0);
  EXPECT_FALSE(book.free_at(0)) << "used before any handshake";
  EXPECT_TRUE(book.free_at(1));
  book.used(5);
  EXPECT_FALSE(book.free_at(5));
  EXPECT_TRUE(book.free_at(6));
  book.used(6);  // a later use counts, not the first
  EXPECT_FALSE(book.free_at(6));
}

// Two windows in turn, each call with one handshake: the rule never asks for another. With one window it always does.
TEST(Book, TwoWindowsInTurnNeedNoOtherHandshake) {
  for (const int windows : {1, 2}) {
    std::vector<Book> books(static_cast<std::size_t>(windows));
    std::uint64_t handshakes = 0;
    int inserted = 0;
    for (int call = 0; call < 10; ++call) {
      Book& book = books[static_cast<std::size_t>(call % windows)];
      if (!book.free_at(handshakes)) {
        ++inserted;
        ++handshakes;
      }
      ++handshakes;
      book.used(handshakes);
    }
    EXPECT_EQ(inserted, windows == 1 ? 9 : 0) << windows;
  }
}

TEST(Arena, TakesTurnsAndForgetsItsBooksWhenItGrows) {
  run_ranks(2, [](RankEnv& env) {
    const auto transport = make_shm_transport();
    Arena arena;
    EXPECT_EQ(arena.capacity_bytes(), 0);
    EXPECT_EQ(arena.window(0, 1), nullptr);
    arena.resize(1000, *transport, env.world());
    EXPECT_GE(arena.capacity_bytes(), 1000);
    EXPECT_EQ(arena.capacity_bytes() % 4096, 0);
    const int first = arena.take_turn(), second = arena.take_turn();
    EXPECT_NE(first, second);
    EXPECT_EQ(arena.take_turn(), first);
    for (int rank = 0; rank < 2; ++rank) {
      const auto apart = arena.window(rank, 1) - arena.window(rank, 0);
      EXPECT_GE(apart, arena.capacity_bytes()) << "windows overlap";
    }
    arena.book(0).used(9);
    env.barrier();
    arena.resize(1 << 20, *transport, env.world());
    EXPECT_TRUE(arena.book(0).free_at(9)) << "that region is gone";
    arena.resize(0, *transport, env.world());
    EXPECT_EQ(arena.capacity_bytes(), 0);
  });
}

TEST(Arena, ThatCannotGrowHasNoWindows) {
  run_ranks(2, [](RankEnv& env) {
    const auto transport = make_shm_transport();
    Arena arena;
    arena.resize(1000, *transport, env.world());
    EXPECT_THROW(arena.resize(std::int64_t{1} << 62, *transport, env.world()), TransportError);
    EXPECT_EQ(arena.capacity_bytes(), 0);
    arena.resize(1000, *transport, env.world());
    EXPECT_GE(arena.capacity_bytes(), 1000);
  });
}

}  // namespace
}  // namespace fast_ulysses::tests
