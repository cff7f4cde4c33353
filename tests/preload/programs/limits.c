/* Bounds and leftovers of calls on Internet sockets: timeouts below zero, batches longer than the kernel takes, the
 * time that recvmmsg() leaves, a file into a datagram socket, what is behind an urgent byte. */
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

#include "say.h"

enum { kCalls = 60, kMessages = 1025 };

static char buffer[70000];

static void pair(int* a, int* b, int listener_option) {
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = own_address()};
  socklen_t n = sizeof at;
  int listener = socket(AF_INET, SOCK_STREAM, 0);
  if (bind(listener, (void*)&at, n) != 0 || listen(listener, 1) != 0) exit(1);
  const struct timeval never = {.tv_sec = -1};
  if (listener_option != 0) setsockopt(listener, SOL_SOCKET, listener_option, &never, sizeof never);
  getsockname(listener, (void*)&at, &n);
  *a = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(*a, (void*)&at, n) != 0) exit(1);
  *b = accept(listener, NULL, NULL);
  close(listener);
}

/* Until a connection within the host has moved, where it may. */
static void talk(int a, int b) {
  char byte = 'x';
  for (int i = 0; i < kCalls; i++) {
    int from = i % 2 ? a : b, to = i % 2 ? b : a;
    if (send(from, &byte, 1, 0) != 1) exit(1);
    struct pollfd p = {to, POLLIN, 0};
    if (poll(&p, 1, 5000) != 1 || recv(to, &byte, 1, 0) != 1) exit(1);
  }
}

static void show_timeout(int fd, int name) {
  struct timeval t = {7, 7};
  socklen_t n = sizeof t;
  TRY(getsockopt(fd, SOL_SOCKET, name, &t, &n));
  printf("  %ld.%06ld\n", (long)t.tv_sec, (long)t.tv_usec);
}

static void below_zero(const char* when, int early, int accepted, int inherited) {
  printf("== timeouts below zero: %s\n", when);
  int a, b;
  pair(&a, &b, inherited ? SO_RCVTIMEO : 0);
  int one = accepted ? b : a;
  const struct timeval never = {.tv_sec = -1};
  if (early) TRY(setsockopt(one, SOL_SOCKET, SO_RCVTIMEO, &never, sizeof never));
  if (early) TRY(setsockopt(one, SOL_SOCKET, SO_SNDTIMEO, &never, sizeof never));
  talk(a, b);
  if (!early && !inherited) TRY(setsockopt(one, SOL_SOCKET, SO_RCVTIMEO, &never, sizeof never));
  if (!early && !inherited) TRY(setsockopt(one, SOL_SOCKET, SO_SNDTIMEO, &never, sizeof never));
  show_timeout(one, SO_RCVTIMEO);
  show_timeout(one, SO_SNDTIMEO);
  alarm(20);
  TRY(recv(one, buffer, 9, 0));
  TRY(recv(one, buffer, 9, MSG_WAITALL));
  if (!inherited) {
    long r = 0, last = 0;
    while ((r = send(one, buffer, sizeof buffer, 0)) > 0) last = r;
    say("a full connection", r);
    printf("%d\n", last > 0);
    while (recv(one == a ? b : a, buffer, sizeof buffer, MSG_DONTWAIT) > 0) {
    }
  }
  const struct timeval some = {.tv_sec = 0, .tv_usec = 40000};
  TRY(setsockopt(one, SOL_SOCKET, SO_RCVTIMEO, &some, sizeof some));
  show_timeout(one, SO_RCVTIMEO);
  TRY(recv(one, buffer, 9, 0));
  alarm(0);
  close(a), close(b);
}

static void batches(void) {
  printf("== batches\n");
  static struct mmsghdr many[kMessages];
  struct iovec part = {buffer, 1};
  for (int i = 0; i < kMessages; i++) many[i].msg_hdr = (struct msghdr){.msg_iov = &part, .msg_iovlen = 1};
  int a, b;
  pair(&a, &b, 0);
  talk(a, b);
  TRY(sendmmsg(a, many, kMessages, 0));
  for (int i = 0, there = 0; i < 1000 && there < 1024; i++) {
    poll(&(struct pollfd){b, POLLIN, 0}, 1, 10);
    if (ioctl(b, FIONREAD, &there) != 0) break;
  }
  struct timespec left = {50, 0};
  TRY(recvmmsg(b, many, 1000, MSG_DONTWAIT, &left));
  printf("%d %d\n", left.tv_sec<50, left.tv_sec> 20);
  left = (struct timespec){0, 0};
  TRY(recvmmsg(b, many, 9, MSG_DONTWAIT, &left));
  printf("%ld %ld\n", (long)left.tv_sec, left.tv_nsec);
  TRY(recvmmsg(b, many, kMessages, MSG_DONTWAIT, NULL));
  left = (struct timespec){50, 0};
  TRY(recvmmsg(b, many, 9, MSG_DONTWAIT, &left));
  TRY(recvmmsg(b, many, 0, MSG_DONTWAIT, &left));
  printf("%ld %ld\n", (long)left.tv_sec, left.tv_nsec);
  left.tv_nsec = -1;
  TRY(recvmmsg(b, many, 9, MSG_DONTWAIT, &left));
  close(a), close(b);
}

static void file_as_datagram(void) {
  printf("== a file as a datagram\n");
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = own_address()};
  socklen_t n = sizeof at;
  int in = socket(AF_INET, SOCK_DGRAM, 0), out = socket(AF_INET, SOCK_DGRAM, 0);
  if (bind(in, (void*)&at, n) != 0) exit(1);
  getsockname(in, (void*)&at, &n);
  const struct timeval some = {.tv_sec = 5};
  setsockopt(in, SOL_SOCKET, SO_RCVTIMEO, &some, sizeof some);
  char name[] = "/tmp/bypass-limits-XXXXXX";
  int file = mkstemp(name);
  unlink(name);
  memset(buffer, 'f', sizeof buffer);
  if (write(file, buffer, 5000) != 5000) exit(1);
  off_t at_offset = 100;
  TRY(sendfile(out, file, &at_offset, 100)); /* no peer */
  TRY(connect(out, (void*)&at, n));
  TRY(sendfile(out, file, &at_offset, 100));
  printf("%ld\n", (long)at_offset);
  TRY(recv(in, buffer, sizeof buffer, 0));
  lseek(file, 4000, SEEK_SET);
  TRY(sendfile(out, file, NULL, 4000));
  printf("%ld\n", (long)lseek(file, 0, SEEK_CUR));
  TRY(recv(in, buffer, sizeof buffer, 0));
  TRY(sendfile(out, file, NULL, 100));
  TRY(sendfile(out, file, NULL, 0));
  TRY(ftruncate(file, 70000));
  at_offset = 0;
  TRY(sendfile(out, file, &at_offset, 70000));
  printf("%ld\n", (long)at_offset);
  TRY(recv(in, buffer, sizeof buffer, MSG_DONTWAIT));
  at_offset = -1;
  TRY(sendfile(out, file, &at_offset, 1));
  TRY(sendfile(out, in, NULL, 1));
  close(file), close(in), close(out);
}

static void behind_an_urgent_byte(int inline_) {
  printf("== urgent, inline %d\n", inline_);
  for (int i = 0; i < 20; i++) {
    int a, b;
    pair(&a, &b, 0);
    talk(a, b);
    if (setsockopt(b, SOL_SOCKET, SO_OOBINLINE, &inline_, sizeof inline_) != 0) exit(1);
    send(a, "hello", 5, MSG_OOB);
    poll(&(struct pollfd){b, POLLPRI, 0}, 1, 5000);
    long before = recv(b, buffer, 10, 0);
    long urgent = recv(b, buffer, 10, MSG_OOB);
    send(a, "after", 5, 0);
    const int wanted = inline_ ? 6 : 5;
    for (int k = 0, there = 0; k < 1000 && there < wanted; k++) {
      if (poll(&(struct pollfd){b, POLLIN, 0}, 1, 5000) != 1) break;
      there = (int)recv(b, buffer, 10, MSG_PEEK | MSG_TRUNC);
    }
    printf("%ld %ld %ld\n", before, urgent, (long)recv(b, buffer, 10, 0));
    close(a), close(b);
  }
}

/* As old servers do it that ask for all the numbers which the limit allows: the kernel looks at as many as it has. */
static void all_numbers(int count) {
  struct {
    fd_set set;
    char behind[4096];
  } asked;
  int a, b, changed = 0;
  pair(&a, &b, 0);
  memset(&asked, 0xff, sizeof asked);
  FD_ZERO(&asked.set);
  FD_SET(b, &asked.set);
  send(a, "x", 1, 0);
  TRY(select(count, &asked.set, NULL, NULL, &(struct timeval){5, 0}));
  printf("it is the one: %d\n", FD_ISSET(b, &asked.set) != 0);
  FD_SET(b, &asked.set);
  TRY(pselect(count, NULL, &asked.set, NULL, &(struct timespec){5, 0}, NULL));
  const int plain = open("/dev/null", O_RDONLY);
  FD_CLR(b, &asked.set);
  FD_SET(plain, &asked.set);
  TRY(select(count, &asked.set, NULL, NULL, &(struct timeval){5, 0}));
  for (size_t i = 0; i < sizeof asked.behind; i++) changed += asked.behind[i] != (char)0xff;
  printf("changed behind the set: %d\n", changed);
  close(a), close(b), close(plain);
}

int main(void) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  printf("== all numbers\n");
  all_numbers(getdtablesize());
  all_numbers(__INT_MAX__);
  below_zero("connected, early", 1, 0, 0);
  below_zero("connected, late", 0, 0, 0);
  below_zero("accepted, early", 1, 1, 0);
  below_zero("accepted, late", 0, 1, 0);
  batches();
  if (!skips("datagrams")) file_as_datagram();
  if (!skips("urgent")) behind_an_urgent_byte(0);
  if (!skips("urgent")) behind_an_urgent_byte(1);
  below_zero("of the listener", 0, 1, 1);
  return 0;
}
