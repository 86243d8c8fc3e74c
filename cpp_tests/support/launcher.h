// Ranks as processes that this test forks, stops and kills, without MPI. Every wait has a deadline.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fast_ulysses/bootstrap.h"
#include "support/thread_env.h"

namespace fast_ulysses::tests {

struct Board;  // what launcher and ranks share

// In a rank's process.
class ForkRank {
 public:
  ForkRank(Board& board, int rank, int size, double bootstrap_timeout_s);
  ~ForkRank();
  int rank() const { return rank_; }
  int size() const { return size_; }
  Bootstrap& world() { return *world_; }
  // A number for the launcher and the other ranks to see.
  void set_progress(int value);
  int progress_of(int rank) const;
  // Called with the number of each meeting of world(), before this rank comes to it and after its part is there.
  void on_meeting(std::function<void(int number, bool came)> hook);

 private:
  Board& board_;
  int rank_, size_;
  std::unique_ptr<Bootstrap> world_;
};

// How a rank's process ended.
struct Ended {
  int exit_code = -1;  // 0, or kErrorExit + the code of the error that left its body; -1: by a signal
  int signal = 0;
  bool stuck = false;  // had to be killed at the deadline
  Outcome outcome;     // of its body, if that came to an end
  double at_s = 0;     // when its body ended, on Launcher::now_s()
};
inline constexpr int kErrorExit = 100;

class Launcher {
 public:
  // Forks the ranks. Each runs `body` and leaves by exit().
  Launcher(int size, const std::function<void(ForkRank&)>& body, double bootstrap_timeout_s = 20.0);
  ~Launcher();  // kills what still runs
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  static double now_s();
  int progress(int rank) const;
  // False when that rank did not get there in time.
  bool await_progress(int rank, int value, double within_s = 20.0) const;
  void signal_rank(int rank, int signal) const;
  bool await_end(int rank, double within_s) const;  // the process has ended and is not reaped
  // Waits until all have ended, kills those that have not after `within_s`, and only then reaps any of them.
  std::vector<Ended> finish(double within_s = 30.0);

 private:
  int size_;
  Board* board_;
  std::vector<pid_t> pids_;
};

// Names in /dev/shm, and this process's descriptors: what must be the same before and after.
struct Leftovers {
  std::vector<std::string> shared_memory;
  int descriptors = 0;
  bool operator==(const Leftovers& other) const {
    return shared_memory == other.shared_memory && descriptors == other.descriptors;
  }
};
Leftovers leftovers();

}  // namespace fast_ulysses::tests
