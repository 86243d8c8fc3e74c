// A transport and an engine as small as they can be, and one exchange over both: docs/adding_a_transport.md goes
// through it. Ranks are threads of this process, so memory that one of them allocates is at the same address for all.
//
// Exits with code 1 where a check fails.
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/bootstrap_threads.h"
#include "core/control.h"
#include "core/protocol.h"
#include "core/vote.h"
#include "core/waiter.h"
#include "engine/engine.h"
#include "engine/host.h"
#include "fast_ulysses/errors.h"
#include "fast_ulysses/heap.h"
#include "fast_ulysses/plan.h"

namespace {

namespace fu = fast_ulysses;
using Memory = std::shared_ptr<char[]>;

// [transport]
class ThreadHeap final : public fu::SymmetricHeap {
 public:
  ThreadHeap(std::int64_t bytes, int rank, std::vector<Memory> all)
      : bytes_(bytes), rank_(static_cast<std::size_t>(rank)), all_(std::move(all)) {}
  std::int64_t bytes() const noexcept override { return bytes_; }
  void* local() const noexcept override { return all_[rank_].get(); }
  void* peer(int rank) const noexcept override { return all_[static_cast<std::size_t>(rank)].get(); }
  fu::MemoryKind kind() const noexcept override { return fu::MemoryKind::kHost; }
  std::shared_ptr<void> share_local() const override { return std::shared_ptr<void>(all_[rank_], local()); }

 private:
  std::int64_t bytes_;
  std::size_t rank_;
  std::vector<Memory> all_;  // by rank; the memory of a rank lives until the last heap that reaches it is gone
};

class ThreadTransport final : public fu::Transport {
 public:
  explicit ThreadTransport(int failing_rank = -1) : failing_rank_(failing_rank) {}
  const char* name() const noexcept override { return "threads"; }

  std::unique_ptr<fu::SymmetricHeap> make_heap(std::int64_t bytes, fu::Bootstrap& bootstrap) override {
    const std::string what = "the heap of the threads";
    Memory own;
    // What one rank throws here, bad_alloc included, all ranks throw as one TransportError, and `own` is freed.
    const std::vector<std::string> where = fu::vote(bootstrap, what, [&] {
      if (bootstrap.rank() == failing_rank_) throw std::runtime_error("made to fail");
      own.reset(new char[static_cast<std::size_t>(bytes)]());  // zeroed
      return std::to_string(reinterpret_cast<std::uintptr_t>(&own));
    });
    std::vector<Memory> all;
    // A vote is a barrier too: `own` stays until every rank has taken its share of it.
    fu::vote(bootstrap, what, [&] {
      for (const std::string& each : where) all.push_back(*reinterpret_cast<Memory*>(std::stoull(each)));
      return std::string();
    });
    return std::make_unique<ThreadHeap>(bytes, bootstrap.rank(), std::move(all));
  }

 private:
  int failing_rank_;
};
// [/transport]

// [engine]
// Counts what goes to peers, and leaves the rest to the engine that it wraps.
class CountingEngine final : public fu::Engine {
 public:
  explicit CountingEngine(std::unique_ptr<fu::Engine> inner) : inner_(std::move(inner)) {}
  const char* name() const noexcept override { return "counting"; }
  fu::MemoryKind memory() const noexcept override { return inner_->memory(); }
  void expect(std::int64_t bytes) override { inner_->expect(bytes); }
  void begin(fu::Stream stream) override { inner_->begin(stream); }
  void push(int peer, const fu::CopyList& copies, const char* src, char* dst) override {
    for (const fu::StridedCopy& copy : copies) pushed_bytes_ += copy.bytes();
    inner_->push(peer, copies, src, dst);
  }
  void signal(const fu::Handshake& handshake) override { inner_->signal(handshake); }
  void copy_own(const fu::CopyList& copies, const char* src, char* dst) override { inner_->copy_own(copies, src, dst); }
  void wait_and_place(const fu::Handshake& handshake, const std::vector<fu::Placement>& placements) override {
    inner_->wait_and_place(handshake, placements);
  }
  void end(fu::Stream stream) override { inner_->end(stream); }
  void synchronize() override { inner_->synchronize(); }

  std::int64_t pushed_bytes() const noexcept { return pushed_bytes_; }

 private:
  std::unique_ptr<fu::Engine> inner_;
  std::int64_t pushed_bytes_ = 0;
};
// [/engine]

// [exchange]
// The first exchange of a group, as UlyssesGroup enqueues it. The heap is one window that nobody has used yet.
void exchange(fu::ControlBoard& board, fu::Engine& engine, const fu::SymmetricHeap& heap, const fu::ExchangePlan& plan,
              const char* src, char* dst) {
  const std::string& what = plan.text();
  const std::uint32_t signature = fu::protocol::signature_of(what.data(), what.size());
  const fu::Handshake first{1, signature, &what};
  const fu::ExchangePlan::Part& part = plan.parts()[0];
  board.record(signature, what);  // before anything can carry the signature to a peer
  engine.expect(plan.wire_bytes() + plan.own_bytes());
  engine.begin(nullptr);
  std::vector<fu::Placement> arriving;
  for (int peer = 0; peer < plan.size(); ++peer) {
    if (peer == plan.rank()) continue;
    const auto index = static_cast<std::size_t>(peer);
    engine.push(peer, part.push[index], src, static_cast<char*>(heap.peer(peer)) + part.window_offset_bytes);
    const char* const window = static_cast<const char*>(heap.local()) + part.window_offset_bytes;
    arriving.push_back({peer, &part.place[index], window, dst});
  }
  engine.signal(first);
  engine.copy_own(part.own, src, dst);
  engine.wait_and_place(first, arriving);
  engine.end(nullptr);
}
// [/exchange]

// Rank r holds one row, [1, 1, size, 1], of 100 r + h at head h; then all rows of head r.
bool one_exchange(fu::Bootstrap& bootstrap) {
  const int rank = bootstrap.rank(), size = bootstrap.size();
  fu::TensorRequest request;
  request.sizes = {1, 1, size, 1};
  request.strides = {size, size, 1, 1};
  request.elem_bytes = sizeof(std::int32_t);
  request.dtype = "int32";
  const auto plan = fu::ExchangePlan::make("a2a", {request}, rank, size);

  fu::ControlBoard board("example", bootstrap);  // collective
  fu::Waiter waiter(board, 30.0, {});
  CountingEngine engine(fu::make_host_engine(board, waiter, fu::TestFault::kNone));
  const auto heap = ThreadTransport().make_heap(plan->window_bytes(), bootstrap);  // collective

  std::vector<std::int32_t> row, result(static_cast<std::size_t>(size), -1);
  for (int head = 0; head < size; ++head) row.push_back(100 * rank + head);
  exchange(board, engine, *heap, *plan, reinterpret_cast<const char*>(row.data()),
           reinterpret_cast<char*>(result.data()));

  bool right = engine.pushed_bytes() == plan->wire_bytes();
  for (int from = 0; from < size; ++from) right = right && result[static_cast<std::size_t>(from)] == 100 * from + rank;
  bootstrap.barrier();  // every rank is past its last access before pages and heap go
  return right;
}

bool failure_is_everyones(fu::Bootstrap& bootstrap) {
  std::string text;
  try {
    ThreadTransport(bootstrap.size() - 1).make_heap(64, bootstrap);
  } catch (const fu::TransportError& error) {
    text = error.what();
  }
  for (const std::string& other : bootstrap.allgather(text)) {
    if (other.empty() || other != text) return false;
  }
  return true;
}

}  // namespace

int main() {
  constexpr int kRanks = 3;
  fu::ThreadHub hub(kRanks);
  std::atomic<bool> right{true};
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&hub, &right, rank] {
      try {
        const auto bootstrap = hub.bootstrap(rank);
        const bool exchanged = one_exchange(*bootstrap), voted = failure_is_everyones(*bootstrap);
        std::printf("rank %d: exchange %s, failure told to all: %s\n", rank, exchanged ? "right" : "WRONG",
                    voted ? "yes" : "NO");
        if (!exchanged || !voted) right = false;
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
        right = false;
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return right ? 0 : 1;
}
