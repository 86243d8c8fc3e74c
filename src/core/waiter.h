// The one place where a thread of the host waits for other ranks. Every wait is bounded and says what it was for.
#pragma once

#include <sched.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "core/control.h"
#include "core/futex.h"

namespace fast_ulysses {

class Waiter {
 public:
  using Clock = std::chrono::steady_clock;

  Waiter(ControlBoard& board, double timeout_s, std::function<void()> poll_interrupt);

  // Calls `ready` until it returns true. For every wait: who can be
  //   late: it sleeps; after 10 s one line is logged;
  //   missing: PeerTimeout after the timeout, naming the ranks in `missing()` and where they are;
  //   dead: PeerError within a tenth of a second or two, the kernel having dropped the peer's lock;
  //   in error, or calling something else: its flag or the error word says so, and `ready` or this throws;
  //   gone from the group: PeerError.
  // `what` names the call. Throws through ControlBoard::fail, so every peer learns of it.
  template <class Ready, class Missing>
  void until(const std::string& what, Ready&& ready, Missing&& missing) {
    for (int spin = 0; spin < spins_; ++spin) {
      if (ready()) return;
      if (board_.in_error()) board_.throw_if_error(what);
      pause();
    }
    sleep_until(
        what, [&] { return ready(); }, [&] { return missing(); });
  }

  double timeout_s() const noexcept { return timeout_s_; }

 private:
  static void pause() noexcept;
  void sleep_until(const std::string& what, const std::function<bool()>& ready,
                   const std::function<std::vector<int>()>& missing);
  void look_around(const std::string& what, const std::function<bool()>& ready,
                   const std::function<std::vector<int>()>& missing, Clock::time_point start, bool& told);

  ControlBoard& board_;
  double timeout_s_;
  std::function<void()> poll_interrupt_;
  int spins_;
};

}  // namespace fast_ulysses
