// ringed ADDRESS PORT: a client of redis. It asks 200 times by send() and recv(), and says "calls". At a byte on
// standard input it makes an io_uring, has that read one more answer, and says "ring" (io_uring_setup(2)). Then it
// waits for the end of standard input.
#include <arpa/inet.h>
#include <linux/io_uring.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char kQuestion[] = "PING\r\n", kAnswer[] = "+PONG\r\n";

static void need(int good, const char* what) {
  if (good) return;
  perror(what);
  exit(1);
}

static void* map(int ring, size_t len, off_t which) {
  void* const at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, which);
  need(at != MAP_FAILED, "mmap");
  return at;
}

// One entry, submitted and waited for; returns what the read would have.
static int read_by_ring(int fd, void* buffer, unsigned len) {
  struct io_uring_params p = {0};
  const int ring = (int)syscall(SYS_io_uring_setup, 4, &p);
  need(ring >= 0, "io_uring_setup");
  char* const sq = map(ring, p.sq_off.array + p.sq_entries * sizeof(uint32_t), IORING_OFF_SQ_RING);
  char* const cq = map(ring, p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe), IORING_OFF_CQ_RING);
  struct io_uring_sqe* const entry = map(ring, p.sq_entries * sizeof *entry, IORING_OFF_SQES);
  memset(entry, 0, sizeof *entry);
  entry->opcode = IORING_OP_READ;
  entry->fd = fd;
  entry->addr = (uintptr_t)buffer;
  entry->len = len;
  *(uint32_t*)(sq + p.sq_off.array) = 0;
  __atomic_store_n((uint32_t*)(sq + p.sq_off.tail), 1, __ATOMIC_RELEASE);
  need(syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) == 1, "io_uring_enter");
  return ((struct io_uring_cqe*)(cq + p.cq_off.cqes))->res;
}

static void ask(int fd) {
  need(send(fd, kQuestion, strlen(kQuestion), 0) == (ssize_t)strlen(kQuestion), "send");
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[2]))};
  need(inet_pton(AF_INET, argv[1], &to.sin_addr) == 1, "address");
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  need(connect(fd, (struct sockaddr*)&to, sizeof to) == 0, "connect");
  char buffer[64];
  const ssize_t whole = (ssize_t)strlen(kAnswer);
  for (int i = 0; i < 200; i++) {
    ask(fd);
    need(recv(fd, buffer, (size_t)whole, MSG_WAITALL) == whole, "recv");
  }
  puts("calls");
  fflush(stdout);
  if (read(0, buffer, 1) != 1) return 1;
  ask(fd);
  need(read_by_ring(fd, buffer, sizeof buffer) == whole && memcmp(buffer, kAnswer, (size_t)whole) == 0,
       "the ring's read");
  puts("ring");
  fflush(stdout);
  return read(0, buffer, 1) < 0;
}
