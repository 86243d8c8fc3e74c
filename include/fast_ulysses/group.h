// UlyssesGroup: one sequence-parallel group of ranks on one host.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fast_ulysses/bootstrap.h"
#include "fast_ulysses/errors.h"
#include "fast_ulysses/plan.h"
#include "fast_ulysses/visibility.h"

namespace fast_ulysses {

struct GroupOptions {
  std::string name = "group";
  std::string transport = "auto";  // "auto" or "shm"; a named transport that cannot serve throws on all ranks
  double timeout_s = 600.0;        // bound of every wait
  std::int64_t heap_bytes = 0;     // windows of this capacity from the start; 0: made at the first exchange
  // Handshakes are counted from here. Their 32-bit epochs wrap: tests start near the end to see it.
  std::uint64_t handshakes_before = 0;
  // Called about every 100 ms by a thread that waits; may throw, which breaks the wait and faults the group.
  std::function<void()> poll_interrupt;
};

// The end of an exchange that was begun by exchange_async. Any thread.
class FU_API PendingExchange {
 public:
  bool done() const;
  // Blocks until the exchange has ended, then throws what it threw. `poll_interrupt` is called about every 100 ms.
  void wait(const std::function<void()>& poll_interrupt = {});
  void finish(std::exception_ptr error) noexcept;  // for the library

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::exception_ptr error_;
};

// Threads: calls of one group are serialised by a mutex; every rank must make them in the same order.
// Errors: InvalidArgument leaves the group usable. Any other error of a collective call is a fault: it reaches every
// rank, and from then on every call but destroy() throws StateError with the first cause.
class FU_API UlyssesGroup {
 public:
  // Collective over the ranks of `bootstrap`, which is used only inside this call. Throws TransportError on every rank
  // when shared memory cannot be had on any.
  static std::unique_ptr<UlyssesGroup> create(GroupOptions options, Bootstrap& bootstrap);

  // Frees nothing that a peer may have mapped and meets nobody: without destroy() the memory is left to the end of the
  // process, and one logged line names the group.
  ~UlyssesGroup();
  UlyssesGroup(const UlyssesGroup&) = delete;
  UlyssesGroup& operator=(const UlyssesGroup&) = delete;

  int rank() const noexcept;
  int size() const noexcept;
  const std::string& name() const noexcept;
  const std::string& transport() const noexcept;

  // Local and pure. Keep the result: a plan is used any number of times.
  std::shared_ptr<const ExchangePlan> plan(const std::string& op, const std::vector<TensorRequest>& requests) const;

  // Collective. One source and one destination address for each tensor of the plan; the sources may be overwritten as
  // soon as the call returns. `windows[i]` >= 0 says that dst[i] is the window of that number (whole, contiguous):
  // peers then write into it directly, behind an opening handshake. The same list on every rank.
  void exchange(const ExchangePlan& plan, const std::vector<const void*>& src, const std::vector<void*>& dst,
                const std::vector<int>& windows = {});

  // Collective; returns at once. The exchange runs in the order of the calls, and every later call of this group comes
  // after it. Sources and destinations must stay as they are until it is done. Any number may be under way.
  std::shared_ptr<PendingExchange> exchange_async(std::shared_ptr<const ExchangePlan> plan,
                                                  std::vector<const void*> src, std::vector<void*> dst);

  // plan() and exchange() in one; the plan is made anew each time.
  void a2a(const TensorRequest& request, const void* src, void* dst);
  void a2a_qkv(const std::array<TensorRequest, 3>& requests, const std::array<const void*, 3>& src,
               const std::array<void*, 3>& dst);
  // As torch.distributed.all_to_all_single with equal parts: `bytes` bytes, the i-th of size() equal parts goes to rank
  // i.
  void all_to_all_single(const void* src, void* dst, std::int64_t bytes);

  // Collective: symmetric memory that the caller may hold and pass to exchange(). Each rank says what it needs, every
  // rank gets the largest of these. It lives until destroy(), and as long as somebody holds window_memory().
  int empty_window(std::int64_t bytes);
  std::shared_ptr<void> window_memory(int window) const;
  std::int64_t window_bytes(int window) const;

  // Local: throws what an earlier call or a peer has left, else nothing.
  void check();
  // Collective: windows of at least this capacity from now on / no windows until the next exchange.
  void reserve(std::int64_t bytes);
  void trim();
  // Local, reaches every peer: what they wait for ends with a PeerError that names this rank and the reason.
  void abort(const std::string& reason);
  // Collective, explicit, idempotent. After a fault it meets nobody and returns at once.
  void destroy();

  std::map<std::string, std::int64_t> counters() const;

 private:
  class Impl;
  explicit UlyssesGroup(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace fast_ulysses
