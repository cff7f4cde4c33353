// In front of a program: each TCP connection that it accepts from itself carries a few bytes both ways before the
// program sees it. Under the library, with BYPASS_LOCAL_AFTER=1, it lies in shared memory from then on; tests that make
// two calls on a connection would otherwise only meet the kernel's. On the kernel the same bytes are carried, so that
// both are alike.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

static const int kRounds = 4, kHighest = 1024;

static int same(const struct sockaddr_storage* a, socklen_t a_length, const struct sockaddr_storage* b,
                socklen_t b_length) {
  return a_length == b_length && memcmp(a, b, a_length) == 0;
}

// The program's descriptor of the other end, or -1.
static int other_end(int fd) {
  struct sockaddr_storage own, peer, name;
  socklen_t own_length = sizeof own, peer_length = sizeof peer;
  if (getsockname(fd, (struct sockaddr*)&own, &own_length) != 0 ||
      getpeername(fd, (struct sockaddr*)&peer, &peer_length) != 0)
    return -1;
  if (own.ss_family != AF_INET && own.ss_family != AF_INET6) return -1;
  for (int other = 0; other < kHighest; other++) {
    socklen_t length = sizeof name;
    if (getsockname(other, (struct sockaddr*)&name, &length) != 0 || !same(&name, length, &peer, peer_length)) continue;
    length = sizeof name;
    if (getpeername(other, (struct sockaddr*)&name, &length) == 0 && same(&name, length, &own, own_length))
      return other;
  }
  return -1;
}

static int carry(int from, int to) {
  char byte = 'b';
  struct pollfd ready = {.fd = to, .events = POLLIN};
  return send(from, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL) == 1 && poll(&ready, 1, 1000) == 1 &&
         recv(to, &byte, 1, MSG_DONTWAIT) == 1;
}

static int moved(int fd) {
  if (fd < 0) return fd;
  int before = errno, other = other_end(fd);
  for (int round = 0; other >= 0 && round < kRounds; round++)
    if (!carry(fd, other) || !carry(other, fd)) break;
  errno = before;
  return fd;
}

int accept(int fd, struct sockaddr* address, socklen_t* length) {
  int (*real)(int, struct sockaddr*, socklen_t*) =
      (int (*)(int, struct sockaddr*, socklen_t*))dlsym(RTLD_NEXT, "accept");
  return moved(real(fd, address, length));
}

int accept4(int fd, struct sockaddr* address, socklen_t* length, int flags) {
  int (*real)(int, struct sockaddr*, socklen_t*, int) =
      (int (*)(int, struct sockaddr*, socklen_t*, int))dlsym(RTLD_NEXT, "accept4");
  return moved(real(fd, address, length, flags));
}
