#include "backends/packet/flows/claim.h"

#include <arpa/inet.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string_view>

#include "backends/claim_name.h"
#include "backends/packet/flows/claim_holder.h"
#include "backends/packet/libc.h"

namespace bypass::packet {
namespace {

struct Name {
  sockaddr_un address{};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
  std::string_view text() const { return {address.sun_path, length - offsetof(sockaddr_un, sun_path)}; }
};

Name name_of(const std::string& interface, const std::string& what) {
  Name name;
  name.address.sun_family = AF_UNIX;
  const std::string text = claim_name(interface, what);
  std::memcpy(name.address.sun_path + 1, text.data(), text.size());
  name.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  return name;
}

// Warns that another user has the name, or somebody unknown does. Such a claim refuses nobody.
void report_stranger(const std::string& interface, const std::string& what, const ClaimHolder& holder) {
  const bool known = holder.is == ClaimHolder::Is::kThere;
  const std::string text = interface + ": " + (known ? "the user " + std::to_string(holder.user) : "somebody unknown") +
                           " has the name of the socket that claims " + what + "; another process may use it, too";
  host->log(LogLevel::kWarn, text.c_str());
}

}  // namespace

bool Claim::take(const std::string& interface, const std::string& what) {
  const Name name = name_of(interface, what);
  Descriptor socket(libc.socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ClaimHolder holder;
  for (int tries = 0; tries < 3; tries++) {
    if (socket.is_open() && libc.bind(socket.get(), name.get(), name.length) == 0) {
      socket_ = std::move(socket);
      return true;
    }
    if (errno != EADDRINUSE) return true;
    holder = holder_of(name.text());
    if (holder.is != ClaimHolder::Is::kGone) break;
  }
  if (holder.is != ClaimHolder::Is::kThere || (holder.user != 0 && holder.user != geteuid())) {
    report_stranger(interface, what, holder);
    return true;
  }
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
