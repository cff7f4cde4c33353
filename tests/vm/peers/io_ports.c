// io_ports ADDRESS PORT: who may use the machine's I/O ports once a socket of ours is open. Each tries one, and a line
// says which of them may. Then it gives root up and sends back what a client sends, until that one ends.
//
//     io_ports look    tries it as a program that was started by another one
#include <arpa/inet.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/io.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define NOBODY 65534
#define POST_CODES 0x80  // a port that means nothing

static sigjmp_buf back;

static void on_fault(int number) {
  siglongjmp(back, number);
}

// Whether this thread may: without the right the processor faults.
static int may_use_ports(void) {
  signal(SIGSEGV, on_fault);
  if (sigsetjmp(back, 1) != 0) return 0;
  inb(POST_CODES);
  return 1;
}

static void tell(const char* who, int may) {
  printf("%s: %s\n", who, may ? "may" : "may not");
}

static void* as_thread(void* result) {
  *(int*)result = may_use_ports();
  return NULL;
}

static int in_thread(void) {
  int may = 1;
  pthread_t thread;
  if (pthread_create(&thread, NULL, as_thread, &may) != 0) return 1;
  pthread_join(thread, NULL);
  return may;
}

// 0: it may not. Anything else is of no use to the test, and counts as the right.
static int ended_well(pid_t child) {
  int status = -1;
  waitpid(child, &status, 0);
  return status != 0;
}

static int in_child(void) {
  const pid_t child = fork();
  if (child == 0) _exit(may_use_ports());
  return ended_well(child);
}

static int in_program(const char* self, pid_t (*make)(void)) {
  const pid_t child = make();
  if (child == 0) {
    execl(self, self, "look", (char*)NULL);
    _exit(2);
  }
  return ended_well(child);
}

static int in_child_of_vfork(const char* self) {
  const pid_t child = vfork();
  if (child == 0) {
    execl(self, self, "look", (char*)NULL);
    _exit(2);
  }
  return ended_well(child);
}

static int listening(const char* address, const char* port) {
  struct sockaddr_in name = {.sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(port))};
  inet_pton(AF_INET, address, &name.sin_addr);
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (bind(fd, (struct sockaddr*)&name, sizeof name) == 0 && listen(fd, 5) == 0) return fd;
  perror("listening");
  exit(1);
}

static void send_back(int fd) {
  char text[256];
  for (ssize_t n; (n = recv(fd, text, sizeof text, 0)) > 0;)
    if (send(fd, text, (size_t)n, 0) != n) break;
}

int main(int argc, char** argv) {
  if (argc == 2 && strcmp(argv[1], "look") == 0) return may_use_ports();
  if (argc != 3) return 2;
  setvbuf(stdout, NULL, _IOLBF, 0);
  const int listener = listening(argv[1], argv[2]);
  tell("process", may_use_ports());
  tell("thread", in_thread());
  tell("child", in_child());
  tell("program", in_program(argv[0], fork));
  tell("program of vfork", in_child_of_vfork(argv[0]));
  if (setgid(NOBODY) != 0 || setuid(NOBODY) != 0) return 1;
  tell("process without root", may_use_ports());
  puts("ready");
  send_back(accept(listener, NULL, NULL));
  return 0;
}
