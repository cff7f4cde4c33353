// Calls: the socket calls of a program, on the kernel or through src/socket. Both have one signature and one convention
// (a result or a negative errno). So one test body runs on both, and Linux gives the expected result.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "socket/api.h"

namespace bypass::test {

class Calls {
 public:
  explicit Calls(bool bypass) : bypass_(bypass) {}
  ~Calls();
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;

  [[nodiscard]] bool bypass() const { return bypass_; }
  /// The address that a test's servers have: 10.9.0.1 or 127.0.0.1.
  [[nodiscard]] sockaddr_in address(std::uint16_t port) const;

  int socket(int domain, int type);
  long bind(int fd, const sockaddr_in& name);
  long listen(int fd, int backlog);
  long connect(int fd, const sockaddr_in& name);
  /// connect() to AF_UNSPEC.
  long disconnect(int fd);
  long accept(int fd, int flags = 0, sockaddr_in* peer = nullptr);
  /// Uses the program's own pointers.
  long accept_named(int fd, int flags, sockaddr* name, socklen_t* length);
  long shutdown(int fd, int how);
  long close(int fd);
  int dup(int fd);
  long send(int fd, std::string_view bytes, int flags = MSG_NOSIGNAL);
  /// The bytes that were received are in `bytes`.
  long receive(int fd, std::string& bytes, std::size_t room = 65536, int flags = 0);
  long send_to(int fd, std::string_view bytes, const sockaddr_in& to, int flags = 0);
  long receive_from(int fd, std::string& bytes, sockaddr_in& from, std::size_t room = 65536, int flags = 0);
  long receive_message(int fd, msghdr& header, int flags = 0);
  long send_message(int fd, const msghdr& header, int flags = 0);
  /// sendmmsg and recvmmsg; the messages' lengths are in `messages`.
  long send_many(int fd, std::vector<mmsghdr>& messages, int flags = MSG_NOSIGNAL);
  long receive_many(int fd, std::vector<mmsghdr>& messages, int flags = 0);
  long send_file(int fd, int in_fd, off_t* offset, std::size_t count);
  long splice(int pipe, int fd, std::size_t count, unsigned flags);
  long splice_out(int fd, int pipe, std::size_t count, unsigned flags, bool* sigpipe = nullptr);
  sockaddr_in local_name(int fd);
  long peer_name(int fd, sockaddr_in& name);
  long set_option(int fd, int level, int name, int value);
  long set_option(int fd, int level, int name, const void* value, socklen_t length);
  long get_option(int fd, int level, int name, int& value);
  long get_option(int fd, int level, int name, void* value, socklen_t& length);
  long set_non_blocking(int fd, bool on);
  /// fcntl() with an int.
  long control(int fd, int command, int argument);
  long ioctl_int(int fd, unsigned long request, int& value);

  long poll(std::vector<pollfd>& set, int timeout_ms);
  short poll_one(int fd, short events, int timeout_ms = 0);
  int epoll_create();
  long epoll_control(int set, int operation, int fd, std::uint32_t events, std::uint64_t data = 0);
  std::vector<epoll_event> epoll_wait(int set, int timeout_ms, int room = 16);
  long epoll_wait_raw(int set, epoll_event* events, int room, int timeout_ms);

  /// A listener on a fresh port, and that port.
  int server(std::uint16_t& port, int backlog = 16);
  /// A connected pair: client's and server's end.
  std::pair<int, int> connected();

  /// The object behind a number; null if the number is the kernel's alone.
  socket::File* find(int fd);

 private:
  int insert(int fd, socket::File* file);
  long drop_if_kernel(int fd, socket::File* file, long result);

  bool bypass_;
  std::mutex mutex_;
  std::map<int, socket::File*> files_;
};

/// Runs each test twice: on the kernel ("Kernel") and on the stack ("Bypass").
class BothSides : public ::testing::TestWithParam<bool> {
 protected:
  BothSides();
  Calls calls{GetParam()};
};

inline std::string side_name(const ::testing::TestParamInfo<bool>& info) {
  return info.param ? "Bypass" : "Kernel";
}
#define ON_BOTH_SIDES(fixture) INSTANTIATE_TEST_SUITE_P(On, fixture, ::testing::Bool(), ::bypass::test::side_name)

/// Loopback of either kind delivers soon, but not at once. So this waits for what is expected.
inline void await(Calls& calls, int fd, short events) {
  ASSERT_NE(calls.poll_one(fd, events, 5000) & events, 0);
}

}  // namespace bypass::test
