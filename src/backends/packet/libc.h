// libc's own functions, fetched through Host::libc. So no call of this plugin meets the preload library's interposer.
#pragma once

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstdint>

#include "backends/backend.h"
#include "backends/libc_table.h"

// X(return type, name, parameters)
#define BYPASS_PACKET_LIBC_CALLS(X)                                               \
  X(int, bind, (int, const sockaddr*, socklen_t))                                 \
  X(int, close, (int))                                                            \
  X(int, connect, (int, const sockaddr*, socklen_t))                              \
  X(int, epoll_create1, (int))                                                    \
  X(int, epoll_ctl, (int, int, int, epoll_event*))                                \
  X(int, epoll_wait, (int, epoll_event*, int, int))                               \
  X(int, eventfd, (unsigned, int))                                                \
  X(int, fcntl, (int, int, ...))                                                  \
  X(int, getsockopt, (int, int, int, void*, socklen_t*))                          \
  X(int, ioctl, (int, unsigned long, ...))                                        \
  X(int, listen, (int, int))                                                      \
  X(int, open, (const char*, int, ...))                                           \
  X(int, poll, (pollfd*, nfds_t, int))                                            \
  X(ssize_t, read, (int, void*, size_t))                                          \
  X(ssize_t, readv, (int, const iovec*, int))                                     \
  X(ssize_t, recv, (int, void*, size_t, int))                                     \
  X(ssize_t, recvmsg, (int, msghdr*, int))                                        \
  X(int, sendmmsg, (int, mmsghdr*, unsigned, int))                                \
  X(int, setsockopt, (int, int, int, const void*, socklen_t))                     \
  X(int, socket, (int, int, int))                                                 \
  X(ssize_t, sendmsg, (int, const msghdr*, int))                                  \
  X(ssize_t, sendto, (int, const void*, size_t, int, const sockaddr*, socklen_t)) \
  X(long, syscall, (long, ...))                                                   \
  X(ssize_t, write, (int, const void*, size_t))                                   \
  X(ssize_t, writev, (int, const iovec*, int))

namespace bypass::packet {

struct Libc {
  BYPASS_PACKET_LIBC_CALLS(BYPASS_LIBC_MEMBER)
};

/// Filled by bind_libc(), before anything else of this plugin runs.
extern Libc libc;
extern const Host* host;

/// Looks up every function. False: `missing` names the first one that libc lacks.
bool bind_libc(const Host* process, const char** missing);

}  // namespace bypass::packet
