// The libc that DPDK sees: each call that makes or touches a descriptor or a thread, fetched through
// Host::libc so that it can never be the preload library's own interposer.
//
// The link redirects DPDK's calls here with --wrap (wraps_*.cc). __real_X is not used: the dynamic linker
// would bind it to the first libbypass in the program, whose socket() would then call into this plugin.
#pragma once

#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>

#include "backends/backend.h"
#include "backends/libc_table.h"

// X(return type, name, parameters)
#define BYPASS_DPDK_LIBC_CALLS(X)                                                 \
  X(int, access, (const char*, int))                                              \
  X(int, accept, (int, sockaddr*, socklen_t*))                                    \
  X(int, bind, (int, const sockaddr*, socklen_t))                                 \
  X(int, close, (int))                                                            \
  X(int, connect, (int, const sockaddr*, socklen_t))                              \
  X(void*, dlopen, (const char*, int))                                            \
  X(int, epoll_create1, (int))                                                    \
  X(int, epoll_ctl, (int, int, int, epoll_event*))                                \
  X(int, epoll_wait, (int, epoll_event*, int, int))                               \
  X(int, eventfd, (unsigned, int))                                                \
  X(int, fcntl, (int, int, ...))                                                  \
  X(int, flock, (int, int))                                                       \
  X(int, ftruncate64, (int, off64_t))                                             \
  X(int, getsockname, (int, sockaddr*, socklen_t*))                               \
  X(int, getsockopt, (int, int, int, void*, socklen_t*))                          \
  X(int, ioctl, (int, unsigned long, ...))                                        \
  X(int, listen, (int, int))                                                      \
  X(off64_t, lseek64, (int, off64_t, int))                                        \
  X(int, memfd_create, (const char*, unsigned))                                   \
  X(int, mkdir, (const char*, mode_t))                                            \
  X(int, nanosleep, (const timespec*, timespec*))                                 \
  X(int, open, (const char*, int, ...))                                           \
  X(int, open64, (const char*, int, ...))                                         \
  X(int, openat64, (int, const char*, int, ...))                                  \
  X(int, pipe2, (int*, int))                                                      \
  X(int, poll, (pollfd*, nfds_t, int))                                            \
  X(ssize_t, pread64, (int, void*, size_t, off64_t))                              \
  X(ssize_t, pwrite64, (int, const void*, size_t, off64_t))                       \
  X(ssize_t, read, (int, void*, size_t))                                          \
  X(ssize_t, readv, (int, const iovec*, int))                                     \
  X(ssize_t, recv, (int, void*, size_t, int))                                     \
  X(ssize_t, recvfrom, (int, void*, size_t, int, sockaddr*, socklen_t*))          \
  X(ssize_t, recvmsg, (int, msghdr*, int))                                        \
  X(ssize_t, send, (int, const void*, size_t, int))                               \
  X(ssize_t, sendmsg, (int, const msghdr*, int))                                  \
  X(ssize_t, sendto, (int, const void*, size_t, int, const sockaddr*, socklen_t)) \
  X(int, setsockopt, (int, int, int, const void*, socklen_t))                     \
  X(int, shutdown, (int, int))                                                    \
  X(int, socket, (int, int, int))                                                 \
  X(int, timerfd_create, (int, int))                                              \
  X(int, timerfd_settime, (int, int, const itimerspec*, itimerspec*))             \
  X(int, unlink, (const char*))                                                   \
  X(ssize_t, write, (int, const void*, size_t))                                   \
  X(ssize_t, writev, (int, const iovec*, int))

namespace bypass::dpdk {

struct Libc {
  BYPASS_DPDK_LIBC_CALLS(BYPASS_LIBC_MEMBER)
};

/// Filled by bind_libc(), before any DPDK call.
extern Libc libc;
extern const Host* host;

/// Looks every call up. False: `missing` names the first one that libc lacks.
bool bind_libc(const Host* process, const char** missing);

}  // namespace bypass::dpdk
