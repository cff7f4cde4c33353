#include "fastpath/shm/rendezvous/directory.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "fastpath/shm/rendezvous/named_listener.h"
#include "fastpath/shm/rendezvous/rendezvous.h"

#ifndef SO_NETNS_COOKIE
#define SO_NETNS_COOKIE 71
#endif

namespace bypass::fastpath::shm {
namespace {

constexpr const char* kName = "local-ports";
constexpr std::uint64_t kBytes = 65536 * 8;
/// Age in seconds after which a rendezvous' name is removed: longer than a rendezvous lasts, so its process was killed.
constexpr int kOldName = 60;

/// A write beyond the limit would send the program SIGXFSZ.
bool is_below_file_limit() {
  rlimit limit{};
  return os::call(SYS_prlimit64, 0, RLIMIT_FSIZE, 0, os::address(&limit)) == 0 && limit.rlim_cur >= kBytes;
}

bool is_our_own(int fd) {
  struct stat about {};
  if (os::call(SYS_fstat, fd, os::address(&about)) != 0) return false;
  return S_ISREG(about.st_mode) && about.st_uid == static_cast<uid_t>(os::call(SYS_geteuid));
}

}  // namespace

std::uint32_t network_tag(int fd) {
  std::uint64_t cookie = 0;
  socklen_t bytes = sizeof cookie;
  const long r = os::call(SYS_getsockopt, fd, SOL_SOCKET, SO_NETNS_COOKIE, os::address(&cookie), os::address(&bytes));
  if (r != 0 || bytes != sizeof cookie) return 0;
  return static_cast<std::uint32_t>((cookie * 0x9e3779b97f4a7c15U) >> 32) | 1;
}

Outcome<Directory> Directory::open(int folder, const char** why) {
  const auto refused = [why](const char* text) {
    if (why != nullptr) *why = text;
    return Refusal::kNoResources;
  };
  if (!is_below_file_limit()) return refused("files may be less than 512 kB long (RLIMIT_FSIZE)");
  const long opened = os::call(SYS_openat, folder, os::address(kName), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (opened < 0) return refused(strerrordesc_np(static_cast<int>(-opened)));
  const Descriptor file(opened);
  if (!is_our_own(file.get())) return refused("it is no file of this user's");
  const auto keep = [](int fd) { return Descriptor::kept_for_good(os::call(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 0)); };
  Directory directory(keep(folder), keep(file.get()));
  if (!directory.file_.is_open() || !directory.folder_.is_open()) return refused(strerrordesc_np(EMFILE));
  NamedListener::sweep(folder, RendezvousName::kPrefix, kOldName);
  return directory;
}

// Beyond the file's end a place reads as empty.
Directory::Place Directory::read(std::uint16_t port) const {
  Place place;
  const long at = static_cast<long>(port) * static_cast<long>(sizeof place);
  os::call(SYS_pread64, file_.get(), os::address(&place), sizeof place, at);
  return place;
}

void Directory::write(std::uint16_t port, std::size_t offset, std::uint32_t tag) const {
  const long at = static_cast<long>(port) * static_cast<long>(sizeof(Place)) + static_cast<long>(offset);
  os::call(SYS_pwrite64, file_.get(), os::address(&tag), sizeof tag, at);
}

void Directory::note_listener(std::uint16_t port, std::uint32_t network) const {
  if (is_open() && network != 0 && read(port).listener != network) write(port, offsetof(Place, listener), network);
}

bool Directory::has_listener(std::uint16_t port, std::uint32_t network) const {
  return is_open() && network != 0 && read(port).listener == network;
}

void Directory::note_client(std::uint16_t port, std::uint32_t network) const {
  if (is_open() && network != 0 && read(port).client != network) write(port, offsetof(Place, client), network);
}

bool Directory::note_client_of_listener(std::uint16_t port, std::uint32_t network) const {
  if (!is_open() || network == 0) return false;
  const Place place = read(port);
  if (place.listener != network) return false;
  if (place.client != network) write(port, offsetof(Place, client), network);
  return true;
}

bool Directory::has_clients(std::uint16_t port, std::uint32_t network) const {
  return is_open() && network != 0 && read(port).client == network;
}

}  // namespace bypass::fastpath::shm
