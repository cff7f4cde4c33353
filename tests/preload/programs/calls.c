/* Every interposed call, on files, pipes, Unix sockets and Internet sockets of the loopback. Prints results
 * only, so that its output is the same with and without a preloaded library. Built with and without
 * _FORTIFY_SOURCE: the fortified forms are other symbols. */
#include <fcntl.h>
#include <linux/close_range.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include "say.h"

static char buffer[256];
static volatile size_t room = sizeof(buffer); /* volatile: the fortified call cannot be decided early */

static void fill(char byte) { memset(buffer, byte, sizeof(buffer)); }

/* Bytes may need a moment from one end to the other: waits until `bytes` can be read. */
static void settle(int fd, int bytes) {
  for (int i = 0, there = 0; i < 1000 && there < bytes; i++) {
    poll(&(struct pollfd){fd, POLLIN, 0}, 1, 10);
    if (ioctl(fd, FIONREAD, &there) != 0) return;
    usleep(1000);
  }
}

/* A read that shows what it read. */
#define SHOW(call)                                                       \
  do {                                                                   \
    fill('.');                                                           \
    long got_ = TRY(call);                                               \
    if (got_ > 0) printf("  \"%.*s\"\n", got_ < 40 ? (int)got_ : 40, buffer); \
  } while (0)

static void pair_transfers(const char* name, int a, int b) {
  printf("== transfers: %s\n", name);
  struct iovec two[2] = {{"hello ", 6}, {"world", 5}};
  struct iovec in[2] = {{buffer, 4}, {buffer + 4, 200}};
  size_t size = room;
  TRY(write(a, "12345", 5));
  SHOW(read(b, buffer, size));
  TRY(writev(a, two, 2));
  fill(0);
  TRY(readv(b, in, 2));
  printf("%.11s\n", buffer);
  TRY(pwritev2(a, two, 2, -1, 0));
  TRY(preadv2(b, in, 2, -1, 0));
  TRY(pwritev2(a, two, 2, 0, 0));
  TRY(preadv2(b, in, 2, 5, 0));
  TRY(preadv2(b, in, 2, -1, RWF_NOWAIT));
  TRY(writev(a, two, -1));
  TRY(readv(b, in, 5000));
  TRY(read(b, buffer, 0));
  TRY(write(a, "abc", 0));
  TRY(send(a, "send", 4, 0));
  SHOW(recv(b, buffer, size, MSG_PEEK));
  SHOW(recv(b, buffer, size, 0));
  SHOW(recv(b, buffer, size, MSG_DONTWAIT));
  TRY(sendto(a, "sendto", 6, 0, NULL, 0));
  SHOW(recvfrom(b, buffer, size, 0, NULL, NULL));
  struct msghdr m = {.msg_iov = two, .msg_iovlen = 2};
  TRY(sendmsg(a, &m, 0));
  struct msghdr r = {.msg_iov = in, .msg_iovlen = 2};
  TRY(recvmsg(b, &r, 0));
  printf("flags %d controllen %zu\n", r.msg_flags, r.msg_controllen);
  struct sockaddr_storage anybody[2] = {{.ss_family = AF_INET}};
  long named = TRY(sendto(a, "name", 4, 0, (struct sockaddr*)anybody, sizeof anybody[0]));
  TRY(sendto(a, "name", 4, 0, (struct sockaddr*)anybody, sizeof anybody[0] + 1));
  TRY(sendto(a, "name", 4, 0, (struct sockaddr*)anybody, (socklen_t)-1));
  m.msg_name = r.msg_name = anybody;
  m.msg_namelen = r.msg_namelen = (socklen_t)-1;
  TRY(sendmsg(a, &m, 0));
  TRY(recvmsg(b, &r, MSG_DONTWAIT));
  m.msg_namelen = r.msg_namelen = sizeof anybody;
  named = (named > 0 ? named : 0) + TRY(sendmsg(a, &m, 0));
  settle(b, (int)named + (int)TRY(write(a, "flags", 5)));
  TRY(recvmsg(b, &r, MSG_CMSG_CLOEXEC));
  printf("flags %x name %u\n", r.msg_flags, r.msg_namelen);
  m.msg_name = r.msg_name = NULL;
  struct mmsghdr many[2] = {{{.msg_iov = two, .msg_iovlen = 1}, 0}, {{.msg_iov = two + 1, .msg_iovlen = 1}, 0}};
  TRY(sendmmsg(a, many, 2, 0));
  settle(b, 11);
  printf("lengths %u %u\n", many[0].msg_len, many[1].msg_len);
  struct mmsghdr got[1] = {{{.msg_iov = in, .msg_iovlen = 2}, 0}};
  TRY(recvmmsg(b, got, 1, 0, NULL));
  SHOW(recv(b, buffer, size, MSG_DONTWAIT));
  int file = open("/proc/self/exe", O_RDONLY);
  off_t at = 1;
  TRY(sendfile(a, file, &at, 3));
  TRY(sendfile64(a, file, NULL, 4));
  printf("offset %ld position %ld\n", (long)at, (long)lseek(file, 0, SEEK_CUR));
  at = -1;
  TRY(sendfile(a, file, &at, 3));
  TRY(sendfile(a, file, NULL, (size_t)-1));
  TRY(sendfile(a, file, NULL, 0));
  close(file);
  TRY(sendfile(a, file, NULL, 0));
  int pipe_ends[2], folder = open("/", O_RDONLY | O_DIRECTORY), own = open("/dev/null", O_WRONLY);
  pipe(pipe_ends);
  write(pipe_ends[1], "pipe", 4);
  TRY(sendfile(a, pipe_ends[0], NULL, 4));
  TRY(sendfile(a, folder, NULL, 4));
  TRY(sendfile(a, own, NULL, 4));
  TRY(sendfile(a, b, NULL, 4));
  close(folder), close(own);
  settle(b, 7);
  if (!skips("splices")) TRY(sendfile(pipe_ends[1], b, NULL, 4));
  close(pipe_ends[0]), close(pipe_ends[1]);
  TRY(recv(b, buffer, 7, 0) > 0);
  while (recv(b, buffer, size, MSG_DONTWAIT) > 0) {
  }
}

static void one_socket(const char* name, int fd) {
  printf("== options: %s\n", name);
  int value = 0;
  socklen_t length = sizeof(value);
  TRY(getsockopt(fd, SOL_SOCKET, SO_TYPE, &value, &length));
  printf("type %d length %u\n", value, length);
  TRY(getsockopt(fd, SOL_SOCKET, SO_ERROR, &value, &length));
  value = 1;
  TRY(setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &value, sizeof(value)));
  TRY(getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &value, &length));
  TRY(getsockopt(fd, SOL_SOCKET, 9999, &value, &length));
  TRY(ioctl(fd, FIONREAD, &value));
  value = 1;
  TRY(ioctl(fd, FIONBIO, &value));
  TRY((fcntl(fd, F_GETFL) & O_NONBLOCK) != 0);
  TRY(read(fd, buffer, room));
  value = 0;
  TRY(ioctl(fd, FIONBIO, &value));
  TRY(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK));
  TRY((fcntl(fd, F_GETFL) & O_NONBLOCK) != 0);
  TRY(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK));
  TRY(fcntl(fd, F_SETFD, FD_CLOEXEC));
  TRY(fcntl(fd, F_GETFD));
  struct stat st;
  TRY(fstat(fd, &st));
  printf("socket %d\n", S_ISSOCK(st.st_mode));
  TRY(lseek(fd, 0, SEEK_CUR));
}

static void waits(const char* name, int a, int b) {
  printf("== waits: %s\n", name);
  struct pollfd set[3] = {{b, POLLIN | POLLOUT, 0}, {-1, POLLIN, 0}, {a, POLLIN, 0}};
  TRY(poll(set, 3, 0));
  printf("revents %x %x %x\n", set[0].revents, set[1].revents, set[2].revents);
  TRY(write(a, "x", 1));
  settle(b, 1);
  TRY(poll(set, 3, -1));
  printf("revents %x %x %x\n", set[0].revents, set[1].revents, set[2].revents);
  struct timespec soon = {0, 1000000};
  TRY(ppoll(set, 3, &soon, NULL));
  struct timespec bad = {0, 2000000000};
  TRY(ppoll(set, 3, &bad, NULL));
  struct pollfd closed = {1000, POLLIN, 0};
  TRY(poll(&closed, 1, 0));
  printf("revents %x\n", closed.revents);
  fd_set r, w, x;
  FD_ZERO(&r);
  FD_ZERO(&w);
  FD_ZERO(&x);
  FD_SET(a, &r);
  FD_SET(b, &r);
  FD_SET(b, &w);
  FD_SET(b, &x);
  struct timeval limit = {2, 0};
  TRY(select((a > b ? a : b) + 1, &r, &w, &x, &limit));
  printf("sets %d %d %d %d, left %d\n", FD_ISSET(a, &r), FD_ISSET(b, &r), FD_ISSET(b, &w), FD_ISSET(b, &x),
         limit.tv_sec == 1 || limit.tv_sec == 2);
  FD_ZERO(&r);
  FD_SET(a, &r);
  limit.tv_sec = 0;
  limit.tv_usec = 3000;
  TRY(select(a + 1, &r, NULL, NULL, &limit));
  printf("set %d, left %ld.%06ld\n", FD_ISSET(a, &r), (long)limit.tv_sec, (long)limit.tv_usec);
  FD_SET(a, &r);
  TRY(pselect(a + 1, &r, NULL, NULL, &soon, NULL));
  printf("left %ld\n", soon.tv_nsec);
  FD_ZERO(&r);
  FD_SET(63, &r);
  FD_SET(a, &r);
  TRY(select(64, &r, NULL, NULL, &limit));
  TRY(select(-1, &r, NULL, NULL, &limit));
  limit.tv_sec = -1;
  TRY(select(a + 1, &r, NULL, NULL, &limit));
  SHOW(read(b, buffer, 1));
}

static void sets(const char* name, int a, int b) {
  printf("== epoll: %s\n", name);
  struct epoll_event event = {.events = EPOLLIN, .data.u64 = 0x123456789abcdefULL}, out[4];
  int set = epoll_create1(EPOLL_CLOEXEC), outer = epoll_create(1);
  TRY(set >= 0 && outer >= 0);
  TRY(fcntl(set, F_GETFD));
  TRY(epoll_ctl(set, EPOLL_CTL_ADD, b, &event));
  TRY(epoll_ctl(set, EPOLL_CTL_ADD, b, &event));
  TRY(epoll_ctl(set, EPOLL_CTL_MOD, a, &event));
  TRY(epoll_ctl(set, EPOLL_CTL_ADD, 1000, &event));
  TRY(epoll_ctl(b, EPOLL_CTL_ADD, a, &event));
  TRY(epoll_ctl(outer, EPOLL_CTL_ADD, set, &event));
  if (TRY(epoll_wait(set, out, 4, 0)) > 0) printf("event %x\n", out[0].events);
  TRY(write(a, "y", 1));
  TRY(epoll_wait(set, out, 4, 2000));
  printf("event %x %llx\n", out[0].events, (unsigned long long)out[0].data.u64);
  TRY(epoll_wait(outer, out, 4, 2000));
  struct pollfd p = {set, POLLIN, 0};
  TRY(poll(&p, 1, 1000));
  TRY(epoll_pwait(set, out, 4, 0, NULL));
  struct timespec soon = {0, 1000000};
  TRY(epoll_pwait2(set, out, 4, &soon, NULL));
  TRY(epoll_wait(set, out, 0, 0));
  TRY(epoll_wait(b, out, 1, 0));
  event.events = EPOLLIN | EPOLLONESHOT;
  TRY(epoll_ctl(set, EPOLL_CTL_MOD, b, &event));
  TRY(epoll_wait(set, out, 4, 0));
  TRY(epoll_wait(set, out, 4, 0));
  TRY(epoll_ctl(set, EPOLL_CTL_DEL, b, NULL));
  TRY(epoll_ctl(set, EPOLL_CTL_DEL, b, NULL));
  SHOW(read(set, buffer, 8));
  SHOW(read(b, buffer, 1));
  TRY(dup2(set, 40));
  TRY(close(set));
  TRY(epoll_wait(40, out, 1, 0));
  TRY(close(40));
  TRY(close(outer));
}

/* Not the lowest free number: that may be, for a moment, what a thread of the library has just opened. */
static void close_twice(int fd) {
  int high = fcntl(fd, F_DUPFD, 200);
  TRY(close(fd));
  TRY(close(high));
  TRY(close(high));
}

static void numbers(const char* name, int a, int b) {
  printf("== numbers: %s\n", name);
  int copy = dup(a);
  TRY(copy > 2);
  TRY(write(copy, "d", 1));
  SHOW(read(b, buffer, 1));
  TRY(fcntl(copy, F_SETFL, fcntl(copy, F_GETFL) | O_NONBLOCK));
  TRY((fcntl(a, F_GETFL) & O_NONBLOCK) != 0);
  TRY(fcntl(copy, F_SETFL, fcntl(copy, F_GETFL) & ~O_NONBLOCK));
  close_twice(copy);
  TRY(dup2(a, 50));
  TRY(dup2(b, 50));
  TRY(write(a, "e", 1));
  SHOW(read(50, buffer, 1));
  TRY(dup2(50, 50));
  TRY(dup2(1000, 50));
  TRY(write(50, "back", 4));
  SHOW(read(a, buffer, 4));
  TRY(dup3(a, 51, O_CLOEXEC));
  TRY(fcntl(51, F_GETFD));
  TRY(dup3(a, a, 0));
  TRY(dup3(a, 52, 7));
  TRY(fcntl(a, F_DUPFD, 60));
  TRY(fcntl(a, F_DUPFD_CLOEXEC, 61));
  TRY(fcntl(61, F_GETFD));
  TRY(write(61, "f", 1));
  SHOW(read(b, buffer, 1));
  int file = open("/dev/null", O_WRONLY);
  TRY(dup2(file, 61));
  TRY(write(61, "to null", 7));
  close(file);
  SHOW(recv(b, buffer, room, MSG_DONTWAIT));
  TRY(close_range(50, 61, CLOSE_RANGE_CLOEXEC));
  TRY(fcntl(60, F_GETFD));
  TRY(write(60, "g", 1));
  SHOW(read(b, buffer, 1));
  TRY(close_range(50, 60, 0));
  TRY(write(60, "h", 1));
  TRY(write(61, "still null", 10));
  TRY(close_range(61, 50, 0));
  closefrom(61);
  TRY(write(61, "gone", 4));
  TRY(write(a, "i", 1));
  SHOW(read(b, buffer, 1));
}

static void by_number(const char* name, int a, int b) {
  printf("== syscall(): %s\n", name);
  TRY(syscall(SYS_write, a, "raw", 3L));
  SHOW(syscall(SYS_read, b, buffer, sizeof(buffer)));
  TRY(syscall(SYS_sendto, a, "raw", 3L, 0L, NULL, 0L));
  SHOW(syscall(SYS_recvfrom, b, buffer, sizeof(buffer), 0L, NULL, NULL));
  struct pollfd p = {b, POLLOUT, 0};
  TRY(syscall(SYS_poll, &p, 1L, 0L));
  TRY((syscall(SYS_fcntl, a, F_GETFL, 0L) & O_ACCMODE) == O_RDWR);
  long copy = syscall(SYS_dup, a);
  TRY(syscall(SYS_write, copy, "x", 1L));
  TRY(syscall(SYS_close, copy));
  SHOW(read(b, buffer, 1));
  TRY(syscall(SYS_dup3, a, 70L, 0L));
  TRY(write(70, "y", 1));
  SHOW(read(b, buffer, 1));
  TRY(syscall(SYS_close, 70L));
  TRY(syscall(SYS_gettid) == syscall(SYS_getpid));
  TRY(syscall(9999L));
}

static void streams(const char* name, int a, int b) {
  printf("== streams: %s\n", name);
  FILE* out = fdopen(dup(a), "w");
  FILE* in = fdopen(dup(b), "r");
  TRY(out != NULL && in != NULL);
  TRY(fileno(out) > 2 && fileno(in) > 2);
  fprintf(out, "line %d\nmore\n", 1);
  TRY(fflush(out));
  TRY(fgets(buffer, (int)room, in) != NULL);
  printf("%s", buffer);
  TRY(fgets(buffer, (int)room, in) != NULL);
  printf("%s", buffer);
  int number = fileno(out);
  TRY(fclose(out));
  TRY(write(number, "x", 1));
  TRY(fclose(in));
  TRY(dprintf(a, "%s-%d", "dprintf", 7));
  SHOW(read(b, buffer, room));
}

static void ends(const char* name, int a, int b) {
  printf("== ends: %s\n", name);
  signal(SIGPIPE, SIG_IGN);
  TRY(shutdown(a, SHUT_WR));
  SHOW(read(b, buffer, room));
  TRY(write(a, "x", 1));
  TRY(send(a, "x", 1, MSG_NOSIGNAL));
  const struct iovec nothing = {buffer, 0}; /* a vector of nothing does not come as far as the socket */
  TRY(writev(a, &nothing, 1));
  TRY(writev(a, &nothing, 0));
  TRY(pwritev2(a, &nothing, 1, -1, 0));
  TRY(write(a, buffer, 0));
  TRY(send(a, buffer, 0, MSG_NOSIGNAL));
  TRY(shutdown(a, 99));
  struct sockaddr_storage where;
  socklen_t length = sizeof(where);
  TRY(getsockname(a, (struct sockaddr*)&where, &length));
  length = sizeof(where);
  TRY(getpeername(a, (struct sockaddr*)&where, &length));
  close_twice(a);
  TRY(close(b));
  SHOW(read(b, buffer, 1));
}

static void all(const char* name, int a, int b) {
  pair_transfers(name, a, b);
  one_socket(name, a);
  waits(name, a, b);
  sets(name, a, b);
  numbers(name, a, b);
  by_number(name, a, b);
  streams(name, a, b);
  ends(name, a, b);
}

static void internet(int domain, int nonblocking_accept) {
  struct sockaddr_storage where = {.ss_family = (sa_family_t)domain};
  socklen_t length = domain == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
  if (domain == AF_INET) ((struct sockaddr_in*)&where)->sin_addr.s_addr = own_address();
  if (domain == AF_INET6) ((struct sockaddr_in6*)&where)->sin6_addr = in6addr_loopback;
  int listener = socket(domain, SOCK_STREAM | SOCK_CLOEXEC, 0);
  TRY(listener > 2);
  if (bind(listener, (struct sockaddr*)&where, length) != 0) return; /* a machine without IPv6 */
  TRY(listen(listener, 5));
  TRY(getsockname(listener, (struct sockaddr*)&where, &length));
  int client = socket(domain, SOCK_STREAM, 0);
  TRY(connect(client, (struct sockaddr*)&where, length));
  int server = nonblocking_accept ? accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)
                                  : accept(listener, (struct sockaddr*)&where, &length);
  TRY(server > 2);
  TRY(fcntl(server, F_GETFD));
  TRY((fcntl(server, F_GETFL) & O_NONBLOCK) != 0);
  fcntl(server, F_SETFL, fcntl(server, F_GETFL) & ~O_NONBLOCK);
  printf("family %d port %d\n", where.ss_family == domain, ((struct sockaddr_in*)&where)->sin_port != 0);
  TRY(connect(client, (struct sockaddr*)&where, length));
  fcntl(listener, F_SETFL, O_NONBLOCK);
  TRY(accept(listener, NULL, NULL));
  TRY(accept4(listener, NULL, NULL, 12345));
  TRY(accept(client, NULL, NULL));
  TRY(close(listener));
  TRY(accept(listener, NULL, NULL));
  all(domain == AF_INET ? "inet" : "inet6", client, server);
}

static void datagrams(void) {
  printf("== datagrams\n");
  struct sockaddr_in where = {.sin_family = AF_INET, .sin_addr.s_addr = own_address()}, from;
  socklen_t length = sizeof(where), from_length = sizeof(from);
  int server = socket(AF_INET, SOCK_DGRAM, 0), client = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
  TRY(bind(server, (struct sockaddr*)&where, length));
  TRY(getsockname(server, (struct sockaddr*)&where, &length));
  TRY(sendto(client, "datagram", 8, 0, (struct sockaddr*)&where, length));
  size_t size = room;
  SHOW(recvfrom(server, buffer, size, 0, (struct sockaddr*)&from, &from_length));
  printf("length %u loopback %d\n", from_length, from.sin_addr.s_addr == own_address());
  SHOW(recv(client, buffer, size, 0));
  usleep(50000);
  TRY(sendto(server, "", 0, 0, (struct sockaddr*)&from, from_length));
  usleep(50000);
  SHOW(recv(client, buffer, size, 0));
  TRY(connect(client, (struct sockaddr*)&where, length));
  TRY(send(client, "truncated", 9, 0));
  SHOW(recv(server, buffer, 3, MSG_TRUNC));
  struct iovec v = {"many", 4};
  struct mmsghdr out[3] = {{{.msg_iov = &v, .msg_iovlen = 1}, 0}, {{.msg_iov = &v, .msg_iovlen = 1}, 0},
                           {{.msg_iov = &v, .msg_iovlen = 1}, 0}};
  TRY(sendmmsg(client, out, 3, 0));
  usleep(50000);
  struct iovec in = {buffer, 100};
  struct mmsghdr got[5];
  memset(got, 0, sizeof(got));
  for (int i = 0; i < 5; i++) got[i].msg_hdr = (struct msghdr){.msg_iov = &in, .msg_iovlen = 1};
  TRY(recvmmsg(server, got, 5, MSG_WAITFORONE, NULL));
  printf("lengths %u %u\n", got[0].msg_len, got[2].msg_len);
  TRY(close(server));
  TRY(close(client));
}

static void files(void) {
  printf("== files and pipes\n");
  int ends[2];
  TRY(pipe(ends));
  TRY(write(ends[1], "pipe", 4));
  TRY(splice(ends[0], NULL, ends[1], NULL, 2, 0));
  size_t size = room;
  SHOW(read(ends[0], buffer, size));
  SHOW(recv(ends[0], buffer, size, 0));
  TRY(send(ends[1], "x", 1, 0));
  TRY(getsockopt(ends[0], SOL_SOCKET, SO_TYPE, buffer, &(socklen_t){4}));
  TRY(listen(ends[0], 1));
  TRY(shutdown(ends[0], 0));
  TRY(close(ends[0]));
  TRY(close(ends[1]));
  int event = eventfd(3, EFD_NONBLOCK);
  SHOW(read(event, buffer, 8));
  SHOW(read(event, buffer, 8));
  TRY(close(event));
  char name[] = "/tmp/bypass-calls-XXXXXX";
  int file = mkstemp(name);
  unlink(name);
  struct iovec two[2] = {{"hello ", 6}, {"world", 5}};
  TRY(pwritev2(file, two, 2, 3, 0));
  TRY(lseek(file, 0, SEEK_CUR));
  TRY(preadv2(file, two, 0, 0, 0));
  TRY(sendfile(file, file, &(off_t){0}, 5));
  TRY(ioctl(file, FIONREAD, buffer));
  TRY(fcntl(file, F_SETLK, &(struct flock){.l_type = F_WRLCK}));
  TRY(fcntl64(file, F_GETFD));
  TRY(fcntl(file, 9999, 0));
  TRY(close(file));
  for (int fd = -2; fd < 0; fd++) {
    TRY(close(fd));
    SHOW(read(fd, buffer, 1));
    TRY(dup(fd));
    TRY(dup2(0, fd));
    TRY(fcntl(fd, F_GETFD));
  }
  TRY(socket(9999, SOCK_STREAM, 0));
  TRY(socket(AF_INET, 9999, 0));
  TRY(socket(AF_INET, SOCK_STREAM, IPPROTO_UDP));
  SHOW(read(3000000, buffer, 1));
  TRY(close(0x7fffffff));
}

static void passing(void) {
  printf("== SCM_RIGHTS\n");
  int ends[2], null = open("/dev/null", O_RDONLY);
  socketpair(AF_UNIX, SOCK_DGRAM, 0, ends);
  union {
    struct cmsghdr header;
    char room[CMSG_SPACE(sizeof(int))];
  } control;
  struct iovec v = {"x", 1};
  struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
  struct cmsghdr* c = CMSG_FIRSTHDR(&m);
  *c = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
  memcpy(CMSG_DATA(c), &null, sizeof(null));
  TRY(sendmsg(ends[0], &m, 0));
  struct iovec in = {buffer, sizeof(buffer)};
  struct msghdr r = {.msg_iov = &in, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
  TRY(recvmsg(ends[1], &r, 0));
  int got = -1;
  memcpy(&got, CMSG_DATA(CMSG_FIRSTHDR(&r)), sizeof(got));
  SHOW(read(got, buffer, 1));
  close(got), close(null), close(ends[0]), close(ends[1]);
}

int main(void) {
  int ends[2];
  setvbuf(stdout, NULL, _IOLBF, 0);
  files();
  passing();
  TRY(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
  all("unix", ends[0], ends[1]);
  internet(AF_INET, 0);
  internet(AF_INET, 1);
  internet(AF_INET6, 0);
  if (!skips("datagrams")) datagrams();
  return 0;
}
