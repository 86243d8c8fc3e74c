// Memory that every rank of a group can address: the contract of a transport.
#pragma once

#include <cstdint>
#include <memory>

#include "fast_ulysses/bootstrap.h"
#include "fast_ulysses/visibility.h"

namespace fast_ulysses {

enum class MemoryKind { kHost, kDevice };

// One allocation a rank, all of the same size. The addresses are this process's own view: never send them to a peer.
class FU_API SymmetricHeap {
 public:
  virtual ~SymmetricHeap() = default;  // local: unmaps and frees this rank's views, meets nobody
  virtual std::int64_t bytes() const noexcept = 0;
  virtual void* local() const noexcept = 0;
  // Where this process reaches the allocation of `rank`, its own included; null where it cannot.
  virtual void* peer(int rank) const noexcept = 0;
  virtual MemoryKind kind() const noexcept = 0;
  // Keeps this rank's own allocation alive for as long as somebody holds it, also after the heap is gone.
  virtual std::shared_ptr<void> share_local() const = 0;
};

// Makes heaps for one group.
class FU_API Transport {
 public:
  virtual ~Transport() = default;
  virtual const char* name() const noexcept = 0;
  // Collective, every rank with the same `bytes`. A transaction: every rank gets its heap or every rank throws the same
  // TransportError, and what was made so far is gone.
  virtual std::unique_ptr<SymmetricHeap> make_heap(std::int64_t bytes, Bootstrap& bootstrap) = 0;
};

}  // namespace fast_ulysses
