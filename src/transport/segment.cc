#include "transport/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>

#include "core/vote.h"
#include "fast_ulysses/errors.h"
#include "transport/fd_socket.h"
#include "transport/host_memory.h"

namespace fast_ulysses {

class Mapping {
 public:
  // Takes the descriptor over, also when it throws.
  Mapping(int fd, std::int64_t bytes) : fd_(fd), bytes_(static_cast<std::size_t>(bytes)) {
    address_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    if (address_ == MAP_FAILED) {
      const std::string text = std::string("mmap of ") + std::to_string(bytes) + " bytes: " + std::strerror(errno);
      close(fd_);
      throw TransportError(text);
    }
  }
  ~Mapping() {
    munmap(address_, bytes_);
    close(fd_);  // also drops the liveness lock, if this is the own segment
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  void* address() const noexcept { return address_; }
  int fd() const noexcept { return fd_; }

 private:
  int fd_;
  std::size_t bytes_;
  void* address_;
};

namespace {

constexpr double kDescriptorTimeoutSeconds = 60.0;

int make_memfd(std::int64_t bytes) {
  const int fd = memfd_create("fast_ulysses", MFD_CLOEXEC);
  if (fd < 0) throw TransportError(std::string("memfd_create: ") + std::strerror(errno));
  int error = ftruncate(fd, bytes) == 0 ? 0 : errno;
  if (error == 0) error = posix_fallocate(fd, 0, bytes);
  if (error != 0) {
    close(fd);
    throw TransportError("reserving " + std::to_string(bytes) + " bytes of shared memory: " + std::strerror(error));
  }
  return fd;
}

// The segments of this process, for ranks that are its threads. A descriptor's address names one of these only inside
// this process, so an entry that is found is a rank of this process.
struct LocalMappings {
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<Mapping>> by_address;

  void add(const std::string& address, const std::shared_ptr<Mapping>& mapping) {
    const std::lock_guard<std::mutex> lock(mutex);
    for (auto it = by_address.begin(); it != by_address.end();) {
      it = it->second.expired() ? by_address.erase(it) : std::next(it);
    }
    by_address[address] = mapping;
  }
  std::shared_ptr<Mapping> find(const std::string& address) {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto it = by_address.find(address);
    return it == by_address.end() ? nullptr : it->second.lock();
  }
  bool holds(const Mapping* mapping) {
    const std::lock_guard<std::mutex> lock(mutex);
    for (const auto& [address, entry] : by_address) {
      if (entry.lock().get() == mapping) return true;
    }
    return false;
  }
};
LocalMappings& local_mappings() {
  static LocalMappings* const instance = new LocalMappings;  // leaked: used by destructors at exit
  return *instance;
}

// Too little memory must be an error and not the out-of-memory killer. All ranks of a group share one host: what they
// ask together is held against what the poorest of them sees. Pure function of gathered facts, so all throw alike.
void check_memory(std::int64_t bytes, Bootstrap& bootstrap, const std::string& what) {
  std::int64_t free_bytes = available_host_memory_bytes();
  for (const std::string& other : bootstrap.allgather(std::to_string(free_bytes))) {
    free_bytes = std::min<std::int64_t>(free_bytes, std::stoll(other));
  }
  std::int64_t asked = 0;
  if (__builtin_mul_overflow(bytes, std::int64_t{bootstrap.size()}, &asked)) {
    asked = std::numeric_limits<std::int64_t>::max();
  }
  // An eighth stays for everybody else: these pages cannot be taken back, and a machine with none left kills processes.
  if (asked > free_bytes - free_bytes / 8) {
    throw TransportError(what + " asks " + std::to_string(bytes) + " bytes of shared memory on each of " +
                         std::to_string(bootstrap.size()) + " ranks, " + std::to_string(asked) + " together; " +
                         std::to_string(free_bytes) + " are free, of which an eighth is left to others");
  }
}

}  // namespace

std::unique_ptr<SegmentSet> SegmentSet::make(std::int64_t bytes, Bootstrap& bootstrap, const std::string& what) {
  check_memory(bytes, bootstrap, what);
  std::unique_ptr<SegmentSet> set(new SegmentSet);
  set->bytes_ = bytes;
  set->rank_ = bootstrap.rank();
  set->mappings_.resize(static_cast<std::size_t>(bootstrap.size()));
  std::unique_ptr<FdSocket> socket;
  std::shared_ptr<Mapping> own;
  const std::vector<std::string> addresses = vote(bootstrap, what, [&] {
    socket = std::make_unique<FdSocket>();
    own = std::make_shared<Mapping>(make_memfd(bytes), bytes);
    local_mappings().add(socket->address(), own);
    return socket->address();
  });
  vote(bootstrap, what, [&] {
    std::vector<bool> skip(addresses.size(), false);
    for (std::size_t rank = 0; rank < addresses.size(); ++rank) {
      set->mappings_[rank] = local_mappings().find(addresses[rank]);
      skip[rank] = set->mappings_[rank] != nullptr;
    }
    const std::vector<int> fds = socket->exchange(set->rank_, addresses, skip, own->fd(), kDescriptorTimeoutSeconds);
    for (std::size_t rank = 0; rank < fds.size(); ++rank) {
      if (!skip[rank]) set->mappings_[rank] = std::make_shared<Mapping>(fds[rank], bytes);
    }
    return std::string();
  });
  return set;
}

void* SegmentSet::at(int rank) const noexcept { return mappings_[static_cast<std::size_t>(rank)]->address(); }

std::shared_ptr<void> SegmentSet::share(int rank) const {
  const std::shared_ptr<Mapping>& mapping = mappings_[static_cast<std::size_t>(rank)];
  return std::shared_ptr<void>(mapping, mapping->address());
}

void SegmentSet::lock_own() {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  if (fcntl(mappings_[static_cast<std::size_t>(rank_)]->fd(), F_SETLK, &lock) != 0) {
    throw TransportError(std::string("locking the control segment: ") + std::strerror(errno));
  }
}

bool SegmentSet::alive(int rank) const noexcept {
  const Mapping& mapping = *mappings_[static_cast<std::size_t>(rank)];
  if (local_mappings().holds(&mapping)) return true;
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  // The question itself failing says nothing about the peer: the timeout still bounds the wait.
  if (fcntl(mapping.fd(), F_GETLK, &lock) != 0) return true;
  return lock.l_type != F_UNLCK;
}

}  // namespace fast_ulysses
