/* Signals on top of calls: EINTR, SA_RESTART, what sigaction shows, SIGPIPE, masks, a jump out of a handler.
 * Prints results only. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "asleep.h"
#include "connection.h"
#include "say.h"

static int a, b; /* a connection */
static volatile sig_atomic_t count, last_code, write_in_handler;
static sigjmp_buf out;

static void counter(int signal) {
  (void)signal;
  count++;
  if (write_in_handler) {
    write_in_handler = 0;
    if (write(a, "h", 1) != 1) abort();
  }
}

static void informed(int signal, siginfo_t* info, void* context) {
  (void)signal;
  (void)context;
  count++;
  last_code = info->si_code;
}

static void jumper(int signal) {
  (void)signal;
  siglongjmp(out, 1);
}

static void alarm_in(int milliseconds, int then_every) {
  struct itimerval timer = {{0, then_every * 1000}, {0, milliseconds * 1000}};
  setitimer(ITIMER_REAL, &timer, NULL);
}

static void on_alarm(int flags) {
  struct sigaction action = {.sa_handler = counter, .sa_flags = flags};
  sigaction(SIGALRM, &action, NULL);
}

static void* writer(void* milliseconds) {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, NULL);
  usleep((useconds_t)(long)milliseconds * 1000);
  if (write(a, "late", 4) != 4) abort();
  return NULL;
}

static pthread_t write_in(long milliseconds) {
  pthread_t thread;
  pthread_create(&thread, NULL, writer, (void*)milliseconds);
  return thread;
}

static void interruptions(void) {
  char buffer[16];
  struct pollfd set = {b, POLLIN, 0};
  struct epoll_event event = {.events = EPOLLIN};
  int epoll = epoll_create1(0);
  epoll_ctl(epoll, EPOLL_CTL_ADD, b, &event);
  fd_set reads;
  printf("== interruptions\n");
  on_alarm(0);
  alarm_in(20, 20); /* again and again: one may come before the call has begun */
  TRY(read(b, buffer, sizeof(buffer)));
  TRY(recvmsg(b, &(struct msghdr){.msg_iov = &(struct iovec){buffer, 4}, .msg_iovlen = 1}, 0));
  alarm_in(0, 0);
  on_alarm(SA_RESTART);
  count = 0;
  pthread_t thread = write_in(90);
  alarm_in(20, 20);
  TRY(read(b, buffer, sizeof(buffer)));
  alarm_in(0, 0);
  pthread_join(thread, NULL);
  printf("restarted over %d\n", count > 0);
  alarm_in(20, 20); /* these never restart */
  TRY(poll(&set, 1, 5000));
  TRY(ppoll(&set, 1, NULL, NULL));
  FD_ZERO(&reads);
  FD_SET(b, &reads);
  TRY(select(b + 1, &reads, NULL, NULL, &(struct timeval){5, 0}));
  TRY(epoll_wait(epoll, &event, 1, 5000));
  struct timeval timeout = {5, 0}; /* a socket with a timeout does not restart either */
  setsockopt(b, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  TRY(recv(b, buffer, sizeof(buffer), 0));
  alarm_in(0, 0);
  timeout.tv_sec = 0;
  setsockopt(b, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  write_in_handler = 1; /* a handler that uses the socket that it interrupted */
  alarm_in(20, 0);
  TRY(read(b, buffer, sizeof(buffer)));
  close(epoll);
}

/* Until so many bytes are there: the way there takes its time on a busy machine. */
static void write_and_settle(const char* text, int bytes) {
  int there = 0;
  if (write(a, text, (size_t)bytes) != bytes) abort();
  while (ioctl(b, FIONREAD, &there) == 0 && there < bytes) {
  }
}

/* What a call has done already is its result, whatever the handler's flags. */
static void halves(void) {
  static char much[64 << 20];
  char buffer[16];
  int many = 8, one = 1;
  for (int restart = 0; restart < 2; restart++) {
    printf("== half done, %s\n", restart ? "SA_RESTART" : "no SA_RESTART");
    on_alarm(restart ? SA_RESTART : 0);
    alarm_in(20, 20);
    write_and_settle("12345", 5);
    TRY(recv(b, buffer, 10, MSG_WAITALL));
    write_and_settle("1234", 4);
    TRY(recv(b, buffer, 10, MSG_WAITALL | MSG_PEEK));
    TRY(recv(b, buffer, 10, MSG_DONTWAIT));
    setsockopt(b, SOL_SOCKET, SO_RCVLOWAT, &many, sizeof many);
    write_and_settle("123", 3);
    TRY(read(b, buffer, 10));
    setsockopt(b, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof one);
    long sent = send(a, much, sizeof much, 0);
    alarm_in(0, 0);
    TRY(sent > 0 && sent < (long)sizeof much);
    TRY(sent == recv(b, much, (size_t)sent, MSG_WAITALL));
  }
}

static void masks(void) {
  printf("== masks\n");
  struct pollfd set = {b, POLLIN, 0};
  sigset_t block, empty, now;
  sigemptyset(&empty);
  sigemptyset(&block);
  sigaddset(&block, SIGALRM);
  sigprocmask(SIG_BLOCK, &block, NULL);
  count = 0;
  alarm_in(10, 0);
  usleep(30000);
  printf("blocked %d\n", count);
  TRY(ppoll(&set, 1, &(struct timespec){5, 0}, &empty));
  printf("delivered %d\n", count);
  alarm_in(10, 0);
  usleep(30000);
  TRY(pselect(0, NULL, NULL, NULL, &(struct timespec){5, 0}, &empty));
  int epoll = epoll_create1(0);
  alarm_in(10, 0);
  usleep(30000);
  TRY(epoll_pwait(epoll, &(struct epoll_event){0}, 1, 5000, &empty));
  close(epoll);
  sigprocmask(SIG_SETMASK, NULL, &now);
  printf("still blocked %d, delivered %d\n", sigismember(&now, SIGALRM), count);
  sigprocmask(SIG_UNBLOCK, &block, NULL);
}

static void show(const char* what, const struct sigaction* action) {
  const char* handler = action->sa_handler == SIG_DFL   ? "default"
                        : action->sa_handler == SIG_IGN ? "ignore"
                        : action->sa_handler == counter ? "counter"
                        : action->sa_sigaction == informed ? "informed"
                                                           : "unknown";
  printf("%s: %s flags %x usr2 masked %d\n", what, handler, (unsigned)action->sa_flags & ~0x04000000U,
         sigismember(&action->sa_mask, SIGUSR2));
}

static void actions(void) {
  struct sigaction old, action = {.sa_sigaction = informed, .sa_flags = SA_SIGINFO | SA_NODEFER};
  printf("== actions\n");
  sigaction(SIGUSR1, NULL, &old); /* installed before the first socket */
  show("early", &old);
  count = 0;
  raise(SIGUSR1);
  printf("count %d\n", count);
  sigaddset(&action.sa_mask, SIGUSR2);
  TRY(sigaction(SIGUSR1, &action, &old));
  show("replaced", &old);
  TRY(sigaction(SIGUSR1, NULL, &old));
  show("now", &old);
  kill(getpid(), SIGUSR1);
  printf("count %d code %d\n", count, last_code == SI_USER);
  TRY(signal(SIGUSR1, counter) == (sighandler_t)informed);
  sigaction(SIGUSR1, NULL, &old);
  show("signal()", &old);
  TRY(siginterrupt(SIGUSR1, 1));
  sigaction(SIGUSR1, NULL, &old);
  show("siginterrupt", &old);
  TRY(signal(SIGUSR1, SIG_IGN) == counter);
  TRY(signal(SIGUSR1, SIG_DFL) == SIG_IGN);
  signal(SIGUSR1, counter);
  sigaction(SIGUSR1, NULL, &old);
  show("signal() again", &old);
  siginterrupt(SIGUSR1, 0);
  action.sa_handler = counter;
  action.sa_flags = SA_RESETHAND;
  sigaction(SIGUSR1, &action, NULL);
  count = 0;
  raise(SIGUSR1);
  sigaction(SIGUSR1, NULL, &old);
  show("after one shot", &old);
  printf("count %d\n", count);
  sysv_signal(SIGUSR1, counter);
  raise(SIGUSR1);
  printf("sysv then %d\n", signal(SIGUSR1, SIG_DFL) == SIG_DFL);
  TRY(sigaction(SIGKILL, &action, NULL));
  TRY(sigaction(0, NULL, &old));
  TRY(sigaction(65, NULL, &old));
  TRY(signal(SIGSTOP, counter) == SIG_ERR ? -1 : 0);
  sigaction(SIGSEGV, NULL, &old);
  show("segv", &old);
  signal(SIGSEGV, counter);
  sigaction(SIGSEGV, NULL, &old);
  show("segv handled", &old);
  signal(SIGSEGV, SIG_DFL);
  sigset(SIGUSR2, counter); /* a form that changes actions behind the interposers */
  count = 0;
  raise(SIGUSR2);
  TRY(sigset(SIGUSR2, SIG_DFL) == counter);
  printf("sigset %d\n", count);
}

static void jumps(void) {
  char buffer[4];
  printf("== jumps\n");
  signal(SIGALRM, jumper);
  for (int i = 0; i < 6; i++) { /* more often than a thread may have calls on top of each other */
    if (sigsetjmp(out, 1) == 0) {
      alarm_in(10, 0);
      TRY(read(b, buffer, 4));
    }
  }
  struct pollfd set = {b, POLLIN, 0};
  if (sigsetjmp(out, 1) == 0) {
    alarm_in(10, 0);
    TRY(poll(&set, 1, -1));
  }
  TRY(write(a, "x", 1));
  TRY(read(b, buffer, 4));
}

static volatile sig_atomic_t in_child;
static volatile pid_t child;

static void forker(int signal) {
  (void)signal;
  if ((child = fork()) != 0) return;
  in_child = 1;
  usleep(50000); /* the parent sleeps again by then */
}

static atomic_int forks_in; /* the thread that the handler interrupts */

static void* waits_and_forks(void* set) {
  struct epoll_event got;
  atomic_store(&forks_in, (int)gettid());
  errno = 77;
  long result = epoll_wait((int)(long)set, &got, 1, 3000);
  if (in_child) pause();
  say("interrupted", result);
  TRY(epoll_wait((int)(long)set, &got, 1, 1000)); /* something else may wake it a little later */
  return NULL;
}

/* The child comes back into a sleep that is its parent's. */
static void forks(void) {
  printf("== forks\n");
  struct sigaction action = {.sa_handler = forker};
  sigaction(SIGUSR1, &action, NULL);
  int set = epoll_create1(0);
  pthread_t thread;
  pthread_create(&thread, NULL, waits_and_forks, (void*)(long)set);
  while (atomic_load(&forks_in) == 0) sched_yield();
  await_sleep(getpid(), atomic_load(&forks_in));
  pthread_kill(thread, SIGUSR1);
  while (child == 0) sched_yield();
  await_sleep(getpid(), atomic_load(&forks_in)); /* in its second wait */
  struct epoll_event out = {.events = EPOLLOUT | EPOLLET};
  int ready = socket(AF_INET, SOCK_STREAM, 0);
  epoll_ctl(set, EPOLL_CTL_ADD, ready, &out);
  pthread_join(thread, NULL);
  kill(child, SIGKILL);
  wait(NULL);
  close(ready);
  close(set);
}

static void* pipe_writer(void* fd) {
  usleep(30000);
  if (write((int)(long)fd, "x", 1) != 1) abort();
  return NULL;
}

/* epoll_wait() does not care how many descriptors a process may have; poll() does. */
static void few_descriptors(void) {
  printf("== few descriptors\n");
  int ends[2], set = epoll_create1(0);
  if (pipe(ends) != 0) abort();
  struct epoll_event in = {.events = EPOLLIN}, out = {.events = EPOLLOUT | EPOLLET}, got;
  epoll_ctl(set, EPOLL_CTL_ADD, ends[0], &in);
  epoll_ctl(set, EPOLL_CTL_ADD, b, &out);
  epoll_wait(set, &got, 1, 0);
  struct rlimit before, few;
  getrlimit(RLIMIT_NOFILE, &before);
  few = before;
  few.rlim_cur = 1;
  for (int i = 0; i < 2; i++) { /* the second time it has slept before */
    pthread_t thread;
    if (i == 1) setrlimit(RLIMIT_NOFILE, &few);
    pthread_create(&thread, NULL, pipe_writer, (void*)(long)ends[1]);
    TRY(epoll_wait(set, &got, 1, 3000));
    pthread_join(thread, NULL);
    if (read(ends[0], &(char){0}, 1) != 1) abort();
  }
  setrlimit(RLIMIT_NOFILE, &before);
  close(ends[0]);
  close(ends[1]);
  close(set);
}

static void pipes(void) {
  printf("== SIGPIPE\n");
  signal(SIGPIPE, counter);
  count = 0;
  shutdown(a, SHUT_WR);
  TRY(write(a, "x", 1));
  TRY(send(a, "x", 1, 0));
  TRY(send(a, "x", 1, MSG_NOSIGNAL));
  printf("count %d\n", count);
  signal(SIGPIPE, SIG_DFL);
  sigset_t block, pending;
  sigemptyset(&block);
  sigaddset(&block, SIGPIPE);
  sigprocmask(SIG_BLOCK, &block, NULL);
  TRY(write(a, "x", 1));
  sigpending(&pending);
  printf("pending %d\n", sigismember(&pending, SIGPIPE));
  sigtimedwait(&block, NULL, &(struct timespec){0, 0});
  /* After the jumps nothing must hold the object: its end reaches the other side. */
  TRY(close(b));
  TRY(recv(a, &(char){0}, 1, 0));
}

int main(void) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  struct sigaction early = {.sa_handler = counter, .sa_flags = SA_RESTART};
  sigaction(SIGUSR1, &early, NULL);
  connect_both(&a, &b);
  interruptions();
  halves();
  masks();
  actions();
  if (!skips("jumps")) jumps();
  forks();
  few_descriptors();
  pipes();
  return 0;
}
