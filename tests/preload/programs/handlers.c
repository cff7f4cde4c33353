/* Signal handlers that make the calls of signal-safety(7) while the interrupted thread is inside malloc, fork, the
 * dynamic linker, or a call that sets the library up. An allocation would wait for ever there: this program's says so,
 * and ends it. Each case is a process of its own. */
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "say.h"

extern void* __libc_malloc(size_t);
extern void __libc_free(void*);
extern void* __libc_calloc(size_t, size_t);
extern void* __libc_realloc(void*, size_t);

/* The allocator's lock, which no thread may take twice. */
static pid_t main_thread;
static atomic_int held;
static int interrupt_allocation; /* the n-th allocation of the main thread, 0: none */
static atomic_int begun;

static void take_lock(void) {
  if (atomic_load(&held) == 0) return;
  if (gettid() == main_thread) {
    static const char text[] = "allocates on top of malloc\n";
    (void)!write(STDOUT_FILENO, text, sizeof text - 1);
    _exit(3);
  }
  while (atomic_load(&held) != 0) usleep(1000); /* another thread waits, as for any lock */
}

/* As an allocator that looks around when it begins. */
static void begin(void) {
  if (atomic_exchange(&begun, 1) != 0) return;
  main_thread = gettid();
  atomic_store(&held, 1);
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  close(fd);
  atomic_store(&held, 0);
}

static void be_interrupted(void) {
  if (interrupt_allocation == 0 || gettid() != main_thread || --interrupt_allocation != 0) return;
  atomic_store(&held, 1);
  raise(SIGUSR1);
  atomic_store(&held, 0);
}

static void enter(void) {
  begin();
  take_lock();
  be_interrupted();
}

void* malloc(size_t size) {
  enter();
  return __libc_malloc(size);
}
void free(void* block) {
  if (block != NULL) take_lock();
  __libc_free(block);
}
void* calloc(size_t count, size_t size) {
  enter();
  return __libc_calloc(count, size);
}
void* realloc(void* block, size_t size) {
  enter();
  return __libc_realloc(block, size);
}

/* What the handler saw: printed when it is over, for stdio is not for handlers. */
enum { kMost = 128 };
static struct {
  const char* what;
  long result;
} seen[kMost];
static int seen_count;
static int forks_in_handler, exits_in_handler;
static int only_handlers, handlers; /* what else is called is not noted; how many handlers run */

static long note(const char* what, long result) {
  if (seen_count < kMost && (handlers > 0 || !only_handlers)) {
    seen[seen_count].what = what;
    seen[seen_count++].result = result < 0 ? -errno : result;
  }
  return result;
}
#define NOTE(call) note(#call, (long)(call))

static struct sockaddr_in any_port(void) {
  return (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = own_address()};
}

static void talk(int one, int other) {
  char text[8];
  struct iovec piece = {text, sizeof text};
  struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1};
  struct sockaddr_in name;
  socklen_t length = sizeof name;
  NOTE(getpeername(other, (struct sockaddr*)&name, &length));
  NOTE(write(one, "abcdefgh", 8));
  NOTE(poll(&(struct pollfd){other, POLLIN, 0}, 1, 5000));
  NOTE(read(other, text, 8));
  NOTE(send(other, "12345678", 8, MSG_NOSIGNAL));
  fd_set set;
  FD_ZERO(&set);
  FD_SET(one, &set);
  NOTE(select(one + 1, &set, NULL, NULL, &(struct timeval){5, 0}));
  NOTE(recv(one, text, 8, MSG_WAITALL));
  NOTE(sendmsg(one, &message, 0));
  FD_SET(other, &set);
  NOTE(pselect(other + 1, &set, NULL, NULL, &(struct timespec){5, 0}, NULL));
  NOTE(recvmsg(other, &message, MSG_WAITALL));
  NOTE(sockatmark(other));
  int value = 0;
  length = sizeof value;
  NOTE(getsockopt(one, SOL_SOCKET, SO_ERROR, &value, &length));
  struct pollfd many[200];
  for (int i = 0; i < 200; i++) many[i] = (struct pollfd){i % 2 == 0 ? other : STDERR_FILENO, POLLIN, 0};
  NOTE(poll(many, 200, 0) >= 0);
  int copy = dup(one);
  NOTE(dup2(copy, 60));
  NOTE(fcntl(60, F_SETFL, O_NONBLOCK));
  NOTE(read(60, text, 8));
  NOTE(close(copy) + close(60));
  NOTE(shutdown(one, SHUT_WR));
  NOTE(read(other, text, 8));
}

static void datagrams(void) {
  char text[8];
  struct sockaddr_in address = any_port();
  socklen_t length = sizeof address;
  int one = socket(AF_INET, SOCK_DGRAM, 0), other = socket(AF_INET, SOCK_DGRAM, 0);
  NOTE(bind(one, (struct sockaddr*)&address, sizeof address));
  NOTE(getsockname(one, (struct sockaddr*)&address, &length));
  NOTE(sendto(other, "x", 1, 0, (struct sockaddr*)&address, sizeof address));
  NOTE(recvfrom(one, text, sizeof text, 0, NULL, NULL));
  NOTE(close(one) + close(other));
}

static void streams(void) {
  int value = 1;
  struct sockaddr_in address = any_port();
  socklen_t length = sizeof address;
  int listener = socket(AF_INET, SOCK_STREAM, 0), one = socket(AF_INET, SOCK_STREAM, 0);
  NOTE(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &value, sizeof value));
  NOTE(bind(listener, (struct sockaddr*)&address, sizeof address));
  NOTE(listen(listener, 5));
  NOTE(getsockname(listener, (struct sockaddr*)&address, &length));
  NOTE(connect(one, (struct sockaddr*)&address, sizeof address));
  int other = accept(listener, NULL, NULL);
  NOTE(other >= 0);
  talk(one, other);
  NOTE(close(one) + close(other) + close(listener));
}

static void fork_a_child(void) {
  pid_t child = fork();
  if (child == 0) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    _exit(close(fd) == 0 ? 7 : 8);
  }
  int status = 0;
  NOTE(waitpid(child, &status, 0) == child);
  NOTE(WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status));
}

static void handler(int signal) {
  (void)signal;
  int saved = errno;
  handlers++;
  streams();
  if (!skips("datagrams")) datagrams();
  if (forks_in_handler) fork_a_child();
  if (exits_in_handler) _exit(seen_count > 20 ? 0 : 1);
  handlers--;
  errno = saved;
}

static void print_seen(void) {
  for (int i = 0; i < seen_count; i++) {
    errno = seen[i].result < 0 ? (int)-seen[i].result : 0;
    say(seen[i].what, seen[i].result < 0 ? -1 : seen[i].result);
  }
  printf("%d calls in a handler\n", seen_count);
  fflush(stdout);
}

/* --- What is interrupted */

static void in_malloc(void) {
  interrupt_allocation = 1;
  free(malloc(10));
}
static void prepare(void) { raise(SIGUSR1); }
static void in_fork(void) {
  pthread_atfork(prepare, NULL, NULL);
  pid_t child = fork();
  if (child == 0) _exit(0);
  say("child", waitpid(child, NULL, 0) == child);
}
static int in_callback(struct dl_phdr_info* info, size_t size, void* data) {
  (void)info, (void)size, (void)data;
  raise(SIGUSR1);
  return 1;
}
static void in_linker(void) { dl_iterate_phdr(in_callback, NULL); }
static void in_set_up(void) {
  only_handlers = 1;
  interrupt_allocation = 3; /* where there is none in what follows, the last call below is it */
  streams();
  for (int i = 0; i < 3; i++) free(malloc(10));
  only_handlers = 0;
}

/* --- What has been before */

static void nothing(void) {}
static void a_socket(void) { close(socket(AF_INET, SOCK_STREAM, 0)); }
static void a_set(void) { close(epoll_create1(0)); }
static void a_connection(void) { streams(); }

static void run(const char* before_name, void (*before)(void), const char* in_name, void (*in)(void), int alternate) {
  fflush(stdout);
  pid_t child = fork();
  if (child != 0) {
    int status = 0;
    waitpid(child, &status, 0);
    printf("after %s, in %s%s: status %d\n", before_name, in_name, alternate ? ", another stack" : "", status);
    return;
  }
  alarm(30);
  main_thread = gettid();
  static char room[256 << 10];
  stack_t stack = {.ss_sp = room, .ss_size = sizeof room};
  if (alternate) sigaltstack(&stack, NULL);
  struct sigaction action = {.sa_handler = handler, .sa_flags = (alternate ? SA_ONSTACK : 0) | SA_RESETHAND};
  sigaction(SIGUSR1, &action, NULL);
  before();
  in();
  print_seen();
  streams(); /* what was left for later calls is done now */
  printf("%d calls in all\n", seen_count);
  fflush(stdout);
  exits_in_handler = 1;
  action.sa_handler = handler;
  sigaction(SIGUSR1, &action, NULL);
  in_malloc();
  _exit(2);
}

#define RUN(before, in, alternate) run(#before, before, #in, in, alternate)

int main(void) {
  int early = !skips("early");
  forks_in_handler = 1;
  for (int alternate = 0; alternate < 2; alternate++) {
    if (early) RUN(nothing, in_malloc, alternate);
    if (early) RUN(a_socket, in_malloc, alternate);
    if (early) RUN(a_set, in_malloc, alternate);
    RUN(a_connection, in_malloc, alternate);
  }
  if (early) RUN(nothing, in_linker, 0);
  RUN(a_connection, in_linker, 0);
  if (early) RUN(nothing, in_set_up, 0);
  forks_in_handler = 0;
  if (early) RUN(nothing, in_fork, 0);
  RUN(a_connection, in_fork, 0);
  return 0;
}
