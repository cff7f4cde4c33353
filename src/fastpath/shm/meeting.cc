#include "fastpath/shm/meeting.h"

#include <dirent.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace bypass::fastpath::shm {
namespace {

namespace os = socket::os;

constexpr char kPrefix[] = "link-";
constexpr std::size_t kNameBytes = sizeof kPrefix - 1 + 2 * sizeof(Nonce);
/// The peer, and strangers of our user that are looked at after each other.
constexpr long kBacklog = 4;

/// By way of the descriptor: a run directory's path may be longer than such a name can be, and is nobody's to exchange.
struct UnixName {
  sockaddr_un name{};
  long bytes = 0;

  UnixName(int folder, const Nonce& nonce) {
    name.sun_family = AF_UNIX;
    const std::string path = "/proc/self/fd/" + std::to_string(folder) + "/" + meeting_name(nonce);
    bytes = static_cast<long>(offsetof(sockaddr_un, sun_path) + path.copy(name.sun_path, sizeof name.sun_path - 1) + 1);
  }
};
static_assert(sizeof "/proc/self/fd/2147483647/" + kNameBytes <= sizeof sockaddr_un::sun_path);

bool is_meeting_name(const char* name) {
  constexpr std::size_t kDigits = sizeof kPrefix - 1;
  return std::strlen(name) == kNameBytes && std::strncmp(name, kPrefix, kDigits) == 0 &&
         std::strspn(name + kDigits, "0123456789abcdef") == kNameBytes - kDigits;
}

unsigned digit(char c) {
  return static_cast<unsigned>(c <= '9' ? c - '0' : c - 'a' + 10);
}

Nonce nonce_of(const char* name) {
  Nonce nonce{};
  const char* at = name + sizeof kPrefix - 1;
  for (std::byte& byte : nonce) {
    byte = static_cast<std::byte>(digit(at[0]) << 4 | digit(at[1]));
    at += 2;
  }
  return nonce;
}

bool is_old_socket(int folder, const char* name, int age) {
  struct stat about {};
  timespec now{};
  if (os::call(SYS_newfstatat, folder, os::address(name), os::address(&about), AT_SYMLINK_NOFOLLOW) != 0) return false;
  os::call(SYS_clock_gettime, CLOCK_REALTIME, os::address(&now));
  return S_ISSOCK(about.st_mode) && now.tv_sec - about.st_mtim.tv_sec > age;
}

}  // namespace

std::string meeting_name(const Nonce& name) {
  std::string text = kPrefix;
  for (const std::byte byte : name) {
    text += "0123456789abcdef"[std::to_integer<unsigned>(byte) >> 4];
    text += "0123456789abcdef"[std::to_integer<unsigned>(byte) & 0xf];
  }
  return text;
}

Reason Meeting::open(int folder, const Nonce& name) {
  Channel made = Channel::make();
  if (!made.is_open()) return Reason::kNoSharedMemory;
  // A socket's file has its mode from the socket: so it is never open to others, whatever the umask.
  os::call(SYS_fchmod, made.descriptor(), 0600);
  const UnixName at(folder, name);
  if (os::call(SYS_bind, made.descriptor(), os::address(&at.name), at.bytes) != 0) return Reason::kNoSharedMemory;
  folder_ = folder;
  name_ = name;
  listener_ = std::move(made);
  if (os::call(SYS_listen, listener_.descriptor(), kBacklog) == 0) return Reason::kNone;
  close();
  return Reason::kNoSharedMemory;
}

std::optional<Channel> Meeting::accept() {
  for (long i = 0; i <= kBacklog; i++) {
    const long fd = os::call(SYS_accept4, listener_.descriptor(), 0, 0, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return std::nullopt;
    Channel guest(Descriptor::kept(fd));
    if (guest.is_of_our_user()) return guest;
  }
  return std::nullopt;
}

void Meeting::close() {
  if (!listener_.is_open()) return;
  os::call(SYS_unlinkat, folder_, os::address(meeting_name(name_).c_str()), 0);
  listener_.close();
}

Reason Meeting::come(int folder, const Nonce& name, Channel& out) {
  Channel made = Channel::make();
  if (!made.is_open()) return Reason::kNoSharedMemory;
  const UnixName at(folder, name);
  switch (os::call(SYS_connect, made.descriptor(), os::address(&at.name), at.bytes)) {
    case 0:
      break;
    case -ENOENT:
    case -ECONNREFUSED:  // it was left there
      return Reason::kElsewhere;
    case -EACCES:
    case -EPERM:
      return Reason::kOtherUser;
    default:
      return Reason::kNoSharedMemory;
  }
  if (!made.is_of_our_user()) return Reason::kOtherUser;
  out = std::move(made);
  return Reason::kNone;
}

void Meeting::sweep(int folder, int age) {
  // A copy with a position of its own.
  const long copy = os::call(SYS_openat, folder, os::address("."), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const list = copy < 0 ? nullptr : fdopendir(static_cast<int>(copy));
  if (list == nullptr) return socket::os::close(static_cast<int>(copy)), void();
  std::vector<std::string> old;
  while (const dirent* entry = readdir(list))
    if (is_meeting_name(entry->d_name) && is_old_socket(folder, entry->d_name, age)) old.emplace_back(entry->d_name);
  closedir(list);
  for (const std::string& name : old) {
    Channel guest;
    if (come(folder, nonce_of(name.c_str()), guest) == Reason::kElsewhere)
      os::call(SYS_unlinkat, folder, os::address(name.c_str()), 0);
  }
}

}  // namespace bypass::fastpath::shm
