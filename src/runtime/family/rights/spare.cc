#include "runtime/family/rights/spare.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "os/kernel.h"
#include "os/log/log.h"
#include "os/os.h"
#include "os/own/own_descriptors.h"
#include "runtime/family/arena.h"
#include "runtime/family/standing.h"
#include "runtime/host.h"
#include "socket/family/wires.h"

namespace bypass::runtime::spare {

namespace {

int g_memory = -1;
int g_sockets = -1;  // an epoll set on which nobody waits
int g_recall = -1;   // an eventfd
int g_list = -1;     // in a driver: /proc's description of the set
int g_call = -1;     // calls a driver that waits
socket::Maker g_called{};
bool g_drives = false;
bool g_tried = false;
std::atomic<int> g_recalling{0};

// The bytes of the file that are locked. One question asks for the first two together.
constexpr off_t kPorts = 0, kHeir = 1, kMembers = 2, kClaim = 3, kCopy = 4;

struct flock lock_of(short type, off_t byte, off_t bytes = 1) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte;
  lock.l_len = bytes;
  return lock;
}

bool set_lock(short type, off_t byte) {
  struct flock lock = lock_of(type, byte);
  return socket::kernel->fcntl(g_memory, F_OFD_SETLK, &lock) == 0;
}

bool set_own_lock(short type, off_t byte) {
  struct flock lock = lock_of(type, byte);
  return socket::kernel->fcntl(g_memory, F_SETLK, &lock) == 0;
}

/// Waits for the lock, however long another process has it.
bool await_lock(off_t byte) {
  struct flock lock = lock_of(F_WRLCK, byte);
  int result = -1;
  do result = socket::kernel->fcntl(g_memory, F_OFD_SETLKW, &lock);
  while (result != 0 && errno == EINTR);
  return result == 0;
}

bool is_locked(off_t byte, off_t bytes = 1) {
  struct flock lock = lock_of(F_WRLCK, byte, bytes);
  return socket::kernel->fcntl(g_memory, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

void close_own(int& fd) {
  if (fd < 0) return;
  own_descriptor(fd, false);
  socket::kernel->close(std::exchange(fd, -1));
}

/// Opens the file anew. A lock under the inherited descriptor would belong to its other processes, too. A descriptor of
/// this process's own replaces it.
bool open_anew() {
  char path[40];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", g_memory);
  const long opened = os::open(path, O_RDWR | O_CLOEXEC);
  if (opened < 0) return false;
  close_own(g_memory);
  g_memory = own_high(static_cast<int>(opened));
  return g_memory >= 0;
}

}  // namespace

void make() {
  if (g_memory >= 0 || std::exchange(g_tried, true) || !may_change_user(Standing::now())) return;
  std::string problem;
  g_memory = own_high(arena::make_memory(problem));
  g_sockets = own_high(socket::kernel->epoll_create1(EPOLL_CLOEXEC));
  g_recall = own_high(socket::kernel->eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));  // a worker that keeps it may fill it
  if (g_memory >= 0 && g_sockets >= 0 && g_recall >= 0) return;
  drop();
  BYPASS_LOG_INFO("no memory for processes that give rights up: %s",
                  problem.empty() ? "no epoll set or no eventfd can be made" : problem.c_str());
}

int descriptor() {
  return g_memory;
}

int sockets_descriptor() {
  return g_sockets;
}

int recall_descriptor() {
  return g_recall;
}

std::array<int, 3> descriptors() {
  return {g_memory, g_sockets, g_recall};
}

void take_up(const std::array<int, 3>& descriptors) {
  g_tried = true;  // the children of this process and of its image before have one spare
  g_memory = descriptors[0];
  g_sockets = descriptors[1];
  g_recall = descriptors[2];
  show();
}

void hide() {
  own_descriptor(g_memory, false);
  own_descriptor(g_sockets, false);
  own_descriptor(g_recall, false);
  own_descriptor(g_call, false);
}

void show() {
  if (g_call >= 0) own_descriptor(g_call, true);
  if (g_memory >= 0) own_descriptor(g_memory, true);
  if (g_sockets >= 0) own_descriptor(g_sockets, true);
  if (g_recall >= 0) own_descriptor(g_recall, true);
}

void drop() {
  close_own(g_memory);
  close_own(g_sockets);
  close_own(g_recall);
}

void drop_call() {
  close_own(g_call);
}

bool is_driven() {
  return g_memory < 0 || is_locked(kPorts, kHeir - kPorts + 1);
}

bool takes_members() {
  return is_locked(kMembers);
}

bool begin_driving() {
  return g_drives = open_anew() && set_lock(F_WRLCK, kPorts);
}

// A process that asks meanwhile whether there is a driver finds one of the two locks taken.
bool inherit_driving() {
  return open_anew() && await_lock(kHeir) && await_lock(kPorts) && set_lock(F_UNLCK, kHeir);
}

// A driver asks for this lock after it has taken its own. So when both ask at once, at least one gives way.
bool claim_ports() {
  if (g_memory < 0 || g_drives) return true;
  (void)set_own_lock(F_WRLCK, kClaim);
  if (!is_driven()) return true;
  leave_ports();
  return false;
}

void leave_ports() {
  if (g_memory >= 0 && !g_drives) (void)set_own_lock(F_UNLCK, kClaim);
}

bool are_ports_claimed() {
  return is_locked(kClaim);
}

void claim_copy() {
  (void)set_own_lock(F_WRLCK, kCopy);
}

bool is_being_copied() {
  return is_locked(kCopy);
}

void keep_call(int fd, std::uint32_t keeper, std::uint64_t start_time) {
  close_own(g_call);
  g_call = fd;
  g_called.set(keeper, start_time);
}

bool called_lives() {
  return g_called.lives();
}

// A driver that another process has called reads no more calls.
bool call_driver() {
  if (g_call < 0) return false;
  static constexpr char kCall = 'c';
  os::call(SYS_sendto, g_call, os::address(&kCall), 1, MSG_NOSIGNAL, 0, 0);
  close_own(g_call);
  return true;
}

void recall() {
  constexpr int kLooks = 100;
  constexpr std::uint64_t kOne = 1;
  if (g_recall < 0) return;
  g_recalling.store(kLooks, std::memory_order_relaxed);
  os::call(SYS_write, g_recall, os::address(&kOne), sizeof kOne);
}

bool is_recalling() {
  const int left = g_recalling.load(std::memory_order_relaxed);
  if (left > 0) g_recalling.store(left - 1, std::memory_order_relaxed);
  return left > 0;
}

bool await_recall() {
  std::uint64_t asked = 0;
  long n = 0;
  do {
    pollfd item{g_recall, POLLIN, 0};
    n = os::call(SYS_ppoll, os::address(&item), 1, 0, 0, 8);
    if (n >= 0) n = os::read(g_recall, &asked, sizeof asked);
  } while (n == -EINTR || n == -EAGAIN);
  return n == sizeof asked;
}

void forget_recalls() {
  std::uint64_t asked = 0;
  if (g_recall >= 0) (void)os::read(g_recall, &asked, sizeof asked);
}

bool take_members(bool on) {
  return set_lock(on ? F_WRLCK : F_UNLCK, kMembers);
}

void note(int fd) {
  epoll_event event{};
  event.data.u64 = os::inode_of(fd);
  if (g_sockets >= 0) socket::kernel->epoll_ctl(g_sockets, EPOLL_CTL_ADD, fd, &event);  // it may be in the set already
}

bool open_list() {
  char path[40];
  std::snprintf(path, sizeof path, "/proc/self/fdinfo/%d", g_sockets);
  g_list = static_cast<int>(os::open(path, O_RDONLY | O_CLOEXEC));
  return g_list >= 0;
}

std::vector<std::uint64_t> open_sockets() {
  // the number stands before it; what follows is told by newer kernels only
  static constexpr const char kData[] = "data:";
  std::string text;
  char part[4096];
  for (long n = 0;
       (n = os::call(SYS_pread64, g_list, os::address(part), sizeof part, static_cast<long>(text.size()))) > 0;)
    text.append(part, static_cast<std::size_t>(n));
  std::vector<std::uint64_t> inodes;
  for (std::size_t at = 0; (at = text.find(kData, at)) != std::string::npos;) {
    at += sizeof kData - 1;
    inodes.push_back(std::strtoull(text.c_str() + at, nullptr, 16));
  }
  return inodes;
}

}  // namespace bypass::runtime::spare
