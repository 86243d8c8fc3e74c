// Two exchanges from C++ alone, with forked processes as ranks: heads are scattered, then gathered back.
//
//   cmake -S . -B build/examples -DFAST_ULYSSES_EXAMPLES=ON && cmake --build build/examples --target
//   example_cpp_minimal build/examples/examples/example_cpp_minimal [RANKS]
//
// It uses only what include/fast_ulysses offers. Exits with code 1 where an element is wrong.
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "fast_ulysses/group.h"
#include "fast_ulysses/log.h"
#include "fast_ulysses/partition.h"

namespace {

namespace fu = fast_ulysses;
using Sizes = std::vector<std::int64_t>;

constexpr std::int64_t kTokens = 30, kHeads = 5, kWidth = 16;
constexpr int kMostRanks = 8;

// How ranks meet before they share memory: rank 0 has a socket to every other rank, collects what they say and hands it
// round. MPI, a key-value store or threads would do as well. Every wait ends: a socket times out, or its peer is gone.
class SocketBootstrap final : public fu::Bootstrap {
 public:
  // `sockets`: at rank 0 one to each of ranks 1, 2, ..; elsewhere the one to rank 0.
  SocketBootstrap(int rank, int size, std::vector<int> sockets)
      : rank_(rank), size_(size), sockets_(std::move(sockets)) {
    const timeval limit{30, 0};
    for (const int each : sockets_) setsockopt(each, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::vector<std::string> allgather(const std::string& bytes) override {
    std::vector<std::string> all;
    if (rank_ == 0) {
      all.push_back(bytes);
      for (const int peer : sockets_) all.push_back(receive(peer));
      for (const int peer : sockets_) {
        for (const std::string& each : all) send(peer, each);
      }
    } else {
      send(sockets_[0], bytes);
      while (static_cast<int>(all.size()) < size_) all.push_back(receive(sockets_[0]));
    }
    return all;
  }

 private:
  // One packet a message, with a byte in front: a packet of no bytes could not be told from a closed socket.
  static void send(int to, const std::string& bytes) {
    const std::string packet = "+" + bytes;
    if (::send(to, packet.data(), packet.size(), MSG_NOSIGNAL) < 0) throw fu::PeerError("a rank is gone");
  }
  static std::string receive(int from) {
    char packet[8192];
    const ssize_t got = recv(from, packet, sizeof(packet), 0);
    if (got < 0) throw fu::PeerTimeout("a rank has not arrived after 30 s");
    if (got == 0) throw fu::PeerError("a rank is gone");
    return std::string(packet + 1, static_cast<std::size_t>(got - 1));
  }

  int rank_, size_;
  std::vector<int> sockets_;
};

// [1, tokens, heads, width] from these first tokens and heads on, every element telling where in the whole it stands.
std::vector<std::int32_t> coded(std::int64_t first_token, std::int64_t tokens, std::int64_t first_head,
                                std::int64_t heads) {
  std::vector<std::int32_t> data;
  for (std::int64_t token = first_token; token < first_token + tokens; ++token) {
    for (std::int64_t head = first_head; head < first_head + heads; ++head) {
      for (std::int64_t i = 0; i < kWidth; ++i) {
        data.push_back(static_cast<std::int32_t>((token * kHeads + head) * kWidth + i));
      }
    }
  }
  return data;
}

// A contiguous tensor of this rank. Splits are one length a rank, the same lists on all ranks.
fu::TensorRequest request(Sizes sizes, int scatter_dim, int gather_dim, const Sizes& scatter, const Sizes& gather) {
  fu::TensorRequest made;
  made.strides = {sizes[1] * sizes[2] * sizes[3], sizes[2] * sizes[3], sizes[3], 1};
  made.sizes = std::move(sizes);
  made.elem_bytes = sizeof(std::int32_t);
  made.dtype = "int32";
  made.scatter_dim = scatter_dim;
  made.gather_dim = gather_dim;
  made.scatter_splits = scatter;
  made.gather_splits = gather;
  return made;
}

bool run_rank(fu::Bootstrap& bootstrap) {
  fu::GroupOptions options;
  options.name = "cpp_minimal";
  options.timeout_s = 30;
  const auto group = fu::UlyssesGroup::create(options, bootstrap);  // collective
  const auto rank = static_cast<std::size_t>(group->rank());

  const Sizes tokens = fu::balanced_split(kTokens, group->size()), heads = fu::balanced_split(kHeads, group->size());
  const std::int64_t first_token = fu::part_starts(tokens)[rank], first_head = fu::part_starts(heads)[rank];
  const auto mine = coded(first_token, tokens[rank], 0, kHeads);     // my tokens, all heads
  const auto expected = coded(0, kTokens, first_head, heads[rank]);  // all tokens, my heads

  // A plan is arithmetic: made once, used for every exchange of this shape.
  const auto into = group->plan("scatter heads", {request({1, tokens[rank], kHeads, kWidth}, 2, 1, heads, tokens)});
  const auto back = group->plan("gather heads", {request({1, kTokens, heads[rank], kWidth}, 1, 2, tokens, heads)});
  std::vector<std::int32_t> scattered(expected.size()), gathered(mine.size());
  group->exchange(*into, {mine.data()}, {scattered.data()});  // collective, and so is the next
  group->exchange(*back, {scattered.data()}, {gathered.data()});

  const bool right = scattered == expected && gathered == mine;
  std::printf("rank %d of %d over %s: %lld tokens, %lld heads, %lld bytes to peers: %s\n", group->rank(), group->size(),
              group->transport().c_str(), static_cast<long long>(tokens[rank]), static_cast<long long>(heads[rank]),
              static_cast<long long>(group->counters()["native_bytes"]), right ? "right" : "WRONG");
  group->destroy();  // collective
  return right;
}

int rank_process(int rank, int size, std::vector<int> sockets) {
  fu::set_log_sink([](fu::LogLevel, const std::string& text) { std::fprintf(stderr, "%s\n", text.c_str()); });
  try {
    SocketBootstrap bootstrap(rank, size, std::move(sockets));
    return run_rank(bootstrap) ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    return 1;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int size = argc > 1 ? std::atoi(argv[1]) : 2;
  if (size < 1 || size > kMostRanks) {
    std::fprintf(stderr, "RANKS is 1 to %d\n", kMostRanks);
    return 2;
  }
  std::vector<int> ends_of_rank_0;
  for (int rank = size - 1; rank >= 0; --rank) {  // rank 0 last: it gets the sockets to all others
    int ends[2] = {-1, -1};
    if (rank > 0 && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return 1;
    const pid_t child = fork();
    if (child < 0) return 1;
    if (child == 0) {
      if (rank == 0) std::exit(rank_process(0, size, {ends_of_rank_0.rbegin(), ends_of_rank_0.rend()}));
      for (const int inherited : ends_of_rank_0) close(inherited);
      close(ends[0]);
      std::exit(rank_process(rank, size, {ends[1]}));
    }
    if (rank > 0) {
      ends_of_rank_0.push_back(ends[0]);
      close(ends[1]);
    }
  }
  for (const int each : ends_of_rank_0) close(each);
  bool right = true;
  for (int status = 0; wait(&status) > 0;) right = right && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  return right ? 0 : 1;
}
