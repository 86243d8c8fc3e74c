// Memory whose first reader is held up: it makes the moment in which rows are sent as long as a test needs.
#pragma once

#include <cstddef>

namespace fast_ulysses::tests {

class SlowMemory {
 public:
  explicit SlowMemory(std::size_t bytes);
  ~SlowMemory();
  SlowMemory(const SlowMemory&) = delete;
  SlowMemory& operator=(const SlowMemory&) = delete;

  char* data() const noexcept { return data_; }
  // The next access, of any thread, takes this long; those after it are as fast as ever.
  void hold_up_next_access(int milliseconds);

 private:
  char* data_;
  std::size_t bytes_;
  int slot_ = -1;
};

}  // namespace fast_ulysses::tests
