// How the ranks of a group meet on the host before they share memory.
#pragma once

#include <string>
#include <vector>

#include "fast_ulysses/visibility.h"

namespace fast_ulysses {

// Collective over exactly the members of one group. Used only inside calls that are documented to synchronise hosts
// (create, and through the control pages: reserve, trim, growth, empty_window, destroy). Implementations bound their
// own waits and throw PeerTimeout; ranks are indices in the group.
class FU_API Bootstrap {
 public:
  virtual ~Bootstrap() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Every rank gives a string (lengths may differ), every rank gets all of them, by rank.
  virtual std::vector<std::string> allgather(const std::string& bytes) = 0;

  // Returns once every rank has called it.
  virtual void barrier() { allgather(std::string()); }
};

}  // namespace fast_ulysses
