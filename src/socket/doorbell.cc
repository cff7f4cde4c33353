#include "socket/doorbell.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <atomic>
#include <cstddef>
#include <cstring>

#include "socket/kernel.h"
#include "socket/kernel_half.h"
#include "socket/os.h"
#include "socket/socket.h"

namespace bypass::socket {

namespace {

constexpr std::size_t kNameBytes = 5;  // of an autobind name, after its zero byte

int open_datagram() {
  const int fd = kernel->socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  return fd >= 0 && environment.own_descriptor != nullptr ? environment.own_descriptor(fd) : fd;
}

/// The socket that this process rings by; never closed.
std::atomic<int> rope{-1};

int the_rope() {
  const int have = rope.load(std::memory_order_acquire);
  if (have >= 0) return have;
  const int made = open_datagram();
  int expected = -1;
  if (made < 0 || rope.compare_exchange_strong(expected, made)) return made;
  close_own(made);
  return expected;
}

}  // namespace

int make_doorbell(WakeTarget& target) {
  const int fd = open_datagram();
  if (fd < 0) return -1;
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  socklen_t length = sizeof name;
  if (kernel->bind(fd, reinterpret_cast<sockaddr*>(&name), sizeof name.sun_family) != 0 ||
      kernel->getsockname(fd, reinterpret_cast<sockaddr*>(&name), &length) != 0 ||
      length != offsetof(sockaddr_un, sun_path) + 1 + kNameBytes) {
    close_own(fd);
    return -1;
  }
  std::memcpy(target.doorbell.data(), name.sun_path + 1, kNameBytes);
  return fd;
}

void silence_doorbell(int fd) {
  char byte = 0;
  while (os::call(SYS_recvfrom, fd, os::address(&byte), sizeof byte, MSG_DONTWAIT) >= 0) {
  }
}

void forget_doorbells() {
  rope.store(-1, std::memory_order_relaxed);
}

void ring_doorbell(const WakeTarget& target) {
  if (target.slot >= kMaxProcesses) return;
  const auto& bell = target.doorbell[0] != 0 ? target.doorbell : shard().family().table().slots[target.slot].doorbell;
  const int fd = the_rope();
  if (bell[0] == 0 || fd < 0) return;
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::memcpy(name.sun_path + 1, bell.data(), kNameBytes);
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + kNameBytes);
  os::call(SYS_sendto, fd, os::address(&name), 0, MSG_NOSIGNAL | MSG_DONTWAIT, os::address(&name), length);
}

}  // namespace bypass::socket
