// In front of packetdrill. Under the library: a thread that waits in it, as between two calls of a program of one
// thread nobody looks at the wire for some milliseconds. On the kernel: cubic, which a namespace may not make its
// default.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void* pump(void* unused) {
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(7)};
  char byte;
  usleep(20000);
  inet_pton(AF_INET, "192.168.0.1", &at.sin_addr);
  int fd = socket(AF_INET, SOCK_DGRAM, 0);
  if (bind(fd, (struct sockaddr*)&at, sizeof at) == 0)
    while (recv(fd, &byte, 1, 0) >= 0 || errno == EINTR) {
    }
  return unused;
}

int socket(int family, int type, int protocol) {
  int (*real)(int, int, int) = (int (*)(int, int, int))dlsym(RTLD_NEXT, "socket");
  int fd = real(family, type, protocol);
  if (getenv("BYPASS_PORT") == NULL && fd >= 0 && (type & 0xf) == SOCK_STREAM)
    setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5);
  return fd;
}

__attribute__((constructor)) static void begin(void) {
  pthread_t thread;
  if (strcmp(program_invocation_short_name, "packetdrill") != 0 || getenv("BYPASS_PORT") == NULL) return;
  unsetenv("LD_PRELOAD");  // what it starts (ip, python) is no part of the test
  pthread_create(&thread, NULL, pump, NULL);
}
