#include "fastpath/shm/rendezvous/named_listener.h"

#include <dirent.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace bypass::fastpath::shm {
namespace {

/// The name of a socket by way of the folder's descriptor. A run directory's path may be longer than such a name can
/// be, and this way nobody can exchange the directory meanwhile. It allocates nothing: the caller may be in a signal
/// handler.
struct UnixName {
  sockaddr_un name{};
  long bytes = 0;

  UnixName(int folder, std::string_view last) {
    constexpr std::string_view kFront = "/proc/self/fd/";
    name.sun_family = AF_UNIX;
    char* at = std::copy(kFront.begin(), kFront.end(), name.sun_path);
    at = std::to_chars(at, std::end(name.sun_path), folder).ptr;
    *at++ = '/';
    const auto room = static_cast<std::size_t>(std::end(name.sun_path) - at - 1);
    at = std::copy_n(last.begin(), std::min(room, last.size()), at);
    bytes = static_cast<long>(offsetof(sockaddr_un, sun_path)) + (at - name.sun_path) + 1;
  }
};
constexpr std::size_t kLongestFront = sizeof "/proc/self/fd/2147483647/" - 1;

bool is_old_socket(int folder, const char* name, int age) {
  struct stat about {};
  timespec now{};
  if (os::call(SYS_newfstatat, folder, os::address(name), os::address(&about), AT_SYMLINK_NOFOLLOW) != 0) return false;
  os::call(SYS_clock_gettime, CLOCK_REALTIME, os::address(&now));
  return S_ISSOCK(about.st_mode) && now.tv_sec - about.st_mtim.tv_sec > age;
}

}  // namespace

NamedListener::NamedListener(NamedListener&& other) noexcept
    : folder_(other.folder_), maker_(other.maker_), name_(other.name_), channel_(std::move(other.channel_)) {}

NamedListener& NamedListener::operator=(NamedListener&& other) noexcept {
  if (this == &other) return *this;
  close();
  folder_ = other.folder_;
  maker_ = other.maker_;
  name_ = other.name_;
  channel_ = std::move(other.channel_);
  return *this;
}

long NamedListener::open(int folder, std::string_view name, int backlog, Channel* unbound) {
  static_assert(kLongestFront + kMostName + 1 <= sizeof sockaddr_un::sun_path);
  if (name.size() > kMostName) return -ENAMETOOLONG;
  Channel made = Channel::make();
  if (!made.is_open()) return -EMFILE;
  // The socket's file takes its mode from the socket, so it is never open to others, whatever the umask.
  os::call(SYS_fchmod, made.descriptor(), 0600);
  const UnixName at(folder, name);
  if (const long r = os::call(SYS_bind, made.descriptor(), os::address(&at.name), at.bytes); r != 0) {
    if (unbound != nullptr) *unbound = std::move(made);
    return r;
  }
  folder_ = folder;
  maker_ = os::getpid();
  name_ = {};
  std::copy(name.begin(), name.end(), name_.begin());
  channel_ = std::move(made);
  const long r = os::call(SYS_listen, channel_.descriptor(), backlog);
  if (r != 0) close();
  return r;
}

long NamedListener::accept() const {
  return os::call(SYS_accept4, channel_.descriptor(), 0, 0, SOCK_CLOEXEC | SOCK_NONBLOCK);
}

void NamedListener::close() {
  if (!channel_.is_open()) return;
  if (maker_ == os::getpid()) os::call(SYS_unlinkat, folder_, os::address(name_.data()), 0);
  channel_.close();
}

long NamedListener::connect(int folder, std::string_view name, Channel& out) {
  Channel made = out.is_open() ? std::move(out) : Channel::make();
  if (!made.is_open()) return -EMFILE;
  const UnixName at(folder, name);
  const long r = os::call(SYS_connect, made.descriptor(), os::address(&at.name), at.bytes);
  if (r == 0) out = std::move(made);
  return r;
}

bool NamedListener::sweep_one(int folder, std::string_view name, int age) {
  const std::string terminated(name);
  Channel guest;
  return is_old_socket(folder, terminated.c_str(), age) && connect(folder, name, guest) == -ECONNREFUSED &&
         os::call(SYS_unlinkat, folder, os::address(terminated.c_str()), 0) == 0;
}

void NamedListener::sweep(int folder, std::string_view beginning, int age) {
  // A copy of the folder's descriptor with a position of its own.
  const long copy = os::call(SYS_openat, folder, os::address("."), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const list = copy < 0 ? nullptr : fdopendir(static_cast<int>(copy));
  if (list == nullptr) {
    if (copy >= 0) os::close(static_cast<int>(copy));
    return;
  }
  std::vector<std::string> names;
  while (const dirent* entry = readdir(list))
    if (std::string_view(entry->d_name).starts_with(beginning)) names.emplace_back(entry->d_name);
  closedir(list);
  for (const std::string& name : names) (void)sweep_one(folder, name, age);
}

}  // namespace bypass::fastpath::shm
