#include "engine/host.h"

#include "core/protocol.h"
#include "engine/host_copy.h"

namespace fast_ulysses {
namespace {

using protocol::Arrival;

// Flags in the control pages. Stores and loads are sequentially consistent: a store releases the rows that were copied
// before it (plain stores, or streaming ones behind their fence; docs/protocol.md, step 4), and orders with ring().
class HostFlags {
 public:
  explicit HostFlags(ControlBoard& board) : board_(board) {}
  void store(int peer, unsigned parity, std::uint64_t flag) {
    board_.page(peer).flags[board_.rank()].parity[parity].store(flag);
    board_.ring(peer);
  }
  std::uint64_t load(int peer, unsigned parity) { return board_.mine().flags[peer].parity[parity].load(); }

 private:
  ControlBoard& board_;
};

class HostEngine final : public Engine {
 public:
  HostEngine(ControlBoard& board, Waiter& waiter, const TestFault& fault)
      : board_(board), waiter_(waiter), fault_(fault), flags_(board) {}

  const char* name() const noexcept override { return "host"; }
  MemoryKind memory() const noexcept override { return MemoryKind::kHost; }
  void expect(std::int64_t bytes) override { stores_ = stores_for(bytes, board_.size()); }
  void begin(Stream) override {}
  void end(Stream) override {}
  void synchronize() override {}

  void push(int, const CopyList& copies, const char* src, char* dst) override {
    copy_rows(copies, src, dst, stores_);
    if (fault_ == TestFault::kFlipBit) flip_bit(copies, dst);
  }
  void copy_own(const CopyList& copies, const char* src, char* dst) override { copy_rows(copies, src, dst, stores_); }

  void signal(const Handshake& handshake) override {
    protocol::signal(flags_, board_.rank(), board_.size(), handshake.epoch, handshake.signature);
  }

  void wait_and_place(const Handshake& handshake, const std::vector<Placement>& placements) override {
    std::vector<bool> here(static_cast<std::size_t>(board_.size()), false);
    here[static_cast<std::size_t>(board_.rank())] = true;
    int absent = board_.size() - 1;
    const auto ready = [&] {
      if (fault_ == TestFault::kDropWait) return true;
      for (int peer = 0; peer < board_.size() && absent > 0; ++peer) {
        const auto index = static_cast<std::size_t>(peer);
        if (here[index] || !arrived(peer, handshake)) continue;
        here[index] = true;
        --absent;
        place(peer, placements);  // the others may still be on their way
      }
      return absent == 0;
    };
    const auto missing = [&] {
      std::vector<int> ranks;
      for (int peer = 0; peer < board_.size(); ++peer) {
        if (!here[static_cast<std::size_t>(peer)]) ranks.push_back(peer);
      }
      return ranks;
    };
    waiter_.until(*handshake.what, ready, missing);
    if (fault_ == TestFault::kDropWait) place_all(placements);
    // Again, after the windows were read: a rank that deviated may have written into them meanwhile, and whoever saw
    // that has set this word before it did anything else.
    if (board_.in_error()) board_.throw_if_error(*handshake.what);
  }

 private:
  bool arrived(int peer, const Handshake& handshake) {
    switch (protocol::look(flags_, peer, handshake.epoch, handshake.signature)) {
      case Arrival::kAbsent:
        return false;
      case Arrival::kHere:
        return true;
      case Arrival::kPeerInError:
        board_.throw_if_error(*handshake.what);
        board_.fail(ErrorCode::kPeerError, *handshake.what + ": rank " + std::to_string(peer) + " is in error");
      case Arrival::kMismatch:
        break;
    }
    const std::uint32_t theirs = protocol::flag_signature(flags_.load(peer, handshake.epoch & 1));
    board_.fail(ErrorCode::kCollectiveMismatch,
                "the ranks make different calls: rank " + std::to_string(board_.rank()) + " is in " + *handshake.what +
                    "; rank " + std::to_string(peer) + " is in " + board_.recorded(peer, theirs));
  }

  void place(int peer, const std::vector<Placement>& placements) const {
    for (const Placement& placement : placements) {
      if (placement.peer == peer) copy_rows(*placement.copies, placement.window, placement.result, stores_);
    }
  }
  void place_all(const std::vector<Placement>& placements) const {
    for (int peer = 0; peer < board_.size(); ++peer) place(peer, placements);
  }
  static void flip_bit(const CopyList& copies, char* dst) {
    if (!copies.empty()) dst[copies.front().dst_offset_bytes] ^= 1;
  }

  ControlBoard& board_;
  Waiter& waiter_;
  const TestFault fault_;
  HostFlags flags_;
  Stores stores_ = Stores::kCached;
};

}  // namespace

std::unique_ptr<Engine> make_host_engine(ControlBoard& board, Waiter& waiter, const TestFault& fault) {
  return std::make_unique<HostEngine>(board, waiter, fault);
}

}  // namespace fast_ulysses
