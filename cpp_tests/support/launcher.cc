#include "support/launcher.h"

#include <dirent.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>

#include "fast_ulysses/errors.h"
#include "support/groups.h"

namespace fast_ulysses::tests {

constexpr int kMostRanks = 8;

struct Slot {  // one meeting of a rank, by parity
  std::atomic<int> number{0};
  std::atomic<std::size_t> bytes{0};
  char data[4096];
};

struct Seat {
  Slot slots[2];
  std::atomic<int> progress{0};
  std::atomic<bool> ended{false};
  int code = 0;
  double seconds = 0, at_s = 0;
  char text[4096];
};

struct Board {
  Seat seats[kMostRanks];
};

namespace {

void nap() { std::this_thread::sleep_for(std::chrono::microseconds(200)); }

class SharedBootstrap final : public Bootstrap {
 public:
  SharedBootstrap(Board& board, int rank, int size, double timeout_s)
      : board_(board), rank_(rank), size_(size), timeout_s_(timeout_s) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::vector<std::string> allgather(const std::string& bytes) override {
    const int number = ++number_;
    if (hook) hook(number, false);
    Slot& mine = board_.seats[rank_].slots[number % 2];
    if (bytes.size() > sizeof(mine.data)) throw std::runtime_error("too much for one meeting");
    std::memcpy(mine.data, bytes.data(), bytes.size());
    mine.bytes = bytes.size();
    mine.number = number;
    if (hook) hook(number, true);
    const double limit = Launcher::now_s() + timeout_s_;
    std::vector<std::string> all;
    for (int peer = 0; peer < size_; ++peer) {
      Slot& slot = board_.seats[peer].slots[number % 2];
      while (slot.number < number) {
        if (Launcher::now_s() > limit)
          throw PeerTimeout("rank " + std::to_string(peer) + " did not come to the bootstrap");
        nap();
      }
      all.emplace_back(slot.data, slot.bytes);
    }
    return all;
  }

  std::function<void(int, bool)> hook;

 private:
  Board& board_;
  int rank_, size_;
  double timeout_s_;
  int number_ = 0;
};

[[noreturn]] void run_rank(Board& board, int rank, int size, double timeout_s,
                           const std::function<void(ForkRank&)>& body) {
  Seat& seat = board.seats[rank];
  Outcome outcome;
  {
    ForkRank self(board, rank, size, timeout_s);
    outcome = outcome_of([&] { body(self); });
  }
  seat.code = static_cast<int>(outcome.code);
  seat.seconds = outcome.seconds;
  seat.at_s = Launcher::now_s();
  std::snprintf(seat.text, sizeof(seat.text), "%s", outcome.text.c_str());
  seat.ended = true;
  const bool foreign = outcome.code == ErrorCode::kNone && !outcome.text.empty();
  std::exit(foreign ? 1 : outcome.code == ErrorCode::kNone ? 0 : kErrorExit + seat.code);
}

}  // namespace

ForkRank::ForkRank(Board& board, int rank, int size, double bootstrap_timeout_s)
    : board_(board),
      rank_(rank),
      size_(size),
      world_(std::make_unique<SharedBootstrap>(board, rank, size, bootstrap_timeout_s)) {}
ForkRank::~ForkRank() = default;
void ForkRank::set_progress(int value) { board_.seats[rank_].progress = value; }
int ForkRank::progress_of(int rank) const { return board_.seats[rank].progress; }
void ForkRank::on_meeting(std::function<void(int, bool)> hook) {
  static_cast<SharedBootstrap&>(*world_).hook = std::move(hook);
}

Launcher::Launcher(int size, const std::function<void(ForkRank&)>& body, double bootstrap_timeout_s) : size_(size) {
  void* const memory = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED || size > kMostRanks) throw std::runtime_error("no shared memory for the launcher");
  board_ = new (memory) Board;
  std::fflush(nullptr);  // or each child writes it once more
  for (int rank = 0; rank < size; ++rank) {
    const pid_t pid = fork();
    if (pid < 0) throw std::runtime_error("fork");
    if (pid == 0) run_rank(*board_, rank, size, bootstrap_timeout_s, body);
    pids_.push_back(pid);
  }
}

Launcher::~Launcher() {
  if (!pids_.empty()) finish(0);
  munmap(board_, sizeof(Board));
}

double Launcher::now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int Launcher::progress(int rank) const { return board_->seats[rank].progress; }

bool Launcher::await_progress(int rank, int value, double within_s) const {
  for (const double limit = now_s() + within_s; progress(rank) < value; nap()) {
    if (now_s() > limit) return false;
  }
  return true;
}

void Launcher::signal_rank(int rank, int signal) const { kill(pids_[static_cast<std::size_t>(rank)], signal); }

bool Launcher::await_end(int rank, double within_s) const {
  const auto pid = static_cast<id_t>(pids_[static_cast<std::size_t>(rank)]);
  for (const double limit = now_s() + within_s;; nap()) {
    siginfo_t info = {};
    if (waitid(P_PID, pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0) return true;
    if (now_s() > limit) return false;
  }
}

std::vector<Ended> Launcher::finish(double within_s) {
  const double limit = now_s() + within_s;
  std::vector<Ended> all(static_cast<std::size_t>(size_));
  for (int rank = 0; rank < size_; ++rank) {
    Ended& ended = all[static_cast<std::size_t>(rank)];
    ended.stuck = !await_end(rank, std::max(0.0, limit - now_s()));
  }
  for (int rank = 0; rank < size_; ++rank) {
    Ended& ended = all[static_cast<std::size_t>(rank)];
    if (ended.stuck) {
      signal_rank(rank, SIGKILL);
      await_end(rank, 5.0);
    }
    int status = 0;
    waitpid(pids_[static_cast<std::size_t>(rank)], &status, 0);
    if (WIFEXITED(status)) ended.exit_code = WEXITSTATUS(status);
    if (WIFSIGNALED(status)) ended.signal = WTERMSIG(status);
    const Seat& seat = board_->seats[rank];
    if (!seat.ended) continue;
    ended.outcome = {static_cast<ErrorCode>(seat.code), seat.text, seat.seconds};
    ended.at_s = seat.at_s;
  }
  pids_.clear();
  return all;
}

Leftovers leftovers() {
  Leftovers found;
  if (DIR* const folder = opendir("/dev/shm")) {
    while (const dirent* const entry = readdir(folder)) {
      const std::string name = entry->d_name;
      if (name.find("ulysses") != std::string::npos) found.shared_memory.push_back(name);
    }
    closedir(folder);
  }
  found.descriptors = holdings().descriptors;
  return found;
}

}  // namespace fast_ulysses::tests
