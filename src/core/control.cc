#include "core/control.h"

#include <unistd.h>

#include "core/futex.h"
#include "core/vote.h"

namespace fast_ulysses {

ControlBoard::ControlBoard(const std::string& group, Bootstrap& bootstrap)
    : rank_(bootstrap.rank()),
      size_(bootstrap.size()),
      who_("group '" + group + "', rank " + std::to_string(rank_) + " of " + std::to_string(size_)),
      segments_(SegmentSet::make(sizeof(ControlPage), bootstrap, "the control page of group '" + group + "'")) {
  // The memory is zeroed, which is the initial value of every word; peers may read it from now on.
  // The vote is also a barrier: flags are clear and locks are taken on every rank before anyone's first signal.
  vote(bootstrap, "the control page of group '" + group + "'", [&] {
    segments_->lock_own();
    mine().pid.store(getpid());
    mine().state.store(static_cast<std::uint32_t>(RankState::kAlive));
    return std::string();
  });
}

void ControlBoard::ring(int peer) const noexcept {
  // Dekker with the sleeper: it stores `sleeping` and then looks at the word it waits for; we stored that word and now
  // look at `sleeping`. All four accesses are sequentially consistent, so one of the two sees the other.
  ControlPage& other = page(peer);
  if (other.sleeping.load() == 0) return;
  other.doorbell.fetch_add(1);
  futex_wake_all(other.doorbell);
}

void ControlBoard::record(std::uint32_t signature, const std::string& text) noexcept {
  for (const CallRecord& record : mine().records) {
    if (record.signature.load(std::memory_order_relaxed) == signature) return;
  }
  CallRecord& record = mine().records[next_record_];
  next_record_ = (next_record_ + 1) % kCallRecords;
  record.signature.store(0);  // a reader must not take the new text for the old call, or the other way round
  record.text.store(text);
  record.signature.store(signature);
}

std::string ControlBoard::recorded(int rank, std::uint32_t signature) const {
  for (const CallRecord& record : page(rank).records) {
    if (record.signature.load() != signature) continue;
    std::string text = record.text.load();
    if (record.signature.load() == signature && !text.empty()) return text;
  }
  return "a call whose record is gone (signature " + std::to_string(signature) + ")";
}

std::string ControlBoard::describe(int rank) const {
  const ControlPage& other = page(rank);
  std::string text = "rank " + std::to_string(rank) + " (pid " + std::to_string(other.pid.load()) + ")";
  if (other.state.load() == static_cast<std::uint32_t>(RankState::kDestroyed)) return text + " has destroyed the group";
  if (!alive(rank)) return text + " is dead, at op " + std::to_string(other.op.load());
  const std::uint32_t current = other.current.load();
  text += " is at op " + std::to_string(other.op.load());
  return text + (current == 0 ? ", outside any call" : ", in " + recorded(rank, current));
}

void ControlBoard::publish_error(ErrorCode code, const std::string& text) noexcept {
  {
    const std::lock_guard<std::mutex> lock(publish_mutex_);  // abort() comes from any thread
    if (!published_) mine().error_text.store(text);          // peers may be reading the first one
    published_ = true;
  }
  const std::uint64_t word = static_cast<std::uint64_t>(code) | static_cast<std::uint64_t>(rank_) << 8;
  for (int step = 1; step <= size_; ++step) {  // peers first, this rank last
    const int to = (rank_ + step) % size_;
    std::uint64_t none = 0;
    page(to).error_word.compare_exchange_strong(none, word);
    ring(to);
  }
}

void ControlBoard::fail(ErrorCode code, const std::string& text) {
  const std::string full = who_ + ": " + text;
  // Two ranks may find the same fault at once; a rank that has been told already keeps to that first cause, and its own
  // finding is what it throws: both are true.
  publish_error(code, full);
  throw_error(code, full);
}

void ControlBoard::throw_if_error(const std::string& while_in) const {
  const std::uint64_t word = mine().error_word.load();
  if (word == 0) return;
  const auto code = static_cast<ErrorCode>(word & 0xff);
  const int origin = static_cast<int>(word >> 8);
  const std::string text = page(origin).error_text.load();
  if (origin == rank_) throw_error(code, text);
  throw_error(code, who_ + (while_in.empty() ? "" : ": " + while_in) + ": rank " + std::to_string(origin) +
                        " reported: " + text);
}

void ControlBoard::leak() noexcept { static_cast<void>(segments_.release()); }

}  // namespace fast_ulysses
