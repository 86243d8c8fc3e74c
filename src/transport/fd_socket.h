// Sends file descriptors between the ranks of a host over unix datagram sockets with abstract names.
#pragma once

#include <string>
#include <vector>

namespace fast_ulysses {

class FdSocket {
 public:
  FdSocket();  // throws TransportError
  ~FdSocket();
  FdSocket(const FdSocket&) = delete;
  FdSocket& operator=(const FdSocket&) = delete;

  // A name that nobody can guess: what peers need to reach this socket.
  const std::string& address() const noexcept { return address_; }

  // Sends `fd` to every other address and returns what they sent, by rank (-1 for itself). Owns nothing of what it
  // returns. Ranks whose entry in `skip` is true are left out on both ways. Throws TransportError, having closed what
  // had come, after `timeout_s`.
  std::vector<int> exchange(int rank, const std::vector<std::string>& addresses, const std::vector<bool>& skip, int fd,
                            double timeout_s);

 private:
  bool try_send(int rank, const std::string& address, int fd);
  bool try_receive(const std::vector<bool>& skip, std::vector<int>& fds);

  int socket_ = -1;
  std::string address_;
};

// 128 random bits as hexadecimal digits.
std::string random_token();

}  // namespace fast_ulysses
