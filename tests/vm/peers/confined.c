// confined FOLDER|nobody BYTES ADDRESS PORT: a server that confines itself once its socket listens: by chroot(2) to a
// folder, or by becoming another user than root. Then it sends back what a client sends, until that one ends, one
// client after the other. It reads nothing from the first client before so many bytes of it have arrived.
#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define NOBODY 65534

static int listening(const char* address, const char* port) {
  const struct sockaddr_in name = {
      .sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(port)), .sin_addr.s_addr = inet_addr(address)};
  const int fd = socket(AF_INET, SOCK_STREAM, 0), room = 8 << 20;
  setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room);
  if (bind(fd, (const struct sockaddr*)&name, sizeof name) == 0 && listen(fd, 5) == 0) return fd;
  perror("listening");
  exit(1);
}

static int confine(const char* how) {
  if (strcmp(how, "nobody") == 0) return setgid(NOBODY) != 0 || setuid(NOBODY) != 0;
  return chroot(how) != 0 || chdir("/") != 0;
}

static void await_bytes(int fd, int bytes) {
  for (int there = 0; there < bytes;) {
    poll(NULL, 0, 5);
    if (ioctl(fd, FIONREAD, &there) != 0) return;
  }
}

static void send_back(int fd) {
  static char text[65536];
  for (ssize_t n; (n = recv(fd, text, sizeof text, 0)) > 0;)
    if (send(fd, text, (size_t)n, MSG_NOSIGNAL) != n) break;
  close(fd);
}

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  setvbuf(stdout, NULL, _IOLBF, 0);
  const int listener = listening(argv[3], argv[4]);
  if (confine(argv[1])) {
    perror(argv[1]);
    return 1;
  }
  puts("ready");
  for (int bytes = atoi(argv[2]);; bytes = 0) {
    const int fd = accept(listener, NULL, NULL);
    if (fd < 0) return 1;
    await_bytes(fd, bytes);
    send_back(fd);
  }
}
