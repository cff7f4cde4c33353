// DPDK's calls on descriptors, redirected here by --wrap: libc's own functions through the table, new
// descriptors born high, CLOEXEC and registered.
#include <fcntl.h>
#include <linux/bpf.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <string>

#include "backends/dpdk/card/card_rules.h"
#include "backends/dpdk/card/shared_interrupt.h"
#include "backends/dpdk/eal/descriptors.h"
#include "backends/dpdk/eal/libc.h"
#include "backends/dpdk/trust.h"

// clang-format off: one line a call reads better.
using bypass::dpdk::libc;
using bypass::dpdk::poll_descriptors;
using bypass::dpdk::raise_descriptor;

namespace {

// How long a driver may wait for one answer of the vhost-user peer. A peer that is stopped, or swapped out,
// for longer is dropped and met again later; without a limit it would stop our control thread for good.
constexpr timeval kPeerPatience{1, 0};

int limit_waiting(int fd) {
  if (fd < 0) return fd;
  libc.setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &kPeerPatience, sizeof kPeerPatience);
  libc.setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &kPeerPatience, sizeof kPeerPatience);
  return fd;
}

void raise_received(msghdr* m) {
  for (cmsghdr* c = CMSG_FIRSTHDR(m); c != nullptr; c = CMSG_NXTHDR(m, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    int* fds = reinterpret_cast<int*>(CMSG_DATA(c));
    for (std::size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++) fds[i] = raise_descriptor(fds[i]);
  }
}

bool makes_descriptor(long bpf_command) {
  switch (bpf_command) {
    case BPF_MAP_CREATE:
    case BPF_PROG_LOAD:
    case BPF_OBJ_GET:
    case BPF_PROG_GET_FD_BY_ID:
    case BPF_MAP_GET_FD_BY_ID:
    case BPF_BTF_LOAD:
    case BPF_BTF_GET_FD_BY_ID:
    case BPF_LINK_CREATE:
    case BPF_LINK_GET_FD_BY_ID:
      return true;
    default:
      return false;
  }
}

int mode_of(int flags, va_list arguments) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, int) : 0;
}

/// Whether the process that has come to a vhost port may stay. A refusal is told once, as the same process may come
/// again and again.
bool is_let_in(int listener, int fd) {
  static std::atomic<bool> told{false};
  sockaddr_un address{};
  socklen_t length = sizeof address - 1;  // the path ends with a zero in any case
  libc.getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length);
  std::string problem;
  if (bypass::dpdk::trusts_peer(fd, address.sun_path, problem)) return true;
  if (!told.exchange(true))
    bypass::dpdk::host->log(bypass::LogLevel::kWarn,
                            ("vhost:" + std::string(address.sun_path) + ": refused: " + problem).c_str());
  return false;
}

}  // namespace

extern "C" {

// --- Calls that make descriptors
int __wrap_epoll_create(int) {
  return raise_descriptor(libc.epoll_create1(EPOLL_CLOEXEC));
}
int __wrap_epoll_create1(int flags) {
  return raise_descriptor(libc.epoll_create1(flags | EPOLL_CLOEXEC));
}
int __wrap_eventfd(unsigned value, int flags) {
  return raise_descriptor(libc.eventfd(value, flags));
}
int __wrap_timerfd_create(int clock, int flags) {
  return raise_descriptor(libc.timerfd_create(clock, flags));
}
int __wrap_memfd_create(const char* name, unsigned flags) {
  return raise_descriptor(libc.memfd_create(name, flags | MFD_CLOEXEC));
}

int __wrap_socket(int domain, int type, int protocol) {
  const int fd = raise_descriptor(libc.socket(domain, type | SOCK_CLOEXEC, protocol));
  return domain == AF_UNIX ? limit_waiting(fd) : fd;
}

int __wrap_accept(int listener, sockaddr* address, socklen_t* length) {
  const int fd = limit_waiting(raise_descriptor(libc.accept(listener, address, length)));
  if (fd < 0) return fd;
  if (bypass::dpdk::is_rival(listener) || !is_let_in(listener, fd)) {
    bypass::dpdk::close_descriptor(fd);
    errno = ECONNABORTED;
    return -1;
  }
  bypass::dpdk::remember_accepted(listener, fd);
  return fd;
}

int __wrap_pipe2(int* ends, int flags) {
  const int result = libc.pipe2(ends, flags | O_CLOEXEC);
  if (result == 0) {
    ends[0] = raise_descriptor(ends[0]);
    ends[1] = raise_descriptor(ends[1]);
  }
  return result;
}
// EAL's interrupt pipe comes first, during its start; the vhost library's is the only later one.
int __wrap_pipe(int* ends) {
  const int result = __wrap_pipe2(ends, 0);
  if (result == 0) {
    libc.fcntl(ends[1], F_SETFL, O_NONBLOCK);
    bypass::dpdk::remember_vhost_pipe(ends[1]);
  }
  return result;
}

ssize_t __wrap_recvmsg(int fd, msghdr* message, int flags) {
  const ssize_t result = libc.recvmsg(fd, message, flags | MSG_CMSG_CLOEXEC);
  if (result >= 0 && message->msg_controllen != 0) raise_received(message);
  return result;
}

int __wrap_open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const int mode = mode_of(flags, arguments);
  va_end(arguments);
  return raise_descriptor(libc.open64(path, flags | O_CLOEXEC, mode));
}
int __wrap_open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const int mode = mode_of(flags, arguments);
  va_end(arguments);
  return raise_descriptor(libc.open64(path, flags | O_CLOEXEC, mode));
}
int __wrap_openat64(int folder, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const int mode = mode_of(flags, arguments);
  va_end(arguments);
  return raise_descriptor(libc.openat64(folder, path, flags | O_CLOEXEC, mode));
}
int __wrap___open64_2(const char* path, int flags) {
  return raise_descriptor(libc.open64(path, flags | O_CLOEXEC));
}

// libbpf's: there is no libc function of that name.
long __wrap_syscall(long number, ...) {
  va_list list;
  va_start(list, number);
  long a[6];
  for (long& each : a) each = va_arg(list, long);
  va_end(list);
  static const auto real = reinterpret_cast<long (*)(long, ...)>(bypass::dpdk::host->libc("syscall"));
  const long result = real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  return number == SYS_bpf && makes_descriptor(a[0]) ? raise_descriptor(static_cast<int>(result)) : result;
}

// --- Calls that use them
int __wrap_close(int fd) {
  bypass::dpdk::hang_up(fd);
  bypass::dpdk::forget_descriptor(fd);
  return libc.close(fd);
}
int __wrap_bind(int fd, const sockaddr* address, socklen_t length) {
  return libc.bind(fd, address, length);
}
int __wrap_listen(int fd, int backlog) {
  return libc.listen(fd, backlog);
}
int __wrap_connect(int fd, const sockaddr* address, socklen_t length) {
  const int result = libc.connect(fd, address, length);
  if (result != 0 || address->sa_family != AF_UNIX) return result;
  // Looked at before (look_at_peer); another may listen there since.
  const char* const path = reinterpret_cast<const sockaddr_un*>(address)->sun_path;
  if (std::string problem; !bypass::dpdk::trusts_peer(fd, path, problem)) {
    errno = EACCES;
    return -1;
  }
  bypass::dpdk::remember_client(fd, path);
  return result;
}
int __wrap_shutdown(int fd, int how) {
  return libc.shutdown(fd, how);
}
int __wrap_getsockopt(int fd, int level, int name, void* value, socklen_t* length) {
  return libc.getsockopt(fd, level, name, value, length);
}
int __wrap_setsockopt(int fd, int level, int name, const void* value, socklen_t length) {
  return libc.setsockopt(fd, level, name, value, length);
}
// The drivers forget MSG_NOSIGNAL: a peer that died would kill the program with SIGPIPE.
ssize_t __wrap_sendmsg(int fd, const msghdr* message, int flags) {
  return libc.sendmsg(fd, message, flags | MSG_NOSIGNAL);
}
ssize_t __wrap_send(int fd, const void* data, size_t length, int flags) {
  return libc.send(fd, data, length, flags | MSG_NOSIGNAL);
}
ssize_t __wrap_sendto(int fd, const void* data, size_t length, int flags, const sockaddr* to, socklen_t size) {
  return libc.sendto(fd, data, length, flags | MSG_NOSIGNAL, to, size);
}
ssize_t __wrap_recv(int fd, void* data, size_t length, int flags) {
  return libc.recv(fd, data, length, flags);
}
ssize_t __wrap_recvfrom(int fd, void* data, size_t length, int flags, sockaddr* from, socklen_t* size) {
  return libc.recvfrom(fd, data, length, flags, from, size);
}
ssize_t __wrap_read(int fd, void* data, size_t length) {
  const ssize_t result = libc.read(fd, data, length);
  bypass::dpdk::on_dpdk_read(fd);
  return result;
}
ssize_t __wrap___read_chk(int fd, void* data, size_t length, size_t) {
  return __wrap_read(fd, data, length);
}
ssize_t __wrap_write(int fd, const void* data, size_t length) {
  return libc.write(fd, data, length);
}
int __wrap_eventfd_write(int fd, eventfd_t value) {
  return libc.write(fd, &value, sizeof value) == sizeof value ? 0 : -1;
}
ssize_t __wrap_readv(int fd, const iovec* parts, int count) {
  return libc.readv(fd, parts, count);
}
ssize_t __wrap_writev(int fd, const iovec* parts, int count) {
  return libc.writev(fd, parts, count);
}
ssize_t __wrap_pread64(int fd, void* data, size_t length, off64_t offset) {
  return libc.pread64(fd, data, length, offset);
}
ssize_t __wrap_pwrite64(int fd, const void* data, size_t length, off64_t offset) {
  return libc.pwrite64(fd, data, length, offset);
}
off64_t __wrap_lseek64(int fd, off64_t offset, int whence) {
  return libc.lseek64(fd, offset, whence);
}
int __wrap_ftruncate64(int fd, off64_t length) {
  return libc.ftruncate64(fd, length);
}
int __wrap_flock(int fd, int operation) {
  return libc.flock(fd, operation);
}
int __wrap_poll(pollfd* fds, nfds_t count, int timeout) {
  return poll_descriptors({fds, count}, timeout);
}
int __wrap___poll_chk(pollfd* fds, nfds_t count, int timeout, size_t) {
  return poll_descriptors({fds, count}, timeout);
}
int __wrap_epoll_ctl(int epoll, int operation, int fd, epoll_event* event) {
  return libc.epoll_ctl(epoll, operation, fd, event);
}
int __wrap_epoll_wait(int epoll, epoll_event* events, int count, int timeout) {
  return libc.epoll_wait(epoll, events, count, timeout);
}
int __wrap_fcntl64(int fd, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  const long argument = va_arg(arguments, long);
  va_end(arguments);
  const int result = libc.fcntl(fd, command, argument);
  return command == F_DUPFD || command == F_DUPFD_CLOEXEC ? raise_descriptor(result) : result;
}
int __wrap_ioctl(int fd, unsigned long request, ...) {
  va_list arguments;
  va_start(arguments, request);
  void* argument = va_arg(arguments, void*);
  va_end(arguments);
  const int result = libc.ioctl(fd, request, argument);
  if (request == VFIO_GROUP_GET_DEVICE_FD) return raise_descriptor(result);
  if (request == VFIO_DEVICE_GET_IRQ_INFO && result == 0)
    bypass::dpdk::correct_irq_info(*static_cast<vfio_irq_info*>(argument));
  return result;
}

}  // extern "C"
