#include "runtime/family/channel_readers.h"

#include <dirent.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>

#include "os/net/unix_diag.h"
#include "os/os.h"

namespace bypass::runtime {

namespace {

using socket::Family;

struct Folder {
  explicit Folder(const char* path, int at = AT_FDCWD)
      : fd(static_cast<int>(os::call(SYS_openat, at, os::address(path), O_RDONLY | O_DIRECTORY | O_CLOEXEC))) {}
  ~Folder() {
    if (fd >= 0) os::close(fd);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  /// Calls visit(name) for each entry that is a number, until it says false. False: it did.
  template <typename Visit>
  bool for_each_number(const Visit& visit) const {
    struct Head {  // linux_dirent64: getdents64(2)
      std::uint64_t inode;
      std::int64_t next;
      std::uint16_t bytes;
      std::uint8_t type;
    };
    constexpr std::size_t kName = 19;
    alignas(8) std::array<char, 4096> entries;
    long n = 0;
    while (fd >= 0 &&
           (n = os::call(SYS_getdents64, fd, os::address(entries.data()), static_cast<long>(entries.size()))) > 0) {
      for (long at = 0; at < n;) {
        Head head;
        std::memcpy(&head, entries.data() + at, sizeof head);
        const char* const name = entries.data() + at + kName;
        if (*name >= '0' && *name <= '9' && !visit(name)) return false;
        at += head.bytes;
      }
    }
    return true;
  }

  const int fd;
};

/// Whether the process, a folder of /proc, has a descriptor of that name.
bool has_descriptor(const Folder& processes, const char* process, std::string_view wanted) {
  std::array<char, 32> path{};
  const std::size_t length = strlen(process);
  constexpr std::string_view kFolder = "/fd";
  if (length + kFolder.size() >= path.size()) return false;
  std::memcpy(path.data(), process, length);
  std::memcpy(path.data() + length, kFolder.data(), kFolder.size());
  const Folder descriptors(path.data(), processes.fd);
  return !descriptors.for_each_number([&](const char* name) {
    std::array<char, 64> target;
    const long n =
        os::call(SYS_readlinkat, descriptors.fd, os::address(name), os::address(target.data()), target.size());
    return n != static_cast<long>(wanted.size()) || std::string_view(target.data(), wanted.size()) != wanted;
  });
}

std::uint32_t number_in(const char* name) {
  std::uint32_t number = 0;
  (void)std::from_chars(name, name + strlen(name), number);
  return number;
}

bool only_family_has(Family& family, std::uint32_t inode) {
  std::array<char, 32> name{};
  constexpr std::string_view kBegin = "socket:[";
  std::memcpy(name.data(), kBegin.data(), kBegin.size());
  char* const end = std::to_chars(name.data() + kBegin.size(), name.data() + name.size() - 1, inode).ptr;
  *end = ']';
  const std::string_view wanted(name.data(), static_cast<std::size_t>(end + 1 - name.data()));
  bool any = false;
  const Folder processes("/proc");
  const bool no_other = processes.for_each_number([&](const char* process) {
    if (!has_descriptor(processes, process, wanted)) return true;
    any = true;
    return family.takes_passed(number_in(process));
  });
  return any && no_other;
}

template <typename T>
std::optional<T> channel_option(int fd, int name) {
  T value{};
  socklen_t length = sizeof value;
  const long r = os::call(SYS_getsockopt, fd, SOL_SOCKET, name, os::address(&value), os::address(&length));
  return r == 0 ? std::optional(value) : std::nullopt;
}

/// The channels of which the answer was yes, each with the family's count of changes at that time.
constinit std::array<std::atomic<std::uint64_t>, 64> g_known{};
constexpr unsigned kChangeBits = 20;

std::uint64_t known_as(std::uint64_t cookie, std::uint32_t changes) {
  return cookie << kChangeBits | (changes & ((1U << kChangeBits) - 1));
}

}  // namespace

bool is_read_by(Family& family, int channel) {
  const auto id = os::unix_socket_id(channel);
  if (!id.has_value()) return false;
  const std::uint64_t as = known_as(id->cookie, family.table().changes.load(std::memory_order_acquire));
  std::atomic<std::uint64_t>& known = g_known[id->cookie % g_known.size()];
  if (known.load(std::memory_order_relaxed) == as) return true;
  const auto peer = os::UnixDiag().peer_of(id->inode);
  if (!peer.has_value()) return false;
  if (*peer == 0) {
    const auto listener = channel_option<ucred>(channel, SO_PEERCRED);
    return listener.has_value() && family.takes_passed(static_cast<std::uint32_t>(listener->pid));
  }
  if (!only_family_has(family, *peer)) return false;
  // A datagram socket may get another peer.
  if (channel_option<int>(channel, SO_TYPE) != SOCK_DGRAM) known.store(as, std::memory_order_relaxed);
  return true;
}

bool exec_leaves_channel(Family& family) {
  const Folder descriptors("/proc/self/fd");
  return !descriptors.for_each_number([&](const char* name) {
    const auto fd = static_cast<int>(number_in(name));
    const long flags = os::call(SYS_fcntl, fd, F_GETFD);
    if (flags < 0 || (flags & FD_CLOEXEC) != 0 || channel_option<int>(fd, SO_DOMAIN) != AF_UNIX) return true;
    const auto maker = channel_option<ucred>(fd, SO_PEERCRED);
    if (!maker.has_value() || !family.takes_passed(static_cast<std::uint32_t>(maker->pid))) return true;
    return channel_option<int>(fd, SO_ACCEPTCONN) != 1 && !is_read_by(family, fd);
  });
}

}  // namespace bypass::runtime
