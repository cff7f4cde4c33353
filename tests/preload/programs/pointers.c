/* Pointers to memory that is not there, not to be written to, or half there: the kernel's answer is EFAULT, or what
 * came before the fault. Each call on Internet sockets of its own process, some with a handler of SIGSEGV of their own.
 */
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "say.h"

enum { kPage = 4096, kCalls = 60 };

static int s, c, a, l, u, v, ep;
static struct sockaddr_in me, unbound;
static char buffer[3 * kPage];

/* Until a connection within the host has moved, where it may. */
static void talk(int one, int other) {
  char byte = 'x';
  for (int i = 0; i < kCalls; i++) {
    int from = i % 2 ? one : other, to = i % 2 ? other : one;
    if (send(from, &byte, 1, 0) != 1) _exit(3);
    struct pollfd p = {to, POLLIN, 0};
    if (poll(&p, 1, 5000) != 1 || recv(to, &byte, 1, 0) != 1) _exit(3);
  }
}

static void prepare(void) {
  socklen_t n = sizeof me;
  me = unbound = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = own_address()};
  l = socket(AF_INET, SOCK_STREAM, 0);
  if (bind(l, (void*)&me, n) != 0 || listen(l, 5) != 0) _exit(3);
  getsockname(l, (void*)&me, &n);
  c = socket(AF_INET, SOCK_STREAM, 0), s = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(c, (void*)&me, n) != 0) _exit(3);
  a = accept(l, NULL, NULL);
  talk(c, a);
  struct sockaddr_in at = unbound;
  u = socket(AF_INET, SOCK_DGRAM, 0), v = socket(AF_INET, SOCK_DGRAM, 0);
  if (bind(v, (void*)&at, n) != 0) _exit(3);
  getsockname(v, (void*)&at, &n);
  connect(u, (void*)&at, n);
  ep = epoll_create1(0);
  struct epoll_event out = {.events = EPOLLOUT};
  epoll_ctl(ep, EPOLL_CTL_ADD, c, &out);
}

/* Bytes for `fd`, which are there. */
static void feed(int from, int fd, const char* text) {
  if (send(from, text, strlen(text), 0) < 0) _exit(3);
  poll(&(struct pollfd){fd, POLLIN, 0}, 1, 5000);
}

static void* far_bad(void) {
  return (void*)-1L;
} /* the kernel's half */
static void* not_canonical(void) {
  return (void*)(1L << 60);
}
static void* null(void) {
  return NULL;
}
static void* unmapped(void) {
  void* at = mmap(NULL, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  munmap(at, kPage);
  return at;
}
static void* no_access(void) {
  return mmap(NULL, 4 * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}
static void* read_only(void) {
  return mmap(NULL, 4 * kPage, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}
static void* beyond_file(void) { /* SIGBUS */
  FILE* file = tmpfile();        /* of no length */
  return mmap(NULL, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
}
/* A page, and nothing behind it. */
static char* page(void) {
  char* at = mmap(NULL, 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  munmap(at + kPage, kPage);
  return at;
}

static int open_file(void) {
  return fileno(fopen("/proc/self/exe", "r"));
}

/* One call, in a child: what it did, or the signal that ended it. */
static void one(const char* name, const char* where, void* (*bad)(void), void (*call)(const char*, void*)) {
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    prepare();
    alarm(10);
    call(name, bad());
    fflush(stdout);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (status != 0) printf("%s: status %x (%s)\n", name, (unsigned)status, where);
}

#define CALL(name, expression)                                     \
  static void name(const char* label, void* bad) {                 \
    socklen_t n = sizeof(struct sockaddr_storage);                 \
    (void)n, (void)bad;                                            \
    errno = 77;                                                    \
    long result = (long)(expression);                              \
    printf("%s", result >= 0 && errno != 77 ? "errno lost " : ""); \
    say(label, result);                                            \
  }
static const struct timespec kNow = {0, 0};
static struct iovec part(void* at, size_t bytes) {
  return (struct iovec){at, bytes};
}
#define VECTOR(at, bytes) ((struct iovec[]){part(at, bytes)})
#define HEADER(...) (&(struct msghdr){__VA_ARGS__})
#define MANY(...) (&(struct mmsghdr){.msg_hdr = {__VA_ARGS__}})

CALL(connects, connect(s, bad, sizeof me))
CALL(connects_too_long, connect(s, bad, 200))
CALL(binds, bind(s, bad, sizeof me))
CALL(own_name, getsockname(c, bad, &n))
CALL(own_name_length, getsockname(c, (void*)buffer, bad))
CALL(peers_name, getpeername(c, bad, &n))
CALL(peers_name_length, getpeername(c, (void*)buffer, bad))
CALL(no_peers_name, getpeername(s, bad, bad))
CALL(accepts, (connect(s, (void*)&me, sizeof me), accept(l, bad, &n)))
CALL(accepts_length, (connect(s, (void*)&me, sizeof me), accept4(l, (void*)buffer, bad, SOCK_CLOEXEC)))
CALL(gets_option, getsockopt(c, SOL_SOCKET, SO_TYPE, bad, &(socklen_t){4}))
CALL(gets_option_length, getsockopt(c, SOL_SOCKET, SO_TYPE, buffer, bad))
CALL(gets_tcp_option, getsockopt(c, IPPROTO_TCP, TCP_NODELAY, bad, &(socklen_t){4}))
CALL(gets_unknown_option, getsockopt(c, SOL_SOCKET, 9999, bad, &(socklen_t){4}))
CALL(sets_option, setsockopt(c, SOL_SOCKET, SO_KEEPALIVE, bad, 4))
CALL(sets_tcp_option, setsockopt(c, IPPROTO_TCP, TCP_NODELAY, bad, 4))
CALL(sets_short_option, setsockopt(c, IPPROTO_TCP, TCP_NODELAY, bad, 2))
CALL(sets_linger, setsockopt(c, SOL_SOCKET, SO_LINGER, bad, 8))
CALL(sends, send(c, bad, 10, 0))
CALL(writes, write(c, bad, 10))
CALL(writes_long, write(c, bad, 100000))
CALL(sends_to, sendto(c, bad, 10, 0, NULL, 0))
CALL(sends_to_name, sendto(u, "hi", 2, 0, bad, sizeof me))
CALL(sends_datagram, send(u, bad, 2, 0))
CALL(sends_nothing, send(c, bad, 0, 0))
CALL(receives, (feed(a, c, "hi"), recv(c, bad, 10, 0)))
CALL(receives_peeking, (feed(a, c, "hi"), recv(c, bad, 10, MSG_PEEK)))
CALL(receives_all, (feed(a, c, "0123456789"), recv(c, bad, 10, MSG_WAITALL)))
CALL(reads, (feed(a, c, "hi"), read(c, bad, 10)))
CALL(receives_and_again, (feed(a, c, "hi"), recv(c, bad, 10, 0), recv(c, buffer, 10, MSG_DONTWAIT)))
CALL(receives_nothing_there, recv(c, bad, 10, MSG_DONTWAIT))
CALL(receives_name, (feed(a, c, "hi"), recvfrom(c, buffer, 10, 0, bad, &n)))
CALL(receives_name_length, (feed(a, c, "hi"), recvfrom(c, buffer, 10, 0, (void*)buffer, bad)))
CALL(receives_datagram, (feed(u, v, "hi"), recv(v, bad, 10, 0)))
CALL(receives_datagram_and_again, (feed(u, v, "hi"), recv(v, bad, 10, 0), recv(v, buffer, 10, MSG_DONTWAIT)))
CALL(receives_datagram_name, (feed(u, v, "hi"), recvfrom(v, buffer, 10, 0, bad, &n)))
CALL(sends_message, sendmsg(c, bad, 0))
CALL(sends_message_vector, sendmsg(c, HEADER(.msg_iov = bad, .msg_iovlen = 1), 0))
CALL(sends_message_bytes, sendmsg(c, HEADER(.msg_iov = VECTOR(bad, 10), .msg_iovlen = 1), 0))
CALL(sends_message_name,
     sendmsg(u, HEADER(.msg_iov = VECTOR(buffer, 1), .msg_iovlen = 1, .msg_name = bad, .msg_namelen = 16), 0))
CALL(sends_message_control,
     sendmsg(u, HEADER(.msg_iov = VECTOR(buffer, 1), .msg_iovlen = 1, .msg_control = bad, .msg_controllen = 64), 0))
CALL(receives_message, recvmsg(c, bad, MSG_DONTWAIT))
CALL(receives_message_vector, recvmsg(c, HEADER(.msg_iov = bad, .msg_iovlen = 1), MSG_DONTWAIT))
CALL(receives_message_bytes, (feed(a, c, "hi"), recvmsg(c, HEADER(.msg_iov = VECTOR(bad, 9), .msg_iovlen = 1), 0)))
CALL(receives_message_name,
     (feed(u, v, "hi"),
      recvmsg(v, HEADER(.msg_iov = VECTOR(buffer, 9), .msg_iovlen = 1, .msg_name = bad, .msg_namelen = 16), 0)))
CALL(sends_many, sendmmsg(c, bad, 1, 0))
CALL(sends_many_vector, sendmmsg(c, MANY(.msg_iov = bad, .msg_iovlen = 1), 1, 0))
CALL(receives_many, recvmmsg(c, bad, 1, MSG_DONTWAIT, NULL))
CALL(receives_many_vector, recvmmsg(c, MANY(.msg_iov = bad, .msg_iovlen = 1), 1, MSG_DONTWAIT, NULL))
CALL(receives_many_time, recvmmsg(c, MANY(.msg_iov = VECTOR(buffer, 1), .msg_iovlen = 1), 1, MSG_DONTWAIT, bad))
CALL(writes_vector, writev(c, bad, 1))
CALL(writes_vector_bytes, writev(c, VECTOR(bad, 10), 1))
CALL(reads_vector, readv(c, bad, 1))
CALL(reads_vector_bytes, (feed(a, c, "hi"), readv(c, VECTOR(bad, 10), 1)))
CALL(reads_vector_with_flags, preadv2(c, bad, 1, -1, 0))
CALL(polls, poll(bad, 1, 0))
CALL(polls_with_time, ppoll(&(struct pollfd){c, POLLOUT, 0}, 1, bad, NULL))
CALL(polls_with_mask, ppoll(&(struct pollfd){c, POLLOUT, 0}, 1, &kNow, bad))
CALL(selects, select(c + 1, bad, NULL, NULL, &(struct timeval){0, 0}))
CALL(selects_with_time, select(c + 1, &(fd_set){{-1L}}, NULL, NULL, bad))
CALL(selects_with_mask, pselect(c + 1, NULL, &(fd_set){{1L << c}}, NULL, &kNow, bad))
CALL(waits, epoll_wait(ep, bad, 1, 0))
CALL(waits_with_mask, epoll_pwait(ep, (void*)buffer, 1, 0, bad))
CALL(adds, epoll_ctl(ep, EPOLL_CTL_ADD, a, bad))
CALL(changes, epoll_ctl(ep, EPOLL_CTL_MOD, c, bad))
CALL(removes, epoll_ctl(ep, EPOLL_CTL_DEL, c, bad))
CALL(counts, ioctl(c, FIONREAD, bad))
CALL(counts_datagram, ioctl(v, FIONREAD, bad))
CALL(counts_unsent, ioctl(c, TIOCOUTQ, bad))
CALL(does_not_block, ioctl(c, FIONBIO, bad))
CALL(sends_file, sendfile(c, open_file(), bad, 3))

static const struct {
  const char* name;
  void (*call)(const char*, void*);
  int out, maybe_null; /* the call writes there; NULL is a pointer to take */
} calls[] = {
#define ROW(name, ...) \
  { #name, name, __VA_ARGS__ }
    ROW(connects, 0, 0),
    ROW(connects_too_long, 0, 0),
    ROW(binds, 0, 0),
    ROW(own_name, 1, 0),
    ROW(own_name_length, 1, 0),
    ROW(peers_name, 1, 0),
    ROW(peers_name_length, 1, 0),
    ROW(no_peers_name, 1, 0),
    ROW(accepts, 1, 1),
    ROW(accepts_length, 1, 0),
    ROW(gets_option, 1, 0),
    ROW(gets_option_length, 1, 0),
    ROW(gets_tcp_option, 1, 0),
    ROW(gets_unknown_option, 1, 0),
    ROW(sets_option, 0, 0),
    ROW(sets_tcp_option, 0, 0),
    ROW(sets_short_option, 0, 0),
    ROW(sets_linger, 0, 0),
    ROW(sends, 0, 0),
    ROW(writes, 0, 0),
    ROW(writes_long, 0, 0),
    ROW(sends_to, 0, 0),
    ROW(sends_to_name, 0, 1),
    ROW(sends_datagram, 0, 0),
    ROW(sends_nothing, 0, 1),
    ROW(receives, 1, 0),
    ROW(receives_peeking, 1, 0),
    ROW(receives_all, 1, 0),
    ROW(reads, 1, 0),
    ROW(receives_and_again, 1, 0),
    ROW(receives_nothing_there, 1, 0),
    ROW(receives_name, 1, 1),
    ROW(receives_name_length, 1, 0),
    ROW(receives_datagram, 1, 0),
    ROW(receives_datagram_and_again, 1, 0),
    ROW(receives_datagram_name, 1, 1),
    ROW(sends_message, 0, 0),
    ROW(sends_message_vector, 0, 0),
    ROW(sends_message_bytes, 0, 0),
    ROW(sends_message_name, 0, 1),
    ROW(sends_message_control, 0, 1),
    ROW(receives_message, 1, 0),
    ROW(receives_message_vector, 1, 0),
    ROW(receives_message_bytes, 1, 0),
    ROW(receives_message_name, 1, 1),
    ROW(sends_many, 0, 0),
    ROW(sends_many_vector, 0, 0),
    ROW(receives_many, 1, 0),
    ROW(receives_many_vector, 1, 0),
    ROW(receives_many_time, 1, 1),
    ROW(writes_vector, 0, 0),
    ROW(writes_vector_bytes, 0, 0),
    ROW(reads_vector, 1, 0),
    ROW(reads_vector_bytes, 1, 0),
    ROW(reads_vector_with_flags, 1, 0),
    ROW(polls, 1, 0),
    ROW(polls_with_time, 0, 1),
    ROW(polls_with_mask, 0, 1),
    ROW(selects, 1, 1),
    ROW(selects_with_time, 0, 1),
    ROW(selects_with_mask, 0, 1),
    ROW(waits, 1, 0),
    ROW(waits_with_mask, 0, 1),
    ROW(adds, 0, 0),
    ROW(changes, 0, 0),
    ROW(removes, 0, 1),
    ROW(counts, 1, 0),
    ROW(counts_datagram, 1, 0),
    ROW(counts_unsent, 1, 0),
    ROW(does_not_block, 0, 0),
    ROW(sends_file, 1, 1)};

static void all_calls(const char* where, void* (*bad)(void), int is_null, int only_out) {
  printf("== %s\n", where);
  for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
    if ((is_null && calls[i].maybe_null) || (only_out && !calls[i].out)) continue;
    if (skips("datagrams") && strstr(calls[i].name, "datagram") != NULL) continue;
    one(calls[i].name, where, bad, calls[i].call);
  }
}

static void main_calls(const char* where, void* (*bad)(void)) {
  printf("== %s\n", where);
  one("receives", where, bad, receives);
  one("sends", where, bad, sends);
  one("writes_long", where, bad, writes_long);
  one("polls", where, bad, polls);
}

/* Half of what the call is given is there. */
static void halves(const char* name, void* at) {
  char* edge = (char*)at + kPage - 10;
  (void)name;
  TRY(send(c, edge, 20, 0));
  feed(a, c, "01234567890123456789");
  TRY(recv(c, edge, 20, 0));
  TRY(recv(c, edge, 10, 0));
  TRY(recv(c, buffer, 20, MSG_DONTWAIT));
  struct iovec two[2] = {part(edge, 10), part(edge + 10, 10)};
  feed(a, c, "01234567890123456789");
  TRY(readv(c, two, 2));
  TRY(readv(c, two, 1));
  TRY(writev(c, two, 2));
  TRY(recv(c, buffer, 20, MSG_DONTWAIT));
  TRY(recv(a, buffer, 20, MSG_DONTWAIT));
  struct pollfd* set = (void*)((char*)at + kPage - sizeof(struct pollfd));
  *set = (struct pollfd){c, POLLOUT, 0};
  TRY(poll(set, 1, 0));
  TRY(poll(set, 2, 0));
  struct epoll_event* events = (void*)((char*)at + kPage - sizeof(struct epoll_event));
  TRY(epoll_wait(ep, events, 9, 0));
  struct iovec* vector = (void*)((char*)at + kPage - sizeof(struct iovec));
  *vector = part(buffer, 3);
  TRY(writev(c, vector, 1));
  TRY(writev(c, vector, 2));
}

static void long_halves(const char* name, void* at) {
  (void)name;
  TRY(write(c, (char*)at + 100, 2 * kPage) > 0 ? -1 : errno);
  memset(buffer, 'l', sizeof buffer);
  TRY(send(a, buffer, sizeof buffer, 0));
  poll(&(struct pollfd){c, POLLIN, 0}, 1, 5000);
  TRY(recv(c, (char*)at + 100, 2 * kPage, 0));
  long all = 0, got;
  while (all < 3 * kPage && (got = recv(c, buffer, sizeof buffer, 0)) > 0) all += got;
  printf("%ld\n", all);
}

static void beyond_the_limit(const char* name, void* at) {
  (void)name;
  struct pollfd* set = (void*)((char*)at + kPage - sizeof(struct pollfd));
  *set = (struct pollfd){c, POLLOUT, 0};
  struct rlimit limit;
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = 100;
  setrlimit(RLIMIT_NOFILE, &limit);
  TRY(poll(set, 100, 0));
  TRY(poll(set, 101, 0));
  TRY(poll(set, 5000000, 0));
  TRY(poll(set, (nfds_t)-1, 0));
  TRY(ppoll(set, 5000000, &kNow, NULL));
  static struct pollfd many[101];
  for (int i = 0; i < 101; i++) many[i] = (struct pollfd){c, POLLOUT, 0};
  TRY(poll(many, 100, 0));
  TRY(poll(many, 101, 0));
  fd_set one_set;
  FD_ZERO(&one_set);
  FD_SET(c, &one_set);
  TRY(select(-1, NULL, &one_set, NULL, &(struct timeval){0, 0}));
  TRY(epoll_wait(ep, (void*)buffer, 0, 0));
  TRY(epoll_wait(ep, (void*)buffer, INT_MAX, 0));
}

/* The program's own handler has the program's own faults, and no others. */
static volatile int faults;
static sigjmp_buf back;
static void* volatile nowhere;
static void on_fault(int signal, siginfo_t* info, void* context) {
  (void)signal, (void)context;
  faults += info->si_addr == nowhere ? 1 : 100;
  siglongjmp(back, 1);
}

static void own_handler(const char* name, void* bad) {
  (void)name;
  nowhere = bad;
  stack_t stack = {.ss_sp = malloc(65536), .ss_size = 65536};
  sigaltstack(&stack, NULL);
  struct sigaction mine = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK}, seen;
  sigaction(SIGSEGV, &mine, NULL);
  sigaction(SIGSEGV, NULL, &seen);
  printf("%d %x\n", seen.sa_sigaction == on_fault, (unsigned)seen.sa_flags);
  for (int i = 0; i < 3; i++) {
    feed(a, c, "hi");
    TRY(recv(c, bad, 10, 0));
    TRY(recv(c, buffer, 10, 0));
    if (sigsetjmp(back, 1) == 0) *(volatile char*)nowhere = 1;
    printf("faults %d\n", faults);
  }
  TRY(send(c, bad, 10, 0));
  signal(SIGSEGV, SIG_DFL);
  sigaction(SIGSEGV, NULL, &seen);
  printf("%d %x\n", seen.sa_handler == SIG_DFL, (unsigned)seen.sa_flags);
  TRY(send(c, bad, 10, 0));
}

static void dies(const char* name, void* bad) {
  (void)name;
  TRY(send(c, bad, 10, 0));
  fflush(stdout);
  *(volatile char*)bad = 1;
}

static void* a_page(void) {
  return page();
}

int main(void) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
  prepare(); /* what is set up once is the children's, too */
  all_calls("the kernel's half", far_bad, 0, 0);
  all_calls("no access", no_access, 0, 0);
  all_calls("read only", read_only, 0, 1);
  all_calls("null", null, 1, 0);
  main_calls("unmapped", unmapped);
  main_calls("not canonical", not_canonical);
  main_calls("beyond a file's end", beyond_file);
  one("halves", "halves", a_page, halves);
  one("long halves", "halves", a_page, long_halves);
  one("beyond the limit", "limits", a_page, beyond_the_limit);
  one("own handler", "handler", no_access, own_handler);
  one("dies", "default", no_access, dies);
  return 0;
}
