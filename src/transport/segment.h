// Host memory shared by the ranks of one host: one memfd a rank, its descriptor sent over a unix socket.
//
// A memfd needs no /dev/shm, has no name that could be left behind, and lives as long as somebody maps it, so any rank
// may die at any moment without a trace. Its pages are reserved when it is made: too little memory is an error here
// and never a SIGBUS later. Ranks that are threads of one process share one mapping (the thread sanitizer, which sees
// addresses, then sees the same memory).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fast_ulysses/bootstrap.h"

namespace fast_ulysses {

class Mapping;  // one mapped memfd

class SegmentSet {
 public:
  // Collective; the same `bytes` on every rank, zeroed. A transaction: all ranks get it or all throw TransportError.
  static std::unique_ptr<SegmentSet> make(std::int64_t bytes, Bootstrap& bootstrap, const std::string& what);

  std::int64_t bytes() const noexcept { return bytes_; }
  void* at(int rank) const noexcept;
  std::shared_ptr<void> share(int rank) const;

  // Liveness. A record lock on the own segment: the kernel drops it when the process dies, zombies included, and a
  // forked child does not inherit it (a flock it would, and kill(pid, 0) calls an unreaped child alive).
  void lock_own();
  // False once the process of `rank` is gone. Ranks in this very process count as alive.
  bool alive(int rank) const noexcept;

 private:
  SegmentSet() = default;
  std::int64_t bytes_ = 0;
  int rank_ = 0;
  std::vector<std::shared_ptr<Mapping>> mappings_;  // by rank
};

}  // namespace fast_ulysses
