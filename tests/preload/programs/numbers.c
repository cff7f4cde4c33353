/* Descriptors under a small RLIMIT_NOFILE: the program's last number is the program's. */
#include <fcntl.h>
#include <linux/capability.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "connection.h"
#include "say.h"

static void fill_all(void) {
  int count = 0;
  while (dup(STDIN_FILENO) >= 0) count++;
  say("numbers left", count);
}

static void talk(rlim_t limit) {
  setrlimit(RLIMIT_NOFILE, &(struct rlimit){limit, limit});
  struct connection c;
  open_listener(&c);
  fill_all();
  close((int)limit - 1);
  connect_to_it(&c);
  say("accept", c.server);
  char text[8];
  TRY(send(c.client, "question", 8, 0));
  TRY(recv(c.server, text, 8, MSG_WAITALL));
  TRY(send(c.server, "answer", 6, 0));
  TRY(poll(&(struct pollfd){c.client, POLLIN, 0}, 1, 3000));
  TRY(recv(c.client, text, 8, 0));
  close(c.server);
  fill_all();
  for (int fd = 3; fd < (int)limit; fd++) close(fd);
}

/* In an image of its own, whose hard limit leaves the library numbers above: all below are the program's, with a
 * connection of its own, and accept() says EMFILE where the kernel's does. */
static int count_sockets(rlim_t limit) {
  alarm(20);
  struct rlimit most;
  getrlimit(RLIMIT_NOFILE, &most);
  TRY(setrlimit(RLIMIT_NOFILE, &(struct rlimit){limit, most.rlim_max}));
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = own_address()};
  socklen_t length = sizeof address;
  int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
  TRY(bind(listener, (struct sockaddr*)&address, sizeof address));
  TRY(listen(listener, 5));
  TRY(getsockname(listener, (struct sockaddr*)&address, &length));
  TRY(connect(client, (struct sockaddr*)&address, sizeof address));
  int count = 0, last = 0, made = 0;
  while ((made = socket(AF_INET, SOCK_STREAM, 0)) >= 0) {
    last = made;
    count++;
  }
  say("last", last);
  say("sockets", count);
  TRY(accept(listener, NULL, NULL));
  close(last);
  TRY(accept(listener, NULL, NULL));
  TRY(getrlimit(RLIMIT_NOFILE, &most));
  say("limit", (long)most.rlim_cur);
  return 0;
}

/* Nothing is above: a hard limit that nobody raises, root neither. */
static void bound_for_good(rlim_t limit) {
  prctl(PR_CAPBSET_DROP, CAP_SYS_RESOURCE);
  setrlimit(RLIMIT_NOFILE, &(struct rlimit){limit, limit});
}

static void count_in_image(const char* program, const char* limit, int for_good) {
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    if (for_good) bound_for_good((rlim_t)atoi(limit));
    execl(program, program, limit, (char*)NULL);
    _exit(1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  say(limit, status);
}

/* Beside a child that the library watches: the lowest free number is always the program's next one. */
static void fork_beside_numbers(void) {
  enum { kForks = 30, kNumbers = 300 };
  struct connection c;
  open_listener(&c);
  connect_to_it(&c);
  const int first = dup(STDIN_FILENO);
  close(first);
  fflush(stdout);
  int others = 0;
  for (int i = 0; i < kForks; i++) {
    const pid_t child = fork();
    if (child == 0) {
      pause();
      _exit(1);
    }
    for (int k = 0; k < kNumbers; k++) {
      const int made = dup(STDIN_FILENO);
      others += made != first;
      close(made);
    }
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
  }
  say("numbers that are not the lowest", others);
  close(c.client), close(c.server), close(c.listener);
}

int main(int arguments, char** words) {
  if (arguments > 1) return count_sockets((rlim_t)atoi(words[1]));
  static const char* const limits[] = {"12", "14", "16", "20", "24", "32", "64", "100", "292", "300"};
  enum { kLimits = sizeof limits / sizeof *limits };
  for (int i = 0; i < kLimits; i++) count_in_image(words[0], limits[i], 0);
  fork_beside_numbers();
  if (skips("no room above")) return 0;
  for (int i = 0; i < kLimits; i++) count_in_image(words[0], limits[i], 1);
  alarm(20);
  close(socket(AF_INET, SOCK_STREAM, 0)); /* what the library keeps for good is above the limits that follow */
  talk(100);
  talk(12);
  return 0;
}
