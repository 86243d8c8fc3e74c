// Host-side meetings over the control pages: bounded, and ended by any rank's error.
#pragma once

#include <string>
#include <vector>

#include "core/waiter.h"
#include "fast_ulysses/bootstrap.h"

namespace fast_ulysses {

// A bootstrap for what a group does after it was made: growth, reserve, trim, windows, destroy. At most kMeetingBytes a
// rank and meeting.
class Meeting final : public Bootstrap {
 public:
  Meeting(ControlBoard& board, Waiter& waiter) : board_(board), waiter_(waiter) {}
  int rank() const override { return board_.rank(); }
  int size() const override { return board_.size(); }
  std::vector<std::string> allgather(const std::string& bytes) override;

  // What the next meetings are for, in messages.
  void set_purpose(std::string what) { what_ = std::move(what); }

 private:
  ControlBoard& board_;
  Waiter& waiter_;
  std::uint32_t number_ = 0;  // of the last meeting
  std::string what_ = "a meeting of the hosts";
};

}  // namespace fast_ulysses
