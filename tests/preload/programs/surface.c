/* Every function of libc's that takes a descriptor, once on each kind of socket and on an epoll set: result, errno and
 * effect. */
#include <aio.h>
#include <dirent.h>
#include <execinfo.h>
#include <mqueue.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pty.h>
#include <semaphore.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/fanotify.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <termios.h>
#include <utmp.h>

#include "connection.h"

static char buffer[4096];
static int a, b; /* a connection; `b` is -1 for other objects, which are `a` */
static int file, pipes[2];
static const char kTen[] = "0123456789";

/* What the call has written arrives at the other end. */
static long arrives(long written) {
  if (written <= 0 || b < 0) return written;
  long left = written;
  printf("  arrived: ");
  for (struct pollfd p = {b, POLLIN, 0}; left > 0 && poll(&p, 1, 5000) == 1;) {
    ssize_t n = read(b, buffer, sizeof buffer);
    if (n <= 0) break;
    printf("%.*s", (int)(n > 40 ? 40 : n), buffer);
    left -= n;
  }
  printf(" (%ld)\n", written - left);
  return written;
}

/* Ten bytes come before the call. */
static void fill(void) {
  if (b < 0) return;
  memset(buffer, 0, sizeof buffer);
  if (write(b, kTen, 10) != 10) printf("  not filled: %s\n", strerrorname_np(errno));
  poll(&(struct pollfd){a, POLLIN, 0}, 1, 5000);
}

/* What the call has read, and what it has left. */
static void shows(long result) {
  if (result > 0 && result <= 10) printf("  read: %.*s\n", (int)result, buffer);
  if (b < 0) return;
  char left[64];
  ssize_t n = recv(a, left, sizeof left, MSG_DONTWAIT);
  printf("  left: %zd\n", n);
}

static void empty_pipe(const char* what) {
  char there[256];
  ssize_t n = read(pipes[0], there, sizeof there);
  if (n > 0) printf("  %s: %.*s\n", what, (int)n, there);
}

#define WRITES(call) arrives(TRY(call))
#define READS(call) (fill(), shows(TRY(call)))
/* For a result that is a new descriptor, a pointer, or an error number. */
#define IS(call) TRY((call) ? 1 : -1)

static void transfers(int fd) {
  struct iovec two[2] = {{(void*)"ab", 2}, {(void*)"cd", 2}}, in[2] = {{buffer, 3}, {buffer + 3, 4}};
  struct msghdr out = {.msg_iov = two, .msg_iovlen = 2}, into = {.msg_iov = in, .msg_iovlen = 2};
  struct mmsghdr many = {.msg_hdr = out}, more = {.msg_hdr = into};
  WRITES(write(fd, "write", 5));
  WRITES(writev(fd, two, 2));
  WRITES(pwrite(fd, "x", 1, 0));
  WRITES(pwritev(fd, two, 2, 0));
  WRITES(pwritev2(fd, two, 2, -1, 0));
  WRITES(pwritev2(fd, two, 2, 0, 0));
  WRITES(pwritev2(fd, two, 2, -1, RWF_NOWAIT));
  WRITES(pwritev2(fd, two, 2, -1, RWF_DSYNC));
  WRITES(pwritev2(fd, two, 2, -1, RWF_SYNC));
  WRITES(pwritev2(fd, two, 2, -1, RWF_HIPRI));
  WRITES(pwritev2(fd, two, 2, -1, RWF_APPEND));
  WRITES(pwritev2(fd, two, 2, -1, 0x4000));
  WRITES(pwritev2(fd, two, 2, -2, 0));
  WRITES(pwritev2(fd, two, -1, -1, 0));
  WRITES(send(fd, "send", 4, MSG_NOSIGNAL));
  WRITES(sendto(fd, "sendto", 6, MSG_NOSIGNAL, NULL, 0));
  WRITES(sendmsg(fd, &out, MSG_NOSIGNAL));
  if (TRY(sendmmsg(fd, &many, 1, MSG_NOSIGNAL)) == 1) arrives(4);
  WRITES(dprintf(fd, "dprintf %d", 1));
  TRY(eventfd_write(fd, 0x4142434445464748) == 0 && arrives(8) == 8 ? 0 : -1);
  READS(read(fd, buffer, 4));
  READS(readv(fd, in, 2));
  READS(pread(fd, buffer, 4, 0));
  READS(preadv(fd, in, 2, 0));
  READS(preadv2(fd, in, 2, -1, 0));
  READS(preadv2(fd, in, 2, 5, 0));
  READS(preadv2(fd, in, 2, -1, RWF_NOWAIT));
  READS(preadv2(fd, in, 2, -1, RWF_HIPRI));
  READS(preadv2(fd, in, 2, -1, RWF_DSYNC));
  READS(preadv2(fd, in, 2, -1, RWF_APPEND));
  READS(preadv2(fd, in, 2, -1, 0x4000));
  TRY(preadv2(fd, in, 2, -1, RWF_NOWAIT));
  READS(recv(fd, buffer, 4, 0));
  READS(recv(fd, buffer, 4, MSG_PEEK));
  READS(recvfrom(fd, buffer, 4, 0, NULL, NULL));
  READS(recvmsg(fd, &into, 0));
  READS(recvmmsg(fd, &more, 1, 0, NULL));
  uint64_t value = 0;
  READS(eventfd_read(fd, &value));
  printf("  %llx\n", (unsigned long long)value);
}

/* sendfile(), splice() and their relatives, with the socket as source, as target and as both. */
static void moves(int fd) {
  off_t at = 2, other = 0;
  loff_t from = 3;
  WRITES(sendfile(fd, file, &at, 5));
  TRY(at);
  lseek(file, 4, SEEK_SET);
  WRITES(sendfile(fd, file, NULL, 3));
  TRY(lseek(file, 0, SEEK_CUR));
  TRY(sendfile(fd, file, &(off_t){1 << 20}, 3));
  TRY(sendfile(fd, file, &(off_t){-1}, 3));
  READS(sendfile(file, fd, NULL, 4));
  READS(sendfile(file, fd, &other, 4));
  READS(sendfile(pipes[1], fd, NULL, 4));
  empty_pipe("in the pipe");
  READS(sendfile(fd, fd, NULL, 4));
  WRITES(sendfile(fd, pipes[0], NULL, 4));
  if (write(pipes[1], "through the pipe", 16) != 16) return;
  WRITES(splice(pipes[0], NULL, fd, NULL, 7, 0));
  TRY(splice(pipes[0], NULL, fd, NULL, 0, 0));
  TRY(splice(pipes[0], &from, fd, NULL, 4, 0));
  TRY(splice(pipes[0], NULL, fd, &from, 4, 0));
  TRY(splice(pipes[0], NULL, fd, NULL, 4, 0x100));
  TRY(splice(pipes[1], NULL, fd, NULL, 4, 0));
  WRITES(splice(pipes[0], NULL, fd, NULL, 100, SPLICE_F_NONBLOCK));
  TRY(splice(pipes[0], NULL, fd, NULL, 100, SPLICE_F_NONBLOCK));
  empty_pipe("left");
  READS(splice(fd, NULL, pipes[1], NULL, 6, SPLICE_F_NONBLOCK));
  empty_pipe("spliced");
  READS(splice(fd, &from, pipes[1], NULL, 6, 0));
  READS(splice(fd, NULL, pipes[1], &from, 6, 0));
  READS(splice(fd, NULL, pipes[0], NULL, 6, 0));
  READS(splice(fd, NULL, file, NULL, 6, 0));
  READS(splice(fd, NULL, fd, NULL, 6, 0));
  TRY(splice(file, NULL, fd, NULL, 6, 0));
  TRY(splice(fd, NULL, pipes[1], NULL, 6, SPLICE_F_NONBLOCK));
  empty_pipe("left");
  READS(tee(fd, pipes[1], 4, 0));
  TRY(tee(pipes[0], fd, 4, 0));
  TRY(vmsplice(fd, &(struct iovec){buffer, 4}, 1, 0));
  READS(copy_file_range(fd, NULL, file, NULL, 4, 0));
  TRY(copy_file_range(file, NULL, fd, NULL, 4, 0));
}

static void as_a_file(int fd) {
  struct stat status;
  struct statx more;
  struct statfs system;
  struct statvfs posix;
  TRY(fstat(fd, &status) == 0 ? (long)(status.st_mode & S_IFMT) : -1);
  TRY(fstatat(fd, "", &status, AT_EMPTY_PATH) == 0 ? (long)(status.st_mode & S_IFMT) : -1);
  TRY(fstatat(fd, "x", &status, 0));
  TRY(statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &more) == 0 ? (long)(more.stx_mode & S_IFMT) : -1);
  TRY(status.st_size + (long)status.st_blksize);
  TRY(fstatfs(fd, &system) == 0 ? (long)system.f_type : -1);
  TRY(fstatvfs(fd, &posix) == 0 ? (long)posix.f_namemax : -1);
  TRY(lseek(fd, 0, SEEK_CUR));
  TRY(ftruncate(fd, 0));
  TRY(fsync(fd));
  TRY(fdatasync(fd));
  TRY(sync_file_range(fd, 0, 1, 0));
  TRY(posix_fadvise(fd, 0, 1, POSIX_FADV_NORMAL));
  TRY(posix_fallocate(fd, 0, 1));
  TRY(fallocate(fd, 0, 0, 1));
  TRY(readahead(fd, 0, 1));
  TRY(flock(fd, LOCK_SH | LOCK_NB));
  TRY(flock(fd, LOCK_UN));
  TRY(lockf(fd, F_TEST, 0));
  IS(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0) != MAP_FAILED);
  TRY(fchmod(fd, 0600));
  TRY(fchown(fd, (uid_t)-1, (gid_t)-1));
  TRY(fchdir(fd));
  TRY(futimens(fd, NULL));
  TRY(fgetxattr(fd, "user.x", buffer, 10));
  TRY(fsetxattr(fd, "user.x", "y", 1, 0));
  TRY(fremovexattr(fd, "user.x"));
  TRY(flistxattr(fd, NULL, 0) >= 0);
  TRY(getdents64(fd, buffer, sizeof buffer));
  IS(fdopendir(fd) != NULL);
  TRY(openat(fd, "x", O_RDONLY));
  TRY(mkdirat(fd, "x", 0700));
  TRY(unlinkat(fd, "x", 0));
  TRY(faccessat(fd, "x", R_OK, 0));
  TRY(readlinkat(fd, "x", buffer, 10));
  TRY(linkat(fd, "", AT_FDCWD, "/tmp/never/made", AT_EMPTY_PATH));
  TRY(fpathconf(fd, _PC_PIPE_BUF));
  TRY(isatty(fd) ? 1 : -1);
  TRY(ttyname_r(fd, buffer, 64));
  TRY(ptsname_r(fd, buffer, 64));
  TRY(tcgetpgrp(fd));
  TRY(tcgetattr(fd, (struct termios*)buffer));
  TRY(tcflush(fd, TCIOFLUSH));
  TRY(tcsendbreak(fd, 0));
  TRY(isfdtype(fd, S_IFSOCK));
  TRY(login_tty(-1));
}

static void controls(int fd) {
  int value = 0;
  struct flock lock = {.l_type = F_RDLCK};
  TRY(fcntl(fd, F_GETFL));
  TRY(fcntl(fd, F_SETFL, O_APPEND | O_NONBLOCK));
  TRY(fcntl(fd, F_GETFL));
  TRY(fcntl(fd, F_SETFL, O_NONBLOCK));
  TRY(fcntl(fd, F_GETFD));
  TRY(fcntl(fd, F_SETFD, FD_CLOEXEC));
  TRY(fcntl64(fd, F_GETFD));
  TRY(fcntl(fd, F_GETLK, &lock));
  TRY(fcntl(fd, F_SETLK, &lock));
  TRY(fcntl(fd, F_OFD_SETLK, &lock));
  TRY(fcntl(fd, F_GETPIPE_SZ));
  TRY(fcntl(fd, F_SETPIPE_SZ, 4096));
  TRY(fcntl(fd, F_GET_SEALS));
  TRY(fcntl(fd, F_ADD_SEALS, 0));
  TRY(fcntl(fd, F_GETLEASE));
  TRY(fcntl(fd, F_SETLEASE, F_UNLCK));
  TRY(fcntl(fd, F_NOTIFY, 0));
  TRY(fcntl(fd, F_GETOWN));
  TRY(fcntl(fd, F_GETSIG));
  TRY(fcntl(fd, 9999, 0));
  TRY(ioctl(fd, FIONREAD, &value));
  TRY(value);
  TRY(ioctl(fd, FIONBIO, &(int){1}));
  TRY(ioctl(fd, FIOCLEX));
  TRY(ioctl(fd, FIONCLEX));
  TRY(ioctl(fd, FIOQSIZE, buffer));
  TRY(ioctl(fd, TIOCOUTQ, &value));
  TRY(ioctl(fd, TCGETS, buffer));
  TRY(ioctl(fd, TIOCGWINSZ, buffer));
  TRY(ioctl(fd, 0x1234567, buffer));
  TRY(sockatmark(fd));
}

static void as_another_kind(int fd) {
  struct itimerspec time = {{0, 0}, {0, 0}};
  sigset_t none;
  sigemptyset(&none);
  TRY(timerfd_gettime(fd, &time));
  TRY(timerfd_settime(fd, 0, &time, NULL));
  TRY(signalfd(fd, &none, 0));
  TRY(inotify_add_watch(fd, "/", IN_CREATE));
  TRY(inotify_rm_watch(fd, 1));
  TRY(fanotify_mark(fd, FAN_MARK_ADD, FAN_OPEN, AT_FDCWD, "/"));
  TRY(mq_getattr(fd, (struct mq_attr*)buffer));
  TRY(mq_send(fd, "x", 1, 0));
  TRY(mq_receive(fd, buffer, 10, NULL));
  TRY(setns(fd, 0));
  TRY(epoll_wait(fd, (struct epoll_event*)buffer, 1, 0));
  TRY(epoll_ctl(fd, EPOLL_CTL_DEL, 0, NULL));
}

static void as_a_socket(int fd) {
  struct sockaddr_storage name;
  socklen_t length = sizeof name;
  int value = 0;
  TRY(getsockname(fd, (struct sockaddr*)&name, &length));
  length = sizeof name;
  TRY(getpeername(fd, (struct sockaddr*)&name, &length));
  length = sizeof value;
  TRY(getsockopt(fd, SOL_SOCKET, SO_TYPE, &value, &length));
  TRY(getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &value, &length));
  TRY(getsockopt(fd, SOL_SOCKET, 9999, &value, &length));
  TRY(getsockopt(fd, 9999, 1, &value, &length));
  TRY(setsockopt(fd, SOL_SOCKET, 9999, &value, sizeof value));
  TRY(accept(fd, NULL, NULL));
  TRY(accept4(fd, NULL, NULL, 0x40));
  TRY(bindresvport(fd, &(struct sockaddr_in){.sin_family = AF_INET6}));
}

static void waits(int fd) {
  struct pollfd p = {fd, POLLIN | POLLOUT | POLLRDHUP | POLLPRI, 0};
  fd_set set;
  FD_ZERO(&set);
  FD_SET(fd, &set);
  TRY(poll(&p, 1, 0));
  TRY(p.revents);
  TRY(ppoll(&p, 1, &(struct timespec){0, 0}, NULL));
  TRY(select(fd + 1, NULL, &set, NULL, &(struct timeval){0, 0}));
  FD_SET(fd, &set);
  TRY(pselect(fd + 1, &set, NULL, NULL, &(struct timespec){0, 0}, NULL));
}

static void copies(int fd) {
  struct stat one, other;
  int copy = dup(fd), chosen = dup2(fd, 90), third = dup3(fd, 91, O_CLOEXEC);
  TRY(chosen);
  TRY(third);
  TRY(dup3(fd, fd, 0));
  TRY(dup2(fd, fd) == fd);
  TRY(fstat(copy, &one) | fstat(fd, &other));
  TRY(one.st_ino == other.st_ino);
  TRY(close(copy) | close(chosen) | close(third));
  IS(fdopen(fd, "nonsense") != NULL);
}

/* The same by syscall(2). */
static void by_number(int fd) {
  struct iovec two[2] = {{(void*)"ab", 2}, {(void*)"cd", 2}}, in = {buffer, 6};
  struct timespec now = {0, 0};
  struct {
    const sigset_t* mask;
    size_t size;
  } none = {NULL, 8};
  fd_set set;
  off_t at = 1;
  WRITES(syscall(SYS_pwritev2, fd, two, 2L, -1L, -1L, 0L));
  WRITES(syscall(SYS_sendfile, fd, file, &at, 5L));
  if (write(pipes[1], "by number", 9) != 9) return;
  WRITES(syscall(SYS_splice, pipes[0], NULL, fd, NULL, 9L, (long)SPLICE_F_NONBLOCK));
  empty_pipe("left");
  READS(syscall(SYS_preadv2, fd, &in, 1L, -1L, -1L, 0L));
  READS(syscall(SYS_preadv2, fd, &in, 1L, 7L, 0L, 0L));
  READS(syscall(SYS_splice, fd, NULL, pipes[1], NULL, 6L, (long)SPLICE_F_NONBLOCK));
  empty_pipe("spliced");
  FD_ZERO(&set);
  FD_SET(fd, &set);
  TRY(syscall(SYS_pselect6, fd + 1L, NULL, &set, NULL, &now, &none));
}

static void writes_symbols(int fd) {
  void* addresses[1] = {(void*)strlen};
  char expected[256] = "";
  backtrace_symbols_fd(addresses, 1, pipes[1]);
  ssize_t n = read(pipes[0], expected, sizeof expected - 1);
  backtrace_symbols_fd(addresses, 1, fd);
  long got = 0;
  for (struct pollfd p = {b, POLLIN, 0}; got < n && poll(&p, 1, 5000) == 1;)
    got += read(b, buffer + got, sizeof buffer - (size_t)got);
  TRY(n > 0 && got == n && memcmp(buffer, expected, (size_t)n) == 0);
}

static void each(const char* kind, int fd, int peer) {
  printf("== %s\n", kind);
  a = fd, b = peer;
  fcntl(fd, F_SETFL, O_NONBLOCK);
  transfers(fd);
  moves(fd);
  by_number(fd);
  as_a_file(fd);
  controls(fd);
  as_another_kind(fd);
  as_a_socket(fd);
  waits(fd);
  copies(fd);
  if (b >= 0) writes_symbols(fd);
}

static void reserved_port(void) {
  printf("== bindresvport\n");
  for (int again = 0; again < 2; again++) {
    struct sockaddr_in wanted = {.sin_family = AF_INET, .sin_addr.s_addr = own_address()}, has;
    socklen_t length = sizeof has;
    int s = socket(AF_INET, SOCK_STREAM, 0);
    TRY(bindresvport(s, &wanted));
    TRY(getsockname(s, (struct sockaddr*)&has, &length));
    TRY(has.sin_port == wanted.sin_port && (ntohs(has.sin_port) < 1024) == (geteuid() == 0));
    close(s);
  }
}

static struct aiocb request(int fd, int opcode, void* data, size_t bytes) {
  return (struct aiocb){.aio_fildes = fd,
                        .aio_lio_opcode = opcode,
                        .aio_buf = data,
                        .aio_nbytes = bytes,
                        .aio_sigevent = {.sigev_notify = SIGEV_NONE}};
}

static void await(const char* what, struct aiocb* block) {
  const struct aiocb* list[] = {NULL, block};
  int waited = aio_suspend(list, 2, &(struct timespec){5, 0});
  int error = aio_error(block);
  printf("%s: %d %s %zd\n", what, waited, error == 0 ? "" : strerrorname_np(error), aio_return(block));
}

static sem_t told;
static int told_value;

static void tells(union sigval value) {
  told_value = value.sival_int;
  sem_post(&told);
}

static void asynchronous(void) {
  static char one[16], other[16], third[16];
  printf("== aio\n");
  connect_both(&a, &b);
  struct aiocb write_block = request(a, LIO_WRITE, "aio_write", 9);
  TRY(aio_write(&write_block));
  await("written", &write_block);
  arrives(9);

  struct aiocb first = request(a, LIO_READ, one, 4), second = request(a, LIO_READ, other, 4);
  struct aiocb last = request(a, LIO_READ, third, 10), urgent = request(a, LIO_WRITE, "never", 5);
  // A request that waits for a thread can be cancelled. The first one has begun once the one before it has ended.
  struct aiocb before = request(a, LIO_READ, other, 1);
  TRY(aio_read(&before));
  TRY(aio_read(&first));
  TRY(write(b, "-", 1));
  await("before", &before);
  TRY(aio_error(&first) == EINPROGRESS);
  TRY(aio_suspend((const struct aiocb*[]){&first}, 1, &(struct timespec){0, 1000000}));
  TRY(aio_read(&second));
  TRY(aio_read(&last));
  urgent.aio_reqprio = 3;
  TRY(aio_write(&urgent));
  TRY(aio_cancel(a, &first));
  TRY(aio_cancel(a, &last));
  TRY(aio_cancel(a, &urgent));
  await("cancelled", &last);
  TRY(aio_cancel(a, &last));
  TRY(aio_cancel(b, &first));
  TRY(write(b, "0123", 4));
  await("first", &first);
  printf("%.4s\n", one);
  TRY(write(b, "4567", 4));
  await("second", &second);
  printf("%.4s\n", other);

  sigset_t set;
  siginfo_t info;
  sigemptyset(&set);
  sigaddset(&set, SIGRTMIN);
  sigprocmask(SIG_BLOCK, &set, NULL);
  first = request(a, LIO_READ, one, 4);
  first.aio_sigevent =
      (struct sigevent){.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN, .sigev_value.sival_int = 42};
  TRY(aio_read(&first));
  TRY(write(b, "sign", 4));
  TRY(sigwaitinfo(&set, &info) == SIGRTMIN);
  printf("%d %d %d\n", info.si_code == SI_ASYNCIO, info.si_value.sival_int, info.si_pid == getpid());
  await("with a signal", &first);

  sem_init(&told, 0, 0);
  first = request(a, LIO_WRITE, "thread", 6);
  first.aio_sigevent =
      (struct sigevent){.sigev_notify = SIGEV_THREAD, .sigev_notify_function = tells, .sigev_value.sival_int = 43};
  TRY(aio_write(&first));
  sem_wait(&told);
  printf("told %d\n", told_value);
  arrives(6);

  struct aiocb of_file = request(file, LIO_READ, third, 10), none = request(-1, LIO_NOP, NULL, 0);
  first = request(a, LIO_WRITE, "a list", 6);
  struct aiocb* list[] = {&first, NULL, &of_file, &none};
  TRY(lio_listio(LIO_WAIT, list, 4, NULL));
  await("of the socket", &first);
  await("of the file", &of_file);
  printf("%.10s\n", third);
  arrives(6);
  struct sigevent event = {.sigev_notify = SIGEV_THREAD, .sigev_notify_function = tells, .sigev_value.sival_int = 44};
  first = request(a, LIO_WRITE, "without waiting", 15);
  of_file = request(file, LIO_READ, third, 10);
  TRY(lio_listio(LIO_NOWAIT, list, 4, &event));
  sem_wait(&told);
  printf("told %d\n", told_value);
  arrives(15);
  TRY(lio_listio(9, list, 4, NULL));
  first = request(a, LIO_WRITE, "x", 1);
  first.aio_reqprio = -1;
  TRY(aio_write(&first));
  TRY(aio_error(&first) == EINVAL);
  TRY(lio_listio(LIO_WAIT, (struct aiocb*[]){&first}, 1, NULL));

  first = request(a, LIO_WRITE, "x", 1);
  TRY(aio_fsync(O_SYNC, &first));
  await("fsync", &first);
  shutdown(a, SHUT_WR), shutdown(b, SHUT_WR);
  first = request(a, LIO_WRITE, "x", 1);
  TRY(aio_write(&first));
  await("after shutdown", &first);
  first = request(a, LIO_READ, one, 4);
  TRY(aio_read(&first));
  await("at the end", &first);
  close(a), close(b);
}

/* Other names of libc's for the same functions. */
extern ssize_t __read(int, void*, size_t), __write(int, const void*, size_t), __send(int, const void*, size_t, int);
extern int __close(int), __connect(int, const struct sockaddr*, socklen_t), __dup2(int, int), __fcntl(int, int, ...),
    __poll(struct pollfd*, nfds_t, int), __select(int, fd_set*, fd_set*, fd_set*, struct timeval*);
extern pid_t __fork(void);

static void other_names(void) {
  struct sockaddr_in where;
  socklen_t length = sizeof where;
  fd_set set;
  int status, listener = socket(AF_INET, SOCK_STREAM, 0), c = socket(AF_INET, SOCK_STREAM, 0);
  printf("== other names\n");
  where = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = own_address()};
  bind(listener, (struct sockaddr*)&where, length), listen(listener, 1);
  getsockname(listener, (struct sockaddr*)&where, &length);
  TRY(__connect(c, (struct sockaddr*)&where, length));
  int s = accept(listener, NULL, NULL);
  TRY(__write(c, "write", 5));
  TRY(__poll(&(struct pollfd){s, POLLIN, 0}, 1, 5000));
  TRY(__read(s, buffer, 10));
  TRY(__send(c, "send", 4, 0));
  FD_ZERO(&set);
  FD_SET(s, &set);
  TRY(__select(s + 1, &set, NULL, NULL, &(struct timeval){5, 0}));
  TRY(__read(s, buffer, 10));
  TRY(__dup2(c, 95));
  TRY(__fcntl(c, F_SETFL, O_NONBLOCK));
  TRY(read(95, buffer, 1));
  if (__fork() == 0) _exit(write(95, "child", 5) == 5 ? 0 : 1);
  wait(&status);
  TRY(status);
  TRY(poll(&(struct pollfd){s, POLLIN, 0}, 1, 5000));
  TRY(read(s, buffer, 10));
  TRY(__close(95) | __close(c));
  TRY(poll(&(struct pollfd){s, POLLIN, 0}, 1, 5000));
  TRY(read(s, buffer, 10));
  close(s), close(listener);
}

/* A terminal takes the places of the sockets that a child has as its standard streams. */
static void a_terminal(void) {
  int main_end, status = 0;
  char line[64] = "";
  printf("== forkpty\n");
  connect_both(&a, &b);
  fflush(stdout);
  for (int number = 0; number < 2; number++) dup2(a, number + 80);
  pid_t child = forkpty(&main_end, NULL, NULL, NULL);
  if (child == 0) {
    dup2(81, 1);
    if (login_tty(dup(2)) != 0) _exit(5); /* it has this terminal already */
    _exit(isatty(0) && isatty(1) && write(1, "on the terminal\n", 16) == 16 ? 0 : 1);
  }
  for (size_t got = 0; got < 16;) {
    ssize_t n = read(main_end, line + got, sizeof line - 1 - got);
    if (n <= 0) break;
    got += (size_t)n;
  }
  waitpid(child, &status, 0);
  TRY(status);
  printf("%.15s\n", line);
  TRY(poll(&(struct pollfd){b, POLLIN, 0}, 1, 0));
  close(main_end), close(80), close(81), close(a), close(b);
}

int main(void) {
  char name[] = "/tmp/surface-XXXXXX";
  int one, other;
  signal(SIGPIPE, SIG_IGN);
  setvbuf(stdout, NULL, _IOLBF, 0);
  file = mkstemp(name);
  unlink(name);
  if (write(file, "abcdefghijklmnopqrstuvwxyz", 26) != 26 || pipe2(pipes, O_NONBLOCK) != 0) return 1;
  connect_both(&one, &other);
  each("a connection", one, other);
  close(one), close(other);
  struct connection c;
  open_listener(&c);
  each("a listener", c.listener, -1);
  close(c.listener), close(c.client);
  each("not connected", socket(AF_INET, SOCK_STREAM, 0), -1);
  each("datagrams", socket(AF_INET, SOCK_DGRAM, 0), -1);
  each("an epoll set", epoll_create1(0), -1);
  reserved_port();
  asynchronous();
  other_names();
  a_terminal();
  return 0;
}
