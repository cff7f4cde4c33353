/* fork, vfork, posix_spawn, exec, daemon, exits: a child never disturbs its parent's sockets. Results only. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "say.h"

extern char** environ;
static int listener, a, b;

static void connect_both(void) {
  struct sockaddr_in where = {.sin_family = AF_INET, .sin_addr.s_addr = own_address()};
  socklen_t length = sizeof(where);
  listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (bind(listener, (struct sockaddr*)&where, length) != 0 || listen(listener, 1) != 0) abort();
  getsockname(listener, (struct sockaddr*)&where, &length);
  a = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(a, (struct sockaddr*)&where, length) != 0) abort();
  b = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
}

static void reap(const char* what, pid_t child) {
  int status = -1;
  if (waitpid(child, &status, 0) != child) abort();
  printf("%s: %s %d\n", what, WIFEXITED(status) ? "exit" : "signal", WIFEXITED(status) ? WEXITSTATUS(status) : status);
}

static void still_connected(const char* after) {
  char buffer[8] = "";
  ssize_t sent = write(a, "ping", 4), got = read(b, buffer, 8);
  printf("after %s: %zd %zd %s\n", after, sent, got, buffer);
}

static void vforks(void) {
  char* argv[] = {"true", NULL};
  for (int i = 0; i < 3; i++) {
    pid_t child = vfork();
    if (child == 0) { /* as Python's subprocess does between vfork and exec */
      close(b);
      close(a);
      dup2(open("/dev/null", O_RDWR), listener);
      socket(AF_INET, SOCK_STREAM, 0);
      close_range(3, 60, 0);
      signal(SIGPIPE, SIG_DFL);
      execve("/bin/does-not-exist", argv, environ);
      execve("/bin/true", argv, environ);
      _exit(9);
    }
    reap("vfork", child);
    still_connected("vfork");
  }
  pid_t child = vfork();
  if (child == 0) _exit(7);
  reap("vfork and _exit", child);
  still_connected("vfork and _exit");
  child = vfork();
  if (child == 0) {
    pid_t grandchild = vfork();
    if (grandchild == 0) {
      close(a);
      _exit(3);
    }
    int status;
    waitpid(grandchild, &status, 0);
    close(b);
    _exit(WEXITSTATUS(status) + 1);
  }
  reap("vfork in vfork", child);
  still_connected("vfork in vfork");
}

static void spawns(void) {
  char* argv[] = {"sh", "-c", "exit 5", NULL};
  pid_t child;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addclose(&actions, a);
  posix_spawn_file_actions_adddup2(&actions, 1, b);
  TRY(posix_spawn(&child, "/bin/sh", &actions, NULL, argv, environ));
  reap("posix_spawn", child);
  TRY(posix_spawnp(&child, "sh", NULL, NULL, argv, environ));
  reap("posix_spawnp", child);
  TRY(posix_spawnp(&child, "does-not-exist", NULL, NULL, argv, environ));
  TRY(WEXITSTATUS(system("exit 6")));
  FILE* output = popen("echo popen", "r");
  char line[16] = "";
  if (fgets(line, sizeof(line), output) == NULL) abort();
  printf("%s", line);
  TRY(pclose(output));
  still_connected("spawns");
}

static void forks(void) {
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    close(a);
    close(b);
    close(listener);
    exit(4);
  }
  reap("fork", child);
  still_connected("fork");
  child = fork();
  if (child == 0) {
    execlp("sh", "sh", "-c", "exit 2", (char*)NULL);
    _exit(9);
  }
  reap("fork and execlp", child);
  still_connected("fork and execlp");
  child = fork();
  if (child == 0) {
    char* const environment[] = {"X=8", NULL};
    execle("/bin/sh", "sh", "-c", "exit $X", (char*)NULL, environment);
    _exit(9);
  }
  reap("fork and execle", child);
  child = fork();
  if (child == 0) {
    execl("/does/not/exist", "x", (char*)NULL);
    execv("/does/not/exist", (char*[]){"x", NULL});
    execvp("does-not-exist", (char*[]){"x", NULL});
    _Exit(errno == ENOENT);
  }
  reap("failed execs", child);
  child = _Fork();
  if (child == 0) _exit(1);
  reap("_Fork", child);
  child = (pid_t)syscall(SYS_clone, SIGCHLD, 0L, 0L, 0L, 0L);
  if (child == 0) _exit(2);
  reap("clone", child);
  child = fork();
  if (child == 0) quick_exit(3);
  reap("quick_exit", child);
  child = fork();
  if (child == 0) syscall(SYS_exit_group, 6);
  reap("exit_group", child);
  still_connected("exits");
}

static void daemons(void) {
  int ends[2];
  if (pipe(ends) != 0) abort();
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    if (daemon(0, 0) != 0) _exit(9);
    char answer = write(1, "x", 1) == 1 && fcntl(0, F_GETFD) == 0 ? 'y' : 'n';
    if (write(ends[1], &answer, 1) != 1) _exit(9);
    _exit(0);
  }
  reap("daemon", child);
  char answer = '?';
  TRY(read(ends[0], &answer, 1));
  printf("%c\n", answer);
  still_connected("daemon");
}

int main(void) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  connect_both();
  vforks();
  spawns();
  forks();
  daemons();
  return 0;
}
