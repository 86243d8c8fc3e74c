#include "transport/shm.h"

#include "transport/segment.h"

namespace fast_ulysses {
namespace {

class ShmHeap final : public SymmetricHeap {
 public:
  ShmHeap(std::unique_ptr<SegmentSet> segments, int rank) : segments_(std::move(segments)), rank_(rank) {}
  std::int64_t bytes() const noexcept override { return segments_->bytes(); }
  void* local() const noexcept override { return segments_->at(rank_); }
  void* peer(int rank) const noexcept override { return segments_->at(rank); }
  MemoryKind kind() const noexcept override { return MemoryKind::kHost; }
  std::shared_ptr<void> share_local() const override { return segments_->share(rank_); }

 private:
  std::unique_ptr<SegmentSet> segments_;
  int rank_;
};

class ShmTransport final : public Transport {
 public:
  const char* name() const noexcept override { return "shm"; }
  std::unique_ptr<SymmetricHeap> make_heap(std::int64_t bytes, Bootstrap& bootstrap) override {
    return std::make_unique<ShmHeap>(SegmentSet::make(bytes, bootstrap, "the shm heap"), bootstrap.rank());
  }
};

}  // namespace

std::unique_ptr<Transport> make_shm_transport() { return std::make_unique<ShmTransport>(); }

}  // namespace fast_ulysses
