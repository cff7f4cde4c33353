/* A process ends when the last of the program's threads does, however that ends: with its status, its exit handlers,
 * and its descriptors closed. And while it is there it costs nothing, also where it may open no descriptor any more. */
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "connection.h"
#include "say.h"

static int server;

/* What the library has threads for: a connection to itself, carrying something. */
static void talk(void) {
  struct connection c;
  open_listener(&c);
  connect_to_it(&c);
  server = c.server;
  char text[8];
  for (int i = 0; i < 20; i++) {
    int sent = send(c.client, "question", 8, 0) == 8, heard = recv(server, text, 8, MSG_WAITALL) == 8;
    int answered = send(server, "answer", 6, 0) == 6;
    poll(&(struct pollfd){c.client, POLLIN, 0}, 1, 3000);
    if (!sent || !heard || !answered || recv(c.client, text, 8, 0) != 6) say("talk", i);
  }
}

static void pause_for(long milliseconds) {
  nanosleep(&(struct timespec){milliseconds / 1000, milliseconds % 1000 * 1000000}, NULL);
}

static void take_the_numbers(void) {
  TRY(setrlimit(RLIMIT_NOFILE, &(struct rlimit){1, 1}));
}

/* Whether the process costs less than a tenth of what it could in that time. */
static void cost_nothing(void) {
  struct timespec before, after;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
  pause_for(500);
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
  long spent = (after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1000000;
  if (spent >= 50) say("milliseconds spent", spent);
}

/* The filter of a sandbox: of this thread. */
static void be_killed(void) {
  struct sock_filter lines[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
                                BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getppid, 0, 1),
                                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_THREAD),
                                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  struct sock_fprog program = {4, lines};
  TRY(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
  TRY(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
  fflush(stdout);
  syscall(SYS_getppid);
}

static void be_killed_without_numbers(void) {
  take_the_numbers();
  cost_nothing();
  be_killed();
}

/* As sshd's child before the login. */
static void be_killed_in_a_cell(void) {
  if (geteuid() == 0) TRY(chroot("/dev/shm"));
  be_killed_without_numbers();
}

static void leave(void) {
  fflush(stdout);
  syscall(SYS_exit, 3);
}

static void at_exit(void) {
  char text[8];
  TRY(send(server, "goodbye", 7, MSG_NOSIGNAL));
  TRY(recv(server, text, 8, MSG_DONTWAIT));
  puts("exit handler");
}

static void end_main(void) {
  atexit(at_exit);
  pthread_exit(NULL);
}

static void* work(void* unused) {
  pause_for(100);
  TRY(send(server, "more", 4, 0));
  return unused;
}

static void end_main_first(void) {
  pthread_t thread;
  pthread_create(&thread, NULL, work, NULL);
  end_main();
}

static void leave_first(void) {
  pthread_t thread;
  pthread_create(&thread, NULL, work, NULL);
  leave();
}

#define CASE(name) \
  { #name, name }
static const struct {
  const char* name;
  void (*run)(void);
} cases[] = {CASE(be_killed),           CASE(be_killed_without_numbers),
             CASE(be_killed_in_a_cell), CASE(leave),
             CASE(leave_first),         CASE(end_main),
             CASE(end_main_first)};
enum { kCases = sizeof cases / sizeof *cases };

static int run(int which) {
  alarm(15);
  talk();
  cases[which].run();
  return 4;
}

/* Its end is heard at a pipe that it has, and by wait(). */
static void watch(const char* program, int which, int as_image) {
  int ends[2];
  if (pipe(ends) != 0) exit(1);
  printf("%s, %s\n", cases[which].name, as_image ? "an image of its own" : "a child");
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    char text[2] = {(char)('0' + which), 0};
    if (as_image) execl(program, program, text, (char*)NULL);
    exit(run(which));
  }
  close(ends[1]);
  char byte;
  TRY(read(ends[0], &byte, 1));
  int status = 0;
  waitpid(child, &status, 0);
  say("status", status);
  close(ends[0]);
}

int main(int count, char** arguments) {
  setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
  if (count > 1) return run(arguments[1][0] - '0');
  for (int which = 0; which < kCases; which++) watch(arguments[0], which, 1);
  close(socket(AF_INET, SOCK_STREAM, 0)); /* from here on they are a family */
  for (int which = 0; which < kCases; which++)
    if (cases[which].run != be_killed_in_a_cell || !skips("cell")) watch(arguments[0], which, 0);
  return 0;
}
