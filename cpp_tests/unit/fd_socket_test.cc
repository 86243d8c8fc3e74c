#include "transport/fd_socket.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fast_ulysses/errors.h"
#include "support/groups.h"
#include "support/thread_env.h"

namespace fast_ulysses::tests {
namespace {

ino_t inode_of(int fd) {
  struct stat status {};
  return fstat(fd, &status) == 0 ? status.st_ino : 0;
}

TEST(FdSocket, SendsADescriptorToEveryPeer) {
  run_ranks(8, [](RankEnv& env) {
    FdSocket socket;
    const std::vector<std::string> addresses = env.world().allgather(socket.address());
    int pipe_ends[2];
    ASSERT_EQ(pipe(pipe_ends), 0);
    const auto inodes = env.world().allgather(std::to_string(inode_of(pipe_ends[0])));
    const std::vector<int> fds =
        socket.exchange(env.rank(), addresses, std::vector<bool>(8, false), pipe_ends[0], 30.0);
    ASSERT_EQ(fds.size(), 8u);
    for (std::size_t rank = 0; rank < fds.size(); ++rank) {
      EXPECT_EQ(std::to_string(inode_of(fds[rank])), inodes[rank]);
      close(fds[rank]);
    }
    close(pipe_ends[0]);
    close(pipe_ends[1]);
    env.barrier();
  });
}

TEST(FdSocket, LeavesOutWhomItIsTold) {
  FdSocket socket;
  const std::vector<int> fds = socket.exchange(0, {socket.address(), "nobody"}, {true, true}, 0, 1.0);
  EXPECT_EQ(fds, (std::vector<int>{-1, -1}));
}

TEST(FdSocket, GivesUpAndLeavesNothing) {
  const int before = holdings().descriptors;
  {
    FdSocket socket, silent;
    EXPECT_THROW(socket.exchange(0, {socket.address(), silent.address()}, {false, false}, 0, 0.2), TransportError);
    EXPECT_THROW(socket.exchange(0, {"fast_ulysses-no-such-address"}, {false}, 0, 0.2), TransportError);
    std::string gone;
    {
      FdSocket dies;
      gone = dies.address();
    }
    const Outcome outcome = outcome_of([&] { socket.exchange(0, {socket.address(), gone}, {true, false}, 0, 60.0); });
    EXPECT_EQ(outcome.code, ErrorCode::kTransportError);
    EXPECT_LT(outcome.seconds, 5.0) << "waits for a socket that is closed";
  }
  EXPECT_EQ(holdings().descriptors, before);
}

TEST(RandomToken, DiffersEachTime) {
  EXPECT_EQ(random_token().size(), 32u);
  EXPECT_NE(random_token(), random_token());
}

}  // namespace
}  // namespace fast_ulysses::tests
