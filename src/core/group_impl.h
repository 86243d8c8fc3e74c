// The state of a UlyssesGroup. Members are declared in the order in which they are made; each uses those above it.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/arena.h"
#include "core/async_queue.h"
#include "core/control.h"
#include "core/meeting.h"
#include "core/test_fault.h"
#include "core/waiter.h"
#include "engine/engine.h"
#include "fast_ulysses/group.h"

namespace fast_ulysses {

// Symmetric memory that the caller may hold.
struct UserWindow {
  std::unique_ptr<SymmetricHeap> heap;
  std::shared_ptr<void> memory;  // this rank's part
};

// Read by any thread at any time, also while a call waits.
struct Counters {
  std::atomic<std::int64_t> calls{0}, native_bytes{0}, own_bytes{0}, handshakes{0}, inserted_handshakes{0}, growths{0},
      capacity_bytes{0};
};

class UlyssesGroup::Impl {
 public:
  Impl(GroupOptions options, Bootstrap& bootstrap);
  ~Impl();

  void exchange(const ExchangePlan& plan, const std::vector<const void*>& src, const std::vector<void*>& dst,
                const std::vector<int>& windows);
  std::shared_ptr<PendingExchange> exchange_async(std::shared_ptr<const ExchangePlan> plan,
                                                  std::vector<const void*> src, std::vector<void*> dst);
  // Every later call comes after the asynchronous ones: called by the public face before each.
  void drain() { queue_.drain(); }
  bool idle() { return queue_.idle(); }
  int empty_window(std::int64_t bytes);
  const UserWindow& window(int window) const;
  void check();
  void resize(const std::string& what, std::int64_t capacity_bytes);
  void abort(const std::string& reason);
  void destroy();
  std::map<std::string, std::int64_t> counters() const;

  const GroupOptions& options() const noexcept { return options_; }
  const std::string& transport_name() const noexcept { return transport_name_; }
  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }

 private:
  // Marks this rank as being in a call, for peers that wait for it, until the end of the scope.
  class CallScope;

  void enter(const std::string& what);
  // Runs the collective part of a call; whatever leaves it as an exception is a fault of the group.
  template <class Body>
  void faulting(const std::string& what, Body&& body);
  void remember_fault(const std::string& text) noexcept;
  void signal_error() noexcept;

  Handshake next_handshake(std::uint32_t signature, const std::string& what) noexcept;
  // Signals and waits, nothing else: an inserted or opening handshake, or the head of a host-side meeting.
  void handshake(const std::string& what);
  void handshake(std::uint32_t signature, const std::string& what);
  void fit(std::int64_t window_bytes, const std::string& what);
  void grow(const std::string& what, std::int64_t capacity_bytes);
  void run(const ExchangePlan& plan, const std::vector<const void*>& src, const std::vector<void*>& dst,
           const std::vector<int>& windows, const std::string& what, std::uint32_t signature);
  void push(const ExchangePlan& plan, const std::vector<const void*>& src, const std::vector<int>& windows, int turn);
  std::vector<Placement> placements(const ExchangePlan& plan, const std::vector<void*>& dst,
                                    const std::vector<int>& windows, int turn) const;
  void check_call(const ExchangePlan& plan, const std::vector<const void*>& src, const std::vector<void*>& dst,
                  const std::vector<int>& windows) const;
  void leak() noexcept;

  const GroupOptions options_;
  const int rank_, size_;
  TestFault fault_ = TestFault::kNone;
  std::string who_;           // how messages begin, also when the board is gone
  mutable std::mutex mutex_;  // one call at a time
  std::mutex board_mutex_;    // check() and abort() come from any thread: the board must not go under them
  std::unique_ptr<ControlBoard> board_;
  std::unique_ptr<Waiter> waiter_;
  std::unique_ptr<Meeting> meeting_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Engine> engine_;
  Arena arena_;
  std::vector<UserWindow> windows_;
  std::string transport_name_;
  std::uint64_t handshakes_;  // enqueued so far; the epoch of the last one is its low half
  Counters counters_;
  mutable std::mutex fault_mutex_;
  std::optional<std::string> fault_text_;
  std::atomic<bool> destroyed_{false};
  AsyncQueue queue_;
};

}  // namespace fast_ulysses
