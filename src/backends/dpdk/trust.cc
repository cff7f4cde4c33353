#include "backends/dpdk/trust.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "backends/dpdk/eal/libc.h"

namespace bypass::dpdk {
namespace {

struct Trust {
  std::string path;
  uid_t user = 0;
};

// The thread that opens ports adds entries, one at a time. They stay. The vhost library's thread reads them. The count
// is written last and says how many entries that thread sees.
constexpr std::size_t kMostTrusts = 64;
std::array<Trust, kMostTrusts> g_trusts;
std::atomic<std::size_t> g_count{0};

bool is_named(const char* path, uid_t user) {
  const auto end = g_trusts.begin() + static_cast<std::ptrdiff_t>(g_count.load(std::memory_order_acquire));
  return std::any_of(g_trusts.begin(), end,
                     [&](const Trust& trust) { return trust.user == user && trust.path == path; });
}

}  // namespace

bool trust_user(const std::string& path, uid_t user) {
  if (is_named(path.c_str(), user)) return true;
  const std::size_t place = g_count.load(std::memory_order_relaxed);
  if (place == kMostTrusts) return false;
  g_trusts[place] = {path, user};
  g_count.store(place + 1, std::memory_order_release);
  return true;
}

bool trusts_peer(int fd, const char* path, std::string& problem) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (libc.getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) {
    problem = std::string("it is not known whose the other end is: ") + std::strerror(errno);
    return false;
  }
  if (peer.uid == 0 || peer.uid == geteuid() || is_named(path, peer.uid)) return true;
  const std::string user = std::to_string(peer.uid);
  problem =
      "the other end is a process of the user " + user +
      ", with whom no memory is shared; accepted are this user's and root's, and those of the user who is named " +
      "behind the path of vhost: or virtio: (,peer=" + user + ")";
  return false;
}

}  // namespace bypass::dpdk
