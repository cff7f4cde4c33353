/* Epoll sets that the kernel knows better than we do: filled by an io_uring or by another process, waited for in the
 * program's own call, nested; what another thread adds to one in which somebody sleeps, what a parent has closed, and
 * the order in which events are told. Results only. */
#include <linux/io_uring.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "asleep.h"
#include "connection.h"
#include "say.h"

static int new_set(void) {
  return epoll_create1(EPOLL_CLOEXEC);
}

static int add(int set, int fd, uint32_t events) {
  struct epoll_event event = {.events = events, .data.fd = fd};
  return epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
}

/* Of a task: how often it has slept. */
static long sleeps_of(int process) {
  char name[64], line[256];
  long times = -1;
  snprintf(name, sizeof(name), "/proc/%d/status", process);
  FILE* file = fopen(name, "r");
  while (file != NULL && fgets(line, sizeof(line), file) != NULL) sscanf(line, "voluntary_ctxt_switches: %ld", &times);
  if (file != NULL) fclose(file);
  return times;
}

/* As libuv from 1.49 on does it, where the kernel has it. */
static void ring_fills(void) {
  const int set = new_set(), fd = eventfd(1, 0);
  struct io_uring_params p = {0};
  const int ring = (int)syscall(SYS_io_uring_setup, 8, &p);
  if (ring < 0) return say("io_uring_setup", -1);
  const size_t bytes = p.sq_off.array + p.sq_entries * sizeof(unsigned);
  char* queue = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
  struct io_uring_sqe* entry =
      mmap(NULL, p.sq_entries * sizeof(*entry), PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
  struct epoll_event event = {.events = EPOLLIN, .data.fd = 7};
  memset(entry, 0, sizeof(*entry));
  entry->opcode = IORING_OP_EPOLL_CTL;
  entry->fd = set;
  entry->off = (unsigned)fd;
  entry->len = EPOLL_CTL_ADD;
  entry->addr = (uintptr_t)&event;
  *(unsigned*)(queue + p.sq_off.array) = 0;
  __atomic_store_n((unsigned*)(queue + p.sq_off.tail), 1, __ATOMIC_RELEASE);
  say("io_uring_enter", syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0));
  struct epoll_event got[4];
  say("filled by a ring", epoll_wait(set, got, 4, 5000));
  printf("data %d\n", got[0].data.fd);
  /* With a socket beside it. */
  int a, b;
  connect_both(&a, &b);
  add(set, b, EPOLLIN);
  say("send", write(a, "x", 1));
  int seen = 0;
  for (int i = 0; i < 1000 && seen != 3; i++)
    for (int n = epoll_wait(set, got, 4, 100); n > 0; n--) seen |= got[n - 1].data.fd == 7 ? 1 : 2;
  printf("both are told: %d\n", seen);
  munmap(queue, bytes);
  munmap(entry, p.sq_entries * sizeof(*entry));
  close(a), close(b), close(ring), close(set), close(fd);
}

static void all_the_room(void) {
  const int set = new_set();
  int fds[13];
  for (int i = 0; i < 13; i++) add(set, fds[i] = eventfd(1, 0), EPOLLIN);
  struct epoll_event got[64];
  for (int room = 1; room <= 64; room *= 4) say("room", epoll_wait(set, got, room, 0));
  for (int i = 0; i < 13; i++) close(fds[i]);
  close(set);
}

enum { kSleepers = 8 };

/* One of them is woken by a byte, and each sleeps in the call that it made. */
static void wakes_one(void) {
  int bytes[2];
  pid_t child[kSleepers];
  long slept[kSleepers];
  if (pipe(bytes) != 0) abort();
  for (int i = 0; i < kSleepers; i++) {
    fflush(stdout);
    if ((child[i] = fork()) == 0) {
      const int set = new_set();
      struct epoll_event event = {.events = EPOLLIN | EPOLLET | EPOLLEXCLUSIVE};
      epoll_ctl(set, EPOLL_CTL_ADD, bytes[0], &event);
      _exit(epoll_wait(set, &event, 1, -1));
    }
  }
  int own_call = 0, undisturbed = 0;
  for (int i = 0; i < kSleepers; i++) own_call += await_sleep(child[i], child[i]) == SYS_epoll_wait;
  for (int i = 0; i < kSleepers; i++) slept[i] = sleeps_of(child[i]);
  printf("asleep in epoll_wait: %d\n", own_call);
  say("write", write(bytes[1], "x", 1));
  int status = 0;
  const pid_t first = waitpid(-1, &status, 0);
  for (int i = 0; i < kSleepers; i++)
    undisturbed +=
        child[i] != first && waits_for_descriptors(call_of(child[i], child[i])) && sleeps_of(child[i]) == slept[i];
  printf("woken with %d event, undisturbed: %d\n", WEXITSTATUS(status), undisturbed);
  for (int i = 1; i < kSleepers; i++) {
    if (write(bytes[1], "x", 1) != 1) abort();
    waitpid(-1, &status, 0);
  }
  close(bytes[0]), close(bytes[1]);
}

static void nested(void) {
  int inner = eventfd(0, 0), sets[7];
  const int counter = inner;
  for (int i = 0; i < 7; i++) {
    sets[i] = new_set();
    if (TRY(add(sets[i], inner, EPOLLIN)) != 0) break;
    inner = sets[i];
  }
  struct epoll_event got;
  say("quiet", epoll_wait(sets[3], &got, 1, 0));
  const uint64_t one = 1;
  say("write", write(counter, &one, sizeof(one)));
  say("four deep", epoll_wait(sets[3], &got, 1, 5000));
  TRY(add(sets[0], sets[2], EPOLLIN)); /* a ring of sets */
  TRY(add(sets[0], sets[0], EPOLLIN));
  TRY(add(sets[3], sets[2], EPOLLIN)); /* there already */
  TRY(epoll_ctl(sets[3], EPOLL_CTL_DEL, sets[2], NULL));
  say("taken out", epoll_wait(sets[3], &got, 1, 0));
  TRY(epoll_ctl(sets[3], EPOLL_CTL_DEL, sets[2], NULL));
  TRY(add(sets[3], sets[2], EPOLLIN));
  say("in again", epoll_wait(sets[3], &got, 1, 5000));
  for (int i = 0; i < 6; i++) close(sets[i]);
  close(counter);
}

static atomic_int sleeper_id;

struct Wait {
  int set, timeout, told;
};

static void* sleeper(void* argument) {
  struct Wait* wait = argument;
  struct epoll_event got = {0};
  atomic_store(&sleeper_id, (int)gettid());
  const int n = epoll_wait(wait->set, &got, 1, wait->timeout);
  wait->told = n == 1 ? got.data.fd : -1;
  return NULL;
}

static pthread_t start_sleeper(struct Wait* wait) {
  pthread_t thread;
  atomic_store(&sleeper_id, 0);
  pthread_create(&thread, NULL, sleeper, wait);
  while (atomic_load(&sleeper_id) == 0) sched_yield();
  await_sleep(getpid(), atomic_load(&sleeper_id));
  return thread;
}

/* A socket comes into a set in which threads sleep that had nothing but the kernel's. */
static void comes_later(int timeout) {
  enum { kThreads = 3 };
  const int set = new_set(), quiet = eventfd(0, 0);
  int a, b;
  struct Wait waits[kThreads];
  pthread_t threads[kThreads];
  add(set, quiet, EPOLLIN);
  connect_both(&a, &b);
  for (int i = 0; i < kThreads; i++) {
    waits[i] = (struct Wait){set, timeout, 0};
    threads[i] = start_sleeper(&waits[i]);
  }
  TRY(add(set, b, EPOLLIN));
  say("send", write(a, "x", 1));
  int right = 0;
  for (int i = 0; i < kThreads; i++) {
    pthread_join(threads[i], NULL);
    right += waits[i].told == b;
  }
  printf("told of the socket: %d\n", right);
  TRY(epoll_ctl(set, EPOLL_CTL_DEL, b, NULL));
  struct epoll_event got[4];
  say("nothing is left in it", epoll_wait(set, got, 4, 0));
  close(a), close(b), close(quiet), close(set);
}

/* A forked child adds to a set that its parent sleeps in, and ends. */
static void child_fills(void) {
  const int set = new_set(), fd = eventfd(1, 0);
  fflush(stdout);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) {
    await_sleep(parent, parent);
    _exit(add(set, fd, EPOLLIN) != 0);
  }
  struct epoll_event got = {0};
  say("filled by a child", epoll_wait(set, &got, 1, -1));
  printf("its event: %d\n", got.data.fd == fd);
  waitpid(child, NULL, 0);
  close(set), close(fd);
}

/* There and back, as often as a connection needs to move to shared memory, where it does. */
static void talk(int a, int b, int times) {
  char byte;
  for (int i = 0; i < times; i++)
    if (write(a, "q", 1) != 1 || read(b, &byte, 1) != 1 || write(b, "a", 1) != 1 || read(a, &byte, 1) != 1) abort();
}

/* A parent closes its number of a connection that a child has: its set goes on telling of it, by the number that there
 * was. `again`: that number is another file's by then, and a duplicate goes last. */
static void closed_here(int times, uint32_t flags, int again) {
  const int set = new_set();
  int a, b, go[2], copy = -1;
  if (pipe(go) != 0) abort();
  connect_both(&a, &b);
  talk(a, b, times);
  const int number = b;
  add(set, b, EPOLLIN | flags);
  struct epoll_event got = {0};
  say("quiet", epoll_wait(set, &got, 1, 0));
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    char byte;
    close(a), close(go[1]);
    (void)!read(go[0], &byte, 1); /* the end of the pipe */
    _exit(0);
  }
  if (again) copy = dup(b);
  close(b);
  if (again) {
    if (eventfd(1, 0) != number) abort();
    close(copy);
  }
  say("write", write(a, "x", 1));
  say("the set tells of it", epoll_wait(set, &got, 1, 10000));
  printf("by its number: %d, bits %x\n", got.data.fd == number, got.events);
  say("again", epoll_wait(set, &got, 1, 0));
  close(go[0]), close(go[1]);
  waitpid(child, NULL, 0);
  while (epoll_wait(set, &got, 1, 0) > 0) sched_yield(); /* until nobody has it */
  close(a), close(set);
  if (again) close(number);
}

static atomic_int looks_on;

/* What this thread hears by the way of connections that are not its own is not to be late for others. */
static void* look_beside(void* unused) {
  const int set = new_set();
  int a, b;
  struct epoll_event got;
  connect_both(&a, &b);
  add(set, b, EPOLLIN);
  while (atomic_load(&looks_on)) epoll_wait(set, &got, 1, 0);
  close(a), close(b), close(set);
  return unused;
}

/* One that is ready when it is added is told of behind one that something came to before. */
static void added_later(void) {
  const int set = new_set();
  int a[2], b[2], wrong = 0;
  struct epoll_event got[2];
  for (int i = 0; i < 100; i++) {
    connect_both(&a[0], &b[0]);
    add(set, b[0], EPOLLIN | EPOLLET);
    while (epoll_wait(set, got, 2, 0) > 0) continue;
    if (write(a[0], "1", 1) != 1) abort();
    connect_both(&a[1], &b[1]);
    if (write(a[1], "2", 1) != 1) abort();
    add(set, b[1], EPOLLIN | EPOLLET);
    wrong += epoll_wait(set, got, 1, 5000) != 1 || got[0].data.fd != b[0];
    for (int j = 0; j < 2; j++) close(a[j]), close(b[j]);
  }
  printf("told first though it came later: %d\n", wrong);
  close(set);
}

enum { kConnections = 12, kRounds = 300, kMoves = 100 };

static void shuffle(unsigned* order, unsigned count, unsigned* random) {
  for (unsigned i = 0; i < count; i++) order[i] = i;
  for (unsigned i = count; i > 1; i--) {
    *random = *random * 1103515245 + 12345;
    const unsigned j = (*random >> 16) % i, swapped = order[j];
    order[j] = order[i - 1], order[i - 1] = swapped;
  }
}

/* How many of those that were told do not stand where they do in `order`, both without the first `left_out`. */
static int out_of_turn(const unsigned* told, const unsigned* order, unsigned count, unsigned left_out) {
  int wrong = 0, at = 0;
  for (unsigned i = 0; i < count; i++) {
    if (told[i] < left_out) continue;
    while (order[at] < left_out) at++;
    wrong += told[i] != order[at++];
  }
  return wrong;
}

/* What comes to several connections before the wait begins is told of in the order in which it came. Each gets as many
 * writes as `writes`, all of them before the next one's. Not counted: the first rounds, in which connections may move
 * to shared memory one by one, and some are here and some are there. The first `stay` stay in the kernel (SO_PEEK_OFF);
 * their place among the others is not looked at. */
static void in_order(unsigned count, int writes, uint32_t flags, unsigned stay) {
  const int set = new_set(), on = 1, off = 0;
  const int all = (int)count;
  int a[kConnections], b[kConnections], wrong = 0, lost = 0;
  unsigned random = 1, order[kConnections], told[kConnections];
  struct epoll_event got[kConnections];
  for (unsigned i = 0; i < count; i++) {
    connect_both(&a[i], &b[i]);
    setsockopt(a[i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)); /* nothing waits for an acknowledgement */
    if (i < stay) setsockopt(b[i], SOL_SOCKET, SO_PEEK_OFF, &off, sizeof(off));
    struct epoll_event event = {.events = EPOLLIN | flags, .data.u32 = i};
    epoll_ctl(set, EPOLL_CTL_ADD, b[i], &event);
    talk(a[i], b[i], 40);
  }
  while (epoll_wait(set, got, kConnections, 0) > 0) continue;
  for (int round = 0; round < kRounds; round++) {
    shuffle(order, count, &random);
    for (unsigned i = 0; i < count; i++)
      for (int j = 0; j < writes; j++)
        if (write(a[order[i]], "x", 1) != 1) abort();
    int n = 0, sum = 0;
    char bytes[8];
    for (; sum < all && (n = epoll_wait(set, got, kConnections, 5000)) > 0; sum += n) {
      for (int i = 0; i < n; i++) {
        told[sum + i] = got[i].data.u32;
        if (read(b[got[i].data.u32], bytes, sizeof(bytes)) != writes) lost++;
      }
    }
    lost += sum != all;
    if (sum == all && round >= kMoves) wrong += out_of_turn(told, order, count, stay);
    while (epoll_wait(set, got, kConnections, 0) > 0) continue; /* level-triggered items leave the ready list */
  }
  printf("out of order: %d, lost: %d\n", wrong, lost);
  for (int i = 0; i < all; i++) close(a[i]), close(b[i]);
  close(set);
}

/* A set that came in a message, full already, gets a socket of ours. */
static void comes_in_a_message(void) {
  int pair[2], a, b, set = -1;
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) abort();
  char byte = 0, room[CMSG_SPACE(sizeof(int))] = {0};
  struct iovec data = {&byte, 1};
  struct msghdr m = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof(room)};
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    const int made = new_set();
    add(made, eventfd(1, 0), EPOLLIN | EPOLLONESHOT);
    struct cmsghdr* c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &made, sizeof(made));
    if (sendmsg(pair[0], &m, 0) != 1) _exit(1);
    (void)!read(pair[0], &byte, 1); /* the event's descriptor lives until then */
    _exit(0);
  }
  say("recvmsg", recvmsg(pair[1], &m, 0));
  memcpy(&set, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(set));
  connect_both(&a, &b);
  say("a socket comes to it", add(set, b, EPOLLOUT | EPOLLONESHOT));
  struct epoll_event got[4];
  int told = 0;
  for (int i = 0; i < 100 && told < 2; i++) told += epoll_wait(set, got, 4, 100);
  printf("told in all: %d\n", told);
  say("write", write(pair[1], &byte, 1));
  waitpid(child, NULL, 0);
  close(a), close(b), close(set), close(pair[0]), close(pair[1]);
}

int main(void) {
  all_the_room();
  wakes_one();
  nested();
  comes_later(-1);
  comes_later(600000);
  child_fills();
  for (int again = 0; again < 2; again++) {
    closed_here(0, 0, again);
    closed_here(0, EPOLLET, again);
    closed_here(40, 0, again);
  }
  added_later();
  pthread_t beside;
  atomic_store(&looks_on, 1);
  if (pthread_create(&beside, NULL, look_beside, NULL) != 0) abort();
  added_later();
  atomic_store(&looks_on, 0);
  pthread_join(beside, NULL);
  in_order(2, 1, 0, 0);
  in_order(kConnections, 1, 0, 0);
  in_order(kConnections, 1, EPOLLET, 0);
  in_order(kConnections, 3, 0, 0);
  in_order(kConnections, 1, 0, 1);
  comes_in_a_message();
  ring_fills(); /* last: from here on no connection shares memory */
  return 0;
}
