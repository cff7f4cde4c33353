// The libc functions that src/preload calls by its own table: X(return type, name, parameters).
//
// The order is the table's; a name that this libc lacks stays a stub that fails with ENOSYS.
#pragma once

// Functions with a system call of the same form: safe before the table is filled (see symbols.cc).
#define BYPASS_REAL_CALLS(X)                             \
  X(int, socket, (int, int, int))                        \
  X(int, close, (int))                                   \
  X(int, dup, (int))                                     \
  X(int, dup2, (int, int))                               \
  X(int, dup3, (int, int, int))                          \
  X(int, close_range, (unsigned, unsigned, int))         \
  X(int, bind, (int, const sockaddr*, socklen_t))        \
  X(int, listen, (int, int))                             \
  X(int, accept4, (int, sockaddr*, socklen_t*, int))     \
  X(int, connect, (int, const sockaddr*, socklen_t))     \
  X(int, shutdown, (int, int))                           \
  X(int, getsockname, (int, sockaddr*, socklen_t*))      \
  X(int, getpeername, (int, sockaddr*, socklen_t*))      \
  X(ssize_t, read, (int, void*, size_t))                 \
  X(ssize_t, write, (int, const void*, size_t))          \
  X(ssize_t, readv, (int, const iovec*, int))            \
  X(ssize_t, writev, (int, const iovec*, int))           \
  X(ssize_t, recvmsg, (int, msghdr*, int))               \
  X(ssize_t, sendmsg, (int, const msghdr*, int))         \
  X(int, poll, (pollfd*, nfds_t, int))                   \
  X(int, epoll_create1, (int))                           \
  X(int, epoll_ctl, (int, int, int, epoll_event*))       \
  X(int, getsockopt, (int, int, int, void*, socklen_t*)) \
  X(int, setsockopt, (int, int, int, const void*, socklen_t))

// Variadic system calls, written out in symbols.cc.
#define BYPASS_REAL_VARIADIC(X)            \
  X(int, fcntl, (int, int, ...))           \
  X(int, fcntl64, (int, int, ...))         \
  X(int, ioctl, (int, unsigned long, ...)) \
  X(long, syscall, (long, ...))

// The others fill the table when one of them is first called before our constructor.
#define BYPASS_REAL_OTHERS(X)                                                                                       \
  X(int, accept, (int, sockaddr*, socklen_t*))                                                                      \
  X(ssize_t, pread, (int, void*, size_t, off_t))                                                                    \
  X(ssize_t, preadv2, (int, const iovec*, int, off_t, int))                                                         \
  X(ssize_t, pwritev2, (int, const iovec*, int, off_t, int))                                                        \
  X(ssize_t, recv, (int, void*, size_t, int))                                                                       \
  X(ssize_t, recvfrom, (int, void*, size_t, int, sockaddr*, socklen_t*))                                            \
  X(int, recvmmsg, (int, mmsghdr*, unsigned, int, timespec*))                                                       \
  X(ssize_t, send, (int, const void*, size_t, int))                                                                 \
  X(ssize_t, sendto, (int, const void*, size_t, int, const sockaddr*, socklen_t))                                   \
  X(int, sendmmsg, (int, mmsghdr*, unsigned, int))                                                                  \
  X(ssize_t, sendfile, (int, int, off_t*, size_t))                                                                  \
  X(ssize_t, splice, (int, off_t*, int, off_t*, size_t, unsigned))                                                  \
  X(ssize_t, __read_chk, (int, void*, size_t, size_t))                                                              \
  X(ssize_t, __recv_chk, (int, void*, size_t, size_t, int))                                                         \
  X(ssize_t, __recvfrom_chk, (int, void*, size_t, size_t, int, sockaddr*, socklen_t*))                              \
  X(int, ppoll, (pollfd*, nfds_t, const timespec*, const sigset_t*))                                                \
  X(int, __poll_chk, (pollfd*, nfds_t, int, size_t))                                                                \
  X(int, __ppoll_chk, (pollfd*, nfds_t, const timespec*, const sigset_t*, size_t))                                  \
  X(int, select, (int, fd_set*, fd_set*, fd_set*, timeval*))                                                        \
  X(int, pselect, (int, fd_set*, fd_set*, fd_set*, const timespec*, const sigset_t*))                               \
  X(int, epoll_create, (int))                                                                                       \
  X(int, epoll_wait, (int, epoll_event*, int, int))                                                                 \
  X(int, epoll_pwait, (int, epoll_event*, int, int, const sigset_t*))                                               \
  X(int, epoll_pwait2, (int, epoll_event*, int, const timespec*, const sigset_t*))                                  \
  X(int, eventfd, (unsigned, int))                                                                                  \
  X(void, closefrom, (int))                                                                                         \
  X(pid_t, _Fork, ())                                                                                               \
  X(pid_t, fork, ())                                                                                                \
  X(pid_t, vfork, ())                                                                                               \
  X(int, execve, (const char*, char* const*, char* const*))                                                         \
  X(int, execvpe, (const char*, char* const*, char* const*))                                                        \
  X(int, fexecve, (int, char* const*, char* const*))                                                                \
  X(int, execveat, (int, const char*, char* const*, char* const*, int))                                             \
  X(int, posix_spawn_file_actions_adddup2, (posix_spawn_file_actions_t*, int, int))                                 \
  X(int, posix_spawn,                                                                                               \
    (pid_t*, const char*, const posix_spawn_file_actions_t*, const posix_spawnattr_t*, char* const*, char* const*)) \
  X(int, posix_spawnp,                                                                                              \
    (pid_t*, const char*, const posix_spawn_file_actions_t*, const posix_spawnattr_t*, char* const*, char* const*)) \
  X(int, system, (const char*))                                                                                     \
  X(FILE*, popen, (const char*, const char*))                                                                       \
  X(int, aio_suspend, (const aiocb* const*, int, const timespec*))                                                  \
  X(int, aio_suspend64, (const aiocb64* const*, int, const timespec*))                                              \
  X(int, aio_cancel, (int, aiocb*))                                                                                 \
  X(int, aio_cancel64, (int, aiocb64*))                                                                             \
  X(int, aio_read, (aiocb*))                                                                                        \
  X(int, aio_read64, (aiocb64*))                                                                                    \
  X(int, aio_write, (aiocb*))                                                                                       \
  X(int, aio_write64, (aiocb64*))                                                                                   \
  X(int, lio_listio, (int, aiocb* const*, int, sigevent*))                                                          \
  X(int, lio_listio64, (int, aiocb64* const*, int, sigevent*))                                                      \
  X(int, unshare, (int))                                                                                            \
  X(int, setns, (int, int))                                                                                         \
  X(int, setuid, (uid_t))                                                                                           \
  X(int, setgid, (gid_t))                                                                                           \
  X(int, seteuid, (uid_t))                                                                                          \
  X(int, setegid, (gid_t))                                                                                          \
  X(int, setreuid, (uid_t, uid_t))                                                                                  \
  X(int, setregid, (gid_t, gid_t))                                                                                  \
  X(int, setresuid, (uid_t, uid_t, uid_t))                                                                          \
  X(int, setresgid, (gid_t, gid_t, gid_t))                                                                          \
  X(int, capset, (void*, const void*))                                                                              \
  X(void, _exit, (int))                                                                                             \
  X(void, pthread_exit, (void*))                                                                                    \
  X(int, sigaction, (int, const struct sigaction*, struct sigaction*))                                              \
  X(FILE*, fdopen, (int, const char*))                                                                              \
  X(void, backtrace_symbols_fd, (void* const*, int, int))                                                           \
  X(pid_t, forkpty, (int*, char*, const termios*, const winsize*))                                                  \
  X(int, openpty, (int*, int*, char*, const termios*, const winsize*))                                              \
  X(FILE*, freopen, (const char*, const char*, FILE*))                                                              \
  X(FILE*, freopen64, (const char*, const char*, FILE*))                                                            \
  X(void, perror, (const char*))                                                                                    \
  X(void, _IO_list_lock, ())                                                                                        \
  X(void, _IO_list_unlock, ())                                                                                      \
  X(void*, _IO_iter_begin, ())                                                                                      \
  X(void*, _IO_iter_end, ())                                                                                        \
  X(void*, _IO_iter_next, (void*))                                                                                  \
  X(FILE*, _IO_iter_file, (void*))                                                                                  \
  X(int, vdprintf, (int, const char*, va_list))                                                                     \
  X(int, __vdprintf_chk, (int, int, const char*, va_list))                                                          \
  X(int, getaddrinfo, (const char*, const char*, const addrinfo*, addrinfo**))                                      \
  X(int, getnameinfo, (const sockaddr*, socklen_t, char*, socklen_t, char*, socklen_t, int))                        \
  X(hostent*, gethostbyname, (const char*))                                                                         \
  X(hostent*, gethostbyname2, (const char*, int))                                                                   \
  X(hostent*, gethostbyaddr, (const void*, socklen_t, int))                                                         \
  X(int, gethostbyname_r, (const char*, hostent*, char*, size_t, hostent**, int*))                                  \
  X(int, gethostbyname2_r, (const char*, int, hostent*, char*, size_t, hostent**, int*))                            \
  X(int, gethostbyaddr_r, (const void*, socklen_t, int, hostent*, char*, size_t, hostent**, int*))
