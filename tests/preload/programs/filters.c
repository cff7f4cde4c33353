/* A client and a server under filters of system calls (seccomp) that answer one call, each in turn, with an errno. The
 * program makes few calls by itself: what else is made is not its own, and must not be missed. */
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <poll.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "connection.h"
#include "say.h"

#define CALL(name) {SYS_##name, #name}
static const struct {
  long number;
  const char* name;
} calls[] = {CALL(epoll_create1), CALL(epoll_ctl),         CALL(epoll_pwait),      CALL(epoll_wait),
             CALL(eventfd2),      CALL(ppoll),             CALL(futex),            CALL(sendmsg),
             CALL(recvmsg),       CALL(ioctl),             CALL(dup),              CALL(getsockopt),
             CALL(getpeername),   CALL(membarrier),        CALL(memfd_create),     CALL(process_vm_readv),
             CALL(rt_sigaction),  CALL(rt_tgsigqueueinfo), CALL(tgkill),           CALL(gettid),
             CALL(sched_yield),   CALL(nanosleep),         CALL(clock_nanosleep),  CALL(getrandom),
             CALL(pidfd_open),    CALL(prlimit64),         CALL(statx),            CALL(fsync),
             CALL(readlink),      CALL(mkdir),             CALL(ftruncate),        CALL(fallocate),
             CALL(flock),         CALL(unlink),            CALL(unlinkat),         CALL(getdents64),
             CALL(madvise),       CALL(munmap),            CALL(clone3),           CALL(socketpair),
             CALL(kcmp),          CALL(fchmod),            CALL(linkat),           CALL(geteuid),
             CALL(getuid),        CALL(umask),             CALL(faccessat2),       CALL(clock_gettime),
             CALL(shutdown),      CALL(writev),            CALL(readv),            CALL(accept4),
             CALL(openat2),       CALL(prctl),             CALL(capget),           CALL(set_robust_list)};
enum { kCalls = sizeof calls / sizeof *calls };

static int is_refused(long number, int error) {
  struct sock_filter lines[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
                                BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
                                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
                                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  struct sock_fprog program = {4, lines};
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static struct connection c;

static void start(void) {
  open_listener(&c);
  connect_to_it(&c);
  say("accept", c.server >= 0);
  fcntl(c.client, F_SETFL, 0);
  struct timeval limit = {3, 0};
  TRY(setsockopt(c.client, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
  TRY(setsockopt(c.server, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
}

static void talk(void) {
  char text[100] = {0};
  for (int i = 0; i < 3; i++) {
    TRY(send(c.client, "question", 8, 0));
    TRY(poll(&(struct pollfd){c.server, POLLIN, 0}, 1, 3000));
    TRY(recv(c.server, text, sizeof text, 0));
    TRY(write(c.server, "answer", 6));
    TRY(read(c.client, text, sizeof text));
  }
  fd_set set;
  FD_ZERO(&set);
  FD_SET(c.server, &set);
  TRY(select(c.server + 1, &set, NULL, NULL, &(struct timeval){0, 0}));
  TRY(send(c.client, "last", 4, 0));
  close(c.client);
  TRY(recv(c.server, text, sizeof text, MSG_WAITALL));
  TRY(recv(c.server, text, sizeof text, 0));
  close(c.server);
  close(c.listener);
}

static void print_end(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  printf("status %d\n", status);
}

int main(int count, char** arguments) {
  if (count > 1) {
    alarm(20);
    start();
    talk();
    return 0;
  }
  static const int errors[] = {EPERM, ENOSYS};
  for (int i = 0; i < 2 * kCalls; i++) {
    printf("%s with %s, before anything\n", calls[i / 2].name, strerrorname_np(errors[i % 2]));
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
      if (is_refused(calls[i / 2].number, errors[i % 2])) execl("/proc/self/exe", arguments[0], "talk", NULL);
      _exit(98);
    }
    print_end(child);
    printf("%s with %s, after a connection\n", calls[i / 2].name, strerrorname_np(errors[i % 2]));
    fflush(stdout);
    child = fork();
    if (child == 0) {
      alarm(20);
      start();
      if (is_refused(calls[i / 2].number, errors[i % 2])) talk();
      exit(0);
    }
    print_end(child);
  }
  return 0;
}
