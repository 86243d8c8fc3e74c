// The exchange: checks, windows, handshakes, rows. See docs/protocol.md for why each step stands where it stands.
#include <algorithm>

#include "core/group_impl.h"
#include "core/protocol.h"

namespace fast_ulysses {

class UlyssesGroup::Impl::CallScope {
 public:
  CallScope(ControlBoard& board, std::uint32_t signature, const std::string& what) : board_(board) {
    board_.record(signature, what);  // before anything can carry the signature to a peer
    ControlPage& mine = board_.mine();
    mine.op.store(mine.op.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    mine.current.store(signature, std::memory_order_relaxed);
  }
  ~CallScope() { board_.mine().current.store(0, std::memory_order_relaxed); }
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

 private:
  ControlBoard& board_;
};

namespace {

std::uint32_t signature_of(const std::string& text) { return protocol::signature_of(text.data(), text.size()); }

// The call record: the plan's, and which destinations are windows that peers write directly.
std::string call_text(const ExchangePlan& plan, const std::vector<int>& windows) {
  std::string text = plan.text();
  for (std::size_t i = 0; i < windows.size(); ++i) {
    if (windows[i] >= 0) text += "; result " + std::to_string(i) + " into window " + std::to_string(windows[i]);
  }
  return text;
}

bool is_window(const std::vector<int>& windows, std::size_t part) {
  return part < windows.size() && windows[part] >= 0;
}

// Of the group's own windows: nothing when the caller's windows take it all.
std::int64_t needed_bytes(const ExchangePlan& plan, const std::vector<int>& windows) {
  for (std::size_t i = 0; i < plan.parts().size(); ++i) {
    if (!is_window(windows, i)) return plan.window_bytes();
  }
  return 0;
}

}  // namespace

template <class Body>
void UlyssesGroup::Impl::faulting(const std::string& what, Body&& body) {
  try {
    body();
  } catch (const TransportError&) {
    throw;  // a set-up step that all ranks voted down together: nobody is left behind, and the group works on
  } catch (const Error& error) {
    // The error words are set: ControlBoard::fail does that first of all, or a peer did.
    remember_fault(error.what());
    signal_error();
    throw;
  } catch (...) {  // not ours: an interrupt from poll_interrupt
    const std::string text = board_->who() + ": interrupted in " + what;
    board_->publish_error(ErrorCode::kPeerError, text);
    remember_fault(text);
    signal_error();
    throw;
  }
}

// A rank in error pushes nothing more, and its next flag says so: a peer that comes to that handshake later ends there,
// even where error words are seen later than flags.
void UlyssesGroup::Impl::signal_error() noexcept {
  static const std::string kWhat = "error";
  if (size_ > 1) engine_->signal(next_handshake(protocol::kSignatureError, kWhat));
}

Handshake UlyssesGroup::Impl::next_handshake(std::uint32_t signature, const std::string& what) noexcept {
  ++handshakes_;
  ++counters_.handshakes;
  return {static_cast<std::uint32_t>(handshakes_), signature, &what};
}

void UlyssesGroup::Impl::handshake(std::uint32_t signature, const std::string& what) {
  const Handshake next = next_handshake(signature, what);
  engine_->begin(nullptr);
  engine_->signal(next);
  engine_->wait_and_place(next, {});
  engine_->end(nullptr);
}

void UlyssesGroup::Impl::handshake(const std::string& what) {
  const std::uint32_t signature = signature_of(what);
  board_->record(signature, what);
  handshake(signature, what);
}

void UlyssesGroup::Impl::check_call(const ExchangePlan& plan, const std::vector<const void*>& src,
                                    const std::vector<void*>& dst, const std::vector<int>& windows) const {
  const std::size_t parts = plan.parts().size();
  if (plan.rank() != rank_ || plan.size() != size_) {
    throw InvalidArgument("the plan is for rank " + std::to_string(plan.rank()) + " of " + std::to_string(plan.size()) +
                          "; this is rank " + std::to_string(rank_) + " of " + std::to_string(size_));
  }
  if (src.size() != parts || dst.size() != parts || windows.size() > parts) {
    throw InvalidArgument("the plan is for " + std::to_string(parts) + " tensors; " + std::to_string(src.size()) +
                          " sources, " + std::to_string(dst.size()) + " destinations and " +
                          std::to_string(windows.size()) + " windows were given");
  }
  for (std::size_t i = 0; i < windows.size(); ++i) {
    if (windows[i] < 0) continue;
    if (windows[i] >= static_cast<int>(windows_.size())) {
      throw InvalidArgument("window " + std::to_string(windows[i]) + " does not exist; the group has " +
                            std::to_string(windows_.size()));
    }
    const UserWindow& window = windows_[static_cast<std::size_t>(windows[i])];
    if (dst[i] != window.memory.get())
      throw InvalidArgument("destination " + std::to_string(i) + " is not the start of its window");
    if (std::count(windows.begin(), windows.end(), windows[i]) > 1) {
      throw InvalidArgument("window " + std::to_string(windows[i]) + " is given for more than one result");
    }
    if (!plan.parts()[i].contiguous_result) {
      throw InvalidArgument("result " + std::to_string(i) +
                            " is not contiguous; peers write a window as a contiguous tensor");
    }
    if (plan.parts()[i].largest_output_bytes > window.heap->bytes()) {
      throw InvalidArgument("the result of the largest rank takes " +
                            std::to_string(plan.parts()[i].largest_output_bytes) + " bytes; window " +
                            std::to_string(windows[i]) + " has " + std::to_string(window.heap->bytes()));
    }
  }
}

void UlyssesGroup::Impl::exchange(const ExchangePlan& plan, const std::vector<const void*>& src,
                                  const std::vector<void*>& dst, const std::vector<int>& windows) {
  const std::lock_guard<std::mutex> lock(mutex_);
  enter(plan.text());
  check_call(plan, src, dst, windows);
  const std::string what = call_text(plan, windows);
  const std::uint32_t signature = windows.empty() ? plan.signature() : signature_of(what);
  const CallScope scope(*board_, signature, what);
  faulting(what, [&] { run(plan, src, dst, windows, what, signature); });
  ++counters_.calls;
  counters_.native_bytes += plan.wire_bytes();
  counters_.own_bytes += plan.own_bytes();
}

std::shared_ptr<PendingExchange> UlyssesGroup::Impl::exchange_async(std::shared_ptr<const ExchangePlan> plan,
                                                                    std::vector<const void*> src,
                                                                    std::vector<void*> dst) {
  enter(plan->text());
  check_call(*plan, src, dst, {});
  return queue_.push(
      [this, plan = std::move(plan), src = std::move(src), dst = std::move(dst)] { exchange(*plan, src, dst, {}); });
}

void UlyssesGroup::Impl::run(const ExchangePlan& plan, const std::vector<const void*>& src,
                             const std::vector<void*>& dst, const std::vector<int>& windows, const std::string& what,
                             std::uint32_t signature) {
  int turn = 0;
  engine_->expect(plan.wire_bytes() + plan.own_bytes());
  if (size_ > 1) {
    fit(needed_bytes(plan, windows), what);
    turn = arena_.take_turn();
    // The caller reads its own windows whenever it likes until this call: their last use is now.
    const bool held = std::any_of(windows.begin(), windows.end(), [](int window) { return window >= 0; });
    if (held && fault_ != TestFault::kDropOpening) {
      handshake("opening of " + what);
    } else if (!arena_.book(turn).free_at(handshakes_)) {
      ++counters_.inserted_handshakes;
      handshake("handshake before " + what);
    }
  }
  engine_->begin(nullptr);
  const Handshake call = size_ > 1 ? next_handshake(signature, what) : Handshake{};
  if (size_ > 1) {
    if (fault_ == TestFault::kEarlySignal) engine_->signal(call);
    push(plan, src, windows, turn);
    if (fault_ != TestFault::kEarlySignal) engine_->signal(call);
  }
  for (std::size_t i = 0; i < plan.parts().size(); ++i) {
    engine_->copy_own(plan.parts()[i].own, static_cast<const char*>(src[i]), static_cast<char*>(dst[i]));
  }
  if (size_ > 1) {
    engine_->wait_and_place(call, placements(plan, dst, windows, turn));
    arena_.book(turn).used(handshakes_);
  }
  engine_->end(nullptr);
}

void UlyssesGroup::Impl::push(const ExchangePlan& plan, const std::vector<const void*>& src,
                              const std::vector<int>& windows, int turn) {
  for (int step = 1; step < size_; ++step) {  // every rank begins with another peer
    const int peer = (rank_ + step) % size_;
    for (std::size_t i = 0; i < plan.parts().size(); ++i) {
      const ExchangePlan::Part& part = plan.parts()[i];
      char* const to = is_window(windows, i)
                           ? static_cast<char*>(windows_[static_cast<std::size_t>(windows[i])].heap->peer(peer))
                           : arena_.window(peer, turn) + part.window_offset_bytes;
      engine_->push(peer, part.push[static_cast<std::size_t>(peer)], static_cast<const char*>(src[i]), to);
    }
  }
}

std::vector<Placement> UlyssesGroup::Impl::placements(const ExchangePlan& plan, const std::vector<void*>& dst,
                                                      const std::vector<int>& windows, int turn) const {
  std::vector<Placement> list;
  for (std::size_t i = 0; i < plan.parts().size(); ++i) {
    if (is_window(windows, i)) continue;
    const ExchangePlan::Part& part = plan.parts()[i];
    for (int peer = 0; peer < size_; ++peer) {
      const CopyList& copies = part.place[static_cast<std::size_t>(peer)];
      if (copies.empty()) continue;
      list.push_back(
          {peer, &copies, arena_.window(rank_, turn) + part.window_offset_bytes, static_cast<char*>(dst[i])});
    }
  }
  return list;
}

// The need is the largest of any rank, computed from the call's arguments, so all ranks come here together, or the
// handshake in grow() says who does not.
void UlyssesGroup::Impl::fit(std::int64_t window_bytes, const std::string& what) {
  if (window_bytes <= arena_.capacity_bytes()) return;
  ++counters_.growths;
  grow("growth of the windows to " + std::to_string(window_bytes) + " bytes for " + what, window_bytes);
}

void UlyssesGroup::Impl::grow(const std::string& what, std::int64_t capacity_bytes) {
  handshake(what);  // in the common flags, where any other call of a peer is seen
  engine_->synchronize();
  meeting_->set_purpose(what);
  counters_.capacity_bytes = 0;
  arena_.resize(capacity_bytes, *transport_, *meeting_);
  counters_.capacity_bytes = arena_.capacity_bytes();
}

void UlyssesGroup::Impl::resize(const std::string& what, std::int64_t capacity_bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  enter(what);
  if (size_ == 1) return;
  if (capacity_bytes > 0 && capacity_bytes <= arena_.capacity_bytes()) return;  // alike on all ranks
  const std::string text = what + " " + std::to_string(capacity_bytes) + " bytes";
  const CallScope scope(*board_, signature_of(text), text);
  faulting(text, [&] { grow(text, capacity_bytes); });
}

int UlyssesGroup::Impl::empty_window(std::int64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (bytes < 0) throw InvalidArgument("empty: " + std::to_string(bytes) + " bytes; must not be negative");
  const std::string text = "empty, window " + std::to_string(windows_.size());
  enter(text);
  const CallScope scope(*board_, signature_of(text), text);
  faulting(text, [&] {
    if (size_ > 1) handshake(text);
    meeting_->set_purpose(text);
    std::int64_t largest = 1;
    for (const std::string& asked : meeting_->allgather(std::to_string(bytes))) {
      largest = std::max<std::int64_t>(largest, std::stoll(asked));
    }
    UserWindow window;
    window.heap = transport_->make_heap(largest, *meeting_);
    window.memory = window.heap->share_local();
    windows_.push_back(std::move(window));
  });
  return static_cast<int>(windows_.size()) - 1;
}

const UserWindow& UlyssesGroup::Impl::window(int window) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (window < 0 || window >= static_cast<int>(windows_.size())) {
    throw InvalidArgument("window " + std::to_string(window) + " does not exist; the group has " +
                          std::to_string(windows_.size()));
  }
  return windows_[static_cast<std::size_t>(window)];
}

}  // namespace fast_ulysses
