#include "transport/fd_socket.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "fast_ulysses/errors.h"

namespace fast_ulysses {
namespace {

std::string system_error(const std::string& what) { return what + ": " + std::strerror(errno); }

socklen_t abstract_name(const std::string& address, sockaddr_un& name) {
  std::memset(&name, 0, sizeof(name));
  name.sun_family = AF_UNIX;
  std::memcpy(name.sun_path + 1, address.data(), address.size());  // a leading zero byte: no file in any file system
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + address.size());
}

// One descriptor and the sender's rank.
struct Message {
  std::int32_t rank = 0;
  iovec data{&rank, sizeof(rank)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};

  Message() {
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
  }
};

// Whether somebody still holds the socket of this address. A rank keeps its own open until all have said that they have
// what they need, so a closed one belongs to a rank that has ended or given up.
bool open_somewhere(const std::string& address) {
  const int probe = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (probe < 0) return true;  // says nothing about the peer: the timeout still bounds the wait
  sockaddr_un name;
  const socklen_t length = abstract_name(address, name);
  const bool gone = connect(probe, reinterpret_cast<sockaddr*>(&name), length) != 0 && errno == ECONNREFUSED;
  close(probe);
  return !gone;
}

}  // namespace

std::string random_token() {
  unsigned char bytes[16];
  if (getrandom(bytes, sizeof(bytes), 0) != sizeof(bytes)) throw TransportError(system_error("getrandom"));
  std::string token;
  for (const unsigned char byte : bytes) {
    token += "0123456789abcdef"[byte >> 4];
    token += "0123456789abcdef"[byte & 15];
  }
  return token;
}

FdSocket::FdSocket() : address_("fast_ulysses-" + random_token()) {
  socket_ = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (socket_ < 0) throw TransportError(system_error("socket(AF_UNIX)"));
  sockaddr_un name;
  const socklen_t length = abstract_name(address_, name);
  if (bind(socket_, reinterpret_cast<sockaddr*>(&name), length) != 0) {
    const std::string text = system_error("bind of a unix socket");
    close(socket_);
    throw TransportError(text);
  }
}

FdSocket::~FdSocket() { close(socket_); }

bool FdSocket::try_send(int rank, const std::string& address, int fd) {
  Message message;
  message.rank = rank;
  cmsghdr* const control = CMSG_FIRSTHDR(&message.header);
  control->cmsg_level = SOL_SOCKET;
  control->cmsg_type = SCM_RIGHTS;
  control->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(control), &fd, sizeof(int));
  sockaddr_un name;
  message.header.msg_namelen = abstract_name(address, name);
  message.header.msg_name = &name;
  if (sendmsg(socket_, &message.header, MSG_NOSIGNAL) >= 0) return true;
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR || errno == ENOBUFS) return false;
  throw TransportError(system_error("sending a descriptor over a unix socket"));
}

bool FdSocket::try_receive(const std::vector<bool>& skip, std::vector<int>& fds) {
  Message message;
  const ssize_t got = recvmsg(socket_, &message.header, MSG_CMSG_CLOEXEC);
  if (got < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return false;
    throw TransportError(system_error("receiving a descriptor over a unix socket"));
  }
  const cmsghdr* const control = CMSG_FIRSTHDR(&message.header);
  if (control == nullptr || control->cmsg_type != SCM_RIGHTS)
    return false;  // not ours: the name is secret, but be sure
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(control), sizeof(int));
  const auto from = static_cast<std::size_t>(message.rank);
  if (got != sizeof(message.rank) || from >= fds.size() || skip[from] || fds[from] >= 0) {
    close(fd);
    return false;
  }
  fds[from] = fd;
  return true;
}

std::vector<int> FdSocket::exchange(int rank, const std::vector<std::string>& addresses, const std::vector<bool>& skip,
                                    int fd, double timeout_s) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(timeout_s);
  std::vector<int> fds(addresses.size(), -1);
  std::vector<std::size_t> to_send;
  for (std::size_t peer = 0; peer < addresses.size(); ++peer) {
    if (!skip[peer]) to_send.push_back(peer);
  }
  std::size_t to_receive = to_send.size();
  try {
    // Sending and receiving take turns: queues are short, and all ranks that only send would wait for one another.
    while (!to_send.empty() || to_receive > 0) {
      while (!to_send.empty() && try_send(rank, addresses[to_send.back()], fd)) to_send.pop_back();
      bool received = false;
      while (to_receive > 0 && try_receive(skip, fds)) {
        --to_receive;
        received = true;
      }
      if (received || (to_send.empty() && to_receive == 0)) continue;
      for (std::size_t peer = 0; peer < fds.size(); ++peer) {
        if (!skip[peer] && fds[peer] < 0 && !open_somewhere(addresses[peer])) {
          throw TransportError("rank " + std::to_string(peer) + " has ended or given up before all had its descriptor");
        }
      }
      if (std::chrono::steady_clock::now() > deadline) {
        throw TransportError("a peer sent no descriptor within " + std::to_string(timeout_s) + " s");
      }
      pollfd waiting{socket_, POLLIN, 0};
      poll(&waiting, 1, 10);
    }
  } catch (...) {
    for (const int received : fds) {
      if (received >= 0) close(received);
    }
    throw;
  }
  return fds;
}

}  // namespace fast_ulysses
