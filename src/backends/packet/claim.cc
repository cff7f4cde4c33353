#include "backends/packet/claim.h"

#include <arpa/inet.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "backends/packet/libc.h"

namespace bypass::packet {
namespace {

struct Name {
  sockaddr_un address{};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

Name name_of(const std::string& interface, const std::string& what) {
  Name name;
  name.address.sun_family = AF_UNIX;
  const std::string text = "libbypass/" + interface + "/" + what;  // behind a zero byte: abstract
  std::memcpy(name.address.sun_path + 1, text.data(), text.size());
  name.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  return name;
}

// Whoever listens there; its process ID is 0 when it has just gone.
ucred holder_of(const Name& name) {
  ucred holder{};
  const int fd = libc.socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return holder;
  socklen_t size = sizeof holder;
  if (libc.connect(fd, name.get(), name.length) != 0 ||
      libc.getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &holder, &size) != 0)
    holder = {};
  libc.close(fd);
  return holder;
}

}  // namespace

bool Claim::take(const std::string& interface, const std::string& what) {
  const Name name = name_of(interface, what);
  Descriptor socket(libc.socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (socket.is_open() && libc.bind(socket.get(), name.get(), name.length) == 0) {
    libc.listen(socket.get(), 0);
    socket_ = std::move(socket);
    return true;
  }
  if (errno != EADDRINUSE) return true;
  const ucred holder = holder_of(name);
  if (holder.uid != 0 && holder.uid != geteuid()) return true;
  holder_ = holder.pid;
  return false;
}

std::string Claim::holder() const {
  return holder_ > 0 ? " (pid " + std::to_string(holder_) + ")" : "";
}

std::string text_of(const IpAddress& address) {
  char text[INET6_ADDRSTRLEN] = "";
  const auto v4 = address.is_v4() ? htonl(address.v4()) : 0;
  inet_ntop(address.is_v4() ? AF_INET : AF_INET6, address.is_v4() ? static_cast<const void*>(&v4) : &address, text,
            sizeof text);
  return text;
}

}  // namespace bypass::packet
