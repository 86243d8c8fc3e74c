#include "support/slow_memory.h"

#include <sys/mman.h>

#include <atomic>
#include <csignal>
#include <ctime>
#include <stdexcept>

namespace fast_ulysses::tests {
namespace {

// Regions that may be armed; the handler of SIGSEGV may only read atomics.
struct Region {
  std::atomic<bool> taken{false};
  std::atomic<char*> begin{nullptr};
  std::atomic<std::size_t> bytes{0};
  std::atomic<int> milliseconds{0};
};
constexpr int kRegions = 64;
Region regions[kRegions];

void on_fault(int, siginfo_t* info, void*) {
  for (Region& region : regions) {
    char* const begin = region.begin.load();
    const auto* const address = static_cast<const char*>(info->si_addr);
    if (begin == nullptr || address < begin || address >= begin + region.bytes.load()) continue;
    const int milliseconds = region.milliseconds.load();
    const timespec time{milliseconds / 1000, (milliseconds % 1000) * 1000000L};
    nanosleep(&time, nullptr);
    mprotect(begin, region.bytes.load(), PROT_READ | PROT_WRITE);
    return;
  }
  std::signal(SIGSEGV, SIG_DFL);  // a true fault: it happens again, and ends the process
}

}  // namespace

SlowMemory::SlowMemory(std::size_t bytes) : bytes_((bytes + 4095) / 4096 * 4096) {
  void* const address = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) throw std::runtime_error("mmap");
  data_ = static_cast<char*>(address);
  for (int slot = 0; slot < kRegions && slot_ < 0; ++slot) {
    bool free = false;
    if (regions[slot].taken.compare_exchange_strong(free, true)) slot_ = slot;
  }
  if (slot_ < 0) throw std::runtime_error("too many slow regions");
  regions[slot_].bytes.store(bytes_);
  regions[slot_].begin.store(data_);
  static const bool installed = [] {
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;  // several threads may be held up at once
    return sigaction(SIGSEGV, &action, nullptr) == 0;
  }();
  if (!installed) throw std::runtime_error("sigaction");
}

SlowMemory::~SlowMemory() {
  regions[slot_].begin.store(nullptr);
  munmap(data_, bytes_);
  regions[slot_].taken.store(false);
}

void SlowMemory::hold_up_next_access(int milliseconds) {
  regions[slot_].milliseconds.store(milliseconds);
  if (mprotect(data_, bytes_, PROT_NONE) != 0) throw std::runtime_error("mprotect");
}

}  // namespace fast_ulysses::tests
