#include "backends/dpdk/peer.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "backends/dpdk/eal/descriptors.h"
#include "backends/dpdk/eal/libc.h"
#include "backends/dpdk/trust.h"

namespace bypass::dpdk {
namespace {

// vhost-user protocol: a message is request, flags, payload size; GET_FEATURES is answered by 8 bytes.
struct Header {
  std::uint32_t request, flags, size;
};
constexpr Header kGetFeatures{1, 1, 0};

Peer why_not_connected(int error, const std::string& path, std::string& detail) {
  struct stat status {};
  if (error == ENOENT) return Peer::kAbsent;
  if (error == EAGAIN) return Peer::kSilent;  // the backlog is full: no process accepts
  if (error == ECONNREFUSED && ::stat(path.c_str(), &status) == 0) {
    if (S_ISSOCK(status.st_mode)) return Peer::kStale;
    detail = path + " exists and is not a socket";
    return Peer::kForbidden;
  }
  if (error == ECONNREFUSED) return Peer::kAbsent;
  detail = "cannot connect to " + path + ": " + std::strerror(error);
  return Peer::kForbidden;
}

Peer ask(int fd, int patience_ms) {
  if (libc.send(fd, &kGetFeatures, sizeof kGetFeatures, MSG_NOSIGNAL) != sizeof kGetFeatures) return Peer::kBusy;
  pollfd p{fd, POLLIN, 0};
  if (libc.poll(&p, 1, patience_ms) <= 0) return Peer::kSilent;
  char answer[64];
  return libc.recv(fd, answer, sizeof answer, MSG_DONTWAIT) > 0 ? Peer::kAlive : Peer::kBusy;
}

}  // namespace

Peer look_at_peer(const std::string& path, int patience_ms, std::string& detail) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  const int fd = raise_descriptor(libc.socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (fd < 0) return why_not_connected(errno, path, detail);
  const bool connected = libc.connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  Peer peer = connected ? Peer::kForbidden : why_not_connected(errno, path, detail);
  if (connected && trusts_peer(fd, path.c_str(), detail)) peer = ask(fd, patience_ms);
  close_descriptor(fd);
  return peer;
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

FolderLock::FolderLock(const std::string& path) {
  fd_ = raise_descriptor(libc.open64(folder_of(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd_ < 0) return;
  const timespec pause{0, 2'000'000};
  for (int tries = 0; tries < 50 && libc.flock(fd_, LOCK_EX | LOCK_NB) != 0; tries++) libc.nanosleep(&pause, nullptr);
}

FolderLock::~FolderLock() {
  close_descriptor(fd_);
}

}  // namespace bypass::dpdk
