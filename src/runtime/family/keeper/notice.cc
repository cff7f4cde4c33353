#include "runtime/family/keeper/notice.h"

#include <poll.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include <algorithm>
#include <string>
#include <vector>

#include "os/os.h"

namespace bypass::runtime {

namespace {

struct NoticeName {
  sockaddr_un address{};
  socklen_t length = 0;
};

/// The wire's name may be longer than a socket's name, so its hash is taken. What two wires of one hash lose is time.
NoticeName notice_name(const PortConfig& port) {
  std::uint64_t sum = 0xcbf29ce484222325;  // FNV-1a
  for (const char c : port_text(port)) sum = (sum ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  const std::string text = "libbypass-keeper/" + std::to_string(sum);
  NoticeName name;
  name.address.sun_family = AF_UNIX;
  std::copy(text.begin(), text.end(), name.address.sun_path + 1);  // the first byte is zero: an abstract name
  name.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  return name;
}

int make_socket() {
  return static_cast<int>(os::call(SYS_socket, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

bool is_trusted(int fd) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (os::call(SYS_getsockopt, fd, SOL_SOCKET, SO_PEERCRED, os::address(&peer), os::address(&length)) != 0)
    return false;
  return peer.uid == 0 || peer.uid == static_cast<uid_t>(os::call(SYS_geteuid));
}

/// The names of the wires that the ports use. A port over a software RDMA device has that one's wire.
template <typename Visit>
void for_each_wire(const Config& config, Visit visit) {
  for (const PortConfig& port : config.ports) visit(port);
  for (const PortConfig& wire : config.soft) visit(wire);
}

std::vector<int> g_listening;  // in a keeper
bool g_is_asked = false;

}  // namespace

void give_notice(const Config& config) {
  for_each_wire(config, [](const PortConfig& port) {
    const int fd = make_socket();
    if (fd < 0) return;
    const NoticeName name = notice_name(port);
    const bool listens =
        os::call(SYS_bind, fd, os::address(&name.address), name.length) == 0 && os::call(SYS_listen, fd, 16) == 0;
    listens ? g_listening.push_back(fd) : static_cast<void>(os::close(fd));
  });
}

// A connection that is believed stays open: its other end sees the keeper's end.
bool is_asked_for_ports() {
  for (const int fd : g_listening) {
    for (long asker = 0; !g_is_asked && asker >= 0;) {
      asker = os::call(SYS_accept4, fd, 0, 0, SOCK_CLOEXEC);
      if (asker >= 0 && is_trusted(static_cast<int>(asker))) g_is_asked = true;
      if (asker >= 0 && !g_is_asked) os::close(static_cast<int>(asker));
    }
  }
  return g_is_asked;
}

void await_keepers_end(const Config& config) {
  if (!g_listening.empty()) return;  // this process is the keeper
  for_each_wire(config, [](const PortConfig& port) {
    const int fd = make_socket();
    if (fd < 0) return;
    const NoticeName name = notice_name(port);
    const bool is_there = os::call(SYS_connect, fd, os::address(&name.address), name.length) == 0 && is_trusted(fd);
    pollfd item{fd, POLLIN, 0};
    constexpr timespec kPatience{2, 0};
    if (is_there) os::call(SYS_ppoll, os::address(&item), 1, os::address(&kPatience), 0, 8);
    os::close(fd);
  });
}

}  // namespace bypass::runtime
