// What moves rows and words: the contract of an engine, in terms of CUDA streams.
//
// An exchange is enqueued as  begin, push..., signal, copy_own, wait_and_place, end.  Pushes and the signal belong to
// the group's own transfer stream, which begin() orders after all earlier work of the caller's stream; copy_own and
// wait_and_place belong to the caller's stream, which end() orders after the transfers. On the host engine both streams
// are the calling thread, which is the strictest order there is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fast_ulysses/heap.h"
#include "fast_ulysses/plan.h"

namespace fast_ulysses {

using Stream = void*;  // a cudaStream_t; null on the host engine

// One handshake as the ranks see it.
struct Handshake {
  std::uint32_t epoch;
  std::uint32_t signature;
  const std::string* what;  // names the call in errors
};

// Rows to move once `peer` has arrived: from this rank's window to its result.
struct Placement {
  int peer;
  const CopyList* copies;
  const char* window;
  char* result;
};

class Engine {
 public:
  virtual ~Engine() = default;
  virtual const char* name() const noexcept = 0;
  virtual MemoryKind memory() const noexcept = 0;  // what it can copy to and from

  // What the exchange that begins now moves on this rank: engines choose how by it.
  virtual void expect(std::int64_t bytes) = 0;
  virtual void begin(Stream stream) = 0;
  virtual void push(int peer, const CopyList& copies, const char* src, char* dst) = 0;
  virtual void signal(const Handshake& handshake) = 0;  // to every peer, behind all pushes so far
  virtual void copy_own(const CopyList& copies, const char* src, char* dst) = 0;
  // Waits for every peer's signal; `placements` may run in any order, each after its peer's signal. An engine that
  // blocks throws when a peer is missing or differs; an engine that enqueues sets the error words.
  virtual void wait_and_place(const Handshake& handshake, const std::vector<Placement>& placements) = 0;
  virtual void end(Stream stream) = 0;
  virtual void synchronize() = 0;  // all that was enqueued is done: before memory goes away
};

}  // namespace fast_ulysses
