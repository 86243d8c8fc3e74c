#include "core/waiter.h"

#include <algorithm>

#include "fast_ulysses/log.h"

namespace fast_ulysses {
namespace {

constexpr int kSliceMilliseconds = 100;  // how often a sleeper looks around: interrupts, dead peers, the clock
constexpr double kTellAfterSeconds = 10.0;
// Spinning pays only while the peer runs at the same time: a few tens of microseconds where every rank can have a core,
// next to nothing where ranks share one.
constexpr int kSpinsWithCores = 2000;
constexpr int kSpinsSharing = 20;

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

std::string ranks_text(const ControlBoard& board, const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : "; ") + board.describe(rank);
  return text;
}

std::string seconds_text(double seconds) {
  std::string text = std::to_string(seconds);
  text.erase(text.find('.') + 2);
  return text + " s";
}

}  // namespace

Waiter::Waiter(ControlBoard& board, double timeout_s, std::function<void()> poll_interrupt)
    : board_(board),
      timeout_s_(timeout_s),
      poll_interrupt_(std::move(poll_interrupt)),
      spins_(usable_cores() >= board.size() ? kSpinsWithCores : kSpinsSharing) {}

void Waiter::pause() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

void Waiter::sleep_until(const std::string& what, const std::function<bool()>& ready,
                         const std::function<std::vector<int>()>& missing) {
  ControlPage& mine = board_.mine();
  const Clock::time_point start = Clock::now();
  Clock::time_point looked = start;
  bool told = false;
  const struct Awake {  // also when `ready` throws
    ControlPage& page;
    ~Awake() { page.sleeping.store(0); }
  } awake{mine};
  for (;;) {
    mine.sleeping.store(1);
    const std::uint32_t bell = mine.doorbell.load();  // before the look: a ring after it changes the word
    if (ready()) return;
    if (board_.in_error()) board_.throw_if_error(what);
    futex_wait(mine.doorbell, bell, kSliceMilliseconds);
    const Clock::time_point now = Clock::now();
    if (now - looked >= std::chrono::milliseconds(kSliceMilliseconds)) {
      looked = now;
      look_around(what, ready, missing, start, told);
    }
  }
}

void Waiter::look_around(const std::string& what, const std::function<bool()>& ready,
                         const std::function<std::vector<int>()>& missing, Clock::time_point start, bool& told) {
  if (poll_interrupt_) poll_interrupt_();
  std::vector<int> gone;
  for (const int rank : missing()) {
    const bool left = board_.page(rank).state.load() == static_cast<std::uint32_t>(RankState::kDestroyed);
    if (left || !board_.alive(rank)) gone.push_back(rank);
  }
  // What has arrived counts, even if its sender is gone by now, and what it said before it went: so the look at the
  // words comes after the look at the senders.
  if (ready()) return;
  if (board_.in_error()) board_.throw_if_error(what);
  const std::vector<int> absent = missing();
  for (const int rank : gone) {
    if (std::find(absent.begin(), absent.end(), rank) == absent.end()) continue;
    board_.fail(ErrorCode::kPeerError,
                what + ": " + board_.describe(rank) + ", and has not arrived; destroy() the group");
  }
  const double waited = std::chrono::duration<double>(Clock::now() - start).count();
  if (waited > timeout_s_) {
    board_.fail(ErrorCode::kPeerTimeout,
                what + ": not arrived after " + seconds_text(timeout_s_) + ": " + ranks_text(board_, absent));
  }
  if (waited > kTellAfterSeconds && !told) {
    told = true;
    log(LogLevel::kWarning,
        board_.who() + ": " + what + ": waiting for " + seconds_text(waited) + " for " + ranks_text(board_, absent));
  }
}

}  // namespace fast_ulysses
