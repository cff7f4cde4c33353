/* Closing under another thread's call, cancellation, many threads on one table. Results only. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "asleep.h"
#include "connection.h"
#include "say.h"

static atomic_int waits; /* the thread that is about to wait; 0: it has not begun */

static void await_waiter(void) {
  while (atomic_load(&waits) == 0) sched_yield();
  await_sleep(getpid(), atomic_load(&waits));
}

static void* reader(void* number) {
  char buffer[8];
  atomic_store(&waits, (int)gettid());
  ssize_t got = read((int)(long)number, buffer, sizeof(buffer));
  return (void*)got;
}

static void* poller(void* number) {
  struct pollfd set[2] = {{(int)(long)number, POLLIN, 0}, {0, 0, 0}};
  atomic_store(&waits, (int)gettid());
  return (void*)(long)poll(set, 1, 5000);
}

/* As on Linux: the call goes on with the object; the number is gone at once. */
static void close_under(const char* name, void* (*body)(void*)) {
  int a, b;
  void* result;
  pthread_t thread;
  connect_both(&a, &b);
  atomic_store(&waits, 0);
  pthread_create(&thread, NULL, body, (void*)(long)b);
  await_waiter();
  TRY(close(b));
  TRY(write(b, "x", 1));
  TRY(write(a, "late", 4));
  pthread_join(thread, &result);
  printf("%s: %ld\n", name, (long)result);
  /* The last user has left: the end reaches us (with RST, if the bytes were not read). */
  char byte;
  TRY(recv(a, &byte, 1, 0) <= 0);
  TRY(close(a));
}

static void cleanup(void* cleaned) { *(int*)cleaned = 1; }

static void* cancelled(void* argument) {
  int* pair = argument;
  char buffer[8];
  atomic_store(&waits, (int)gettid());
  pthread_cleanup_push(cleanup, pair + 1);
  read(pair[0], buffer, sizeof(buffer));
  pthread_cleanup_pop(0);
  return NULL;
}

static void cancel(void) {
  int a, b;
  connect_both(&a, &b);
  int pair[2] = {b, 0};
  pthread_t thread;
  void* result;
  atomic_store(&waits, 0);
  pthread_create(&thread, NULL, cancelled, pair);
  await_waiter();
  pthread_cancel(thread);
  pthread_join(thread, &result);
  printf("cancelled %d cleaned %d\n", result == PTHREAD_CANCELED, pair[1]);
  TRY(close(b));
  char byte;
  TRY(recv(a, &byte, 1, 0));
  close(a);
}

static void* churn(void* argument) {
  (void)argument;
  long bad = 0;
  for (int i = 0; i < 200; i++) {
    int a, b;
    char buffer[4];
    connect_both(&a, &b);
    int copy = dup(a);
    bad += write(copy, "abcd", 4) != 4;
    close(a);
    bad += read(b, buffer, 4) != 4;
    close(copy);
    bad += read(b, buffer, 4) != 0;
    close(b);
  }
  return (void*)bad;
}

static void many(void) {
  pthread_t threads[4];
  long bad = 0;
  for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, churn, NULL);
  for (int i = 0; i < 4; i++) {
    void* result;
    pthread_join(threads[i], &result);
    bad += (long)result;
  }
  printf("churn: %ld bad\n", bad);
}

/* Descriptors above FD_SETSIZE, above the table's near part, and none left. */
static void numbers(void) {
  int a, b;
  connect_both(&a, &b);
  struct rlimit limit;
  getrlimit(RLIMIT_NOFILE, &limit);
  rlim_t soft = limit.rlim_cur;
  limit.rlim_cur = limit.rlim_max < 300000 ? limit.rlim_max : 300000;
  setrlimit(RLIMIT_NOFILE, &limit);
  int high = (int)limit.rlim_cur - 1;
  TRY(dup2(a, 1500));
  TRY(dup2(a, high) == high);
  TRY(write(1500, "x", 1));
  TRY(write(high, "y", 1));
  struct pollfd set[2] = {{b, POLLIN, 0}, {high, POLLOUT, 0}};
  TRY(poll(set, 2, 1000));
  char buffer[4];
  TRY(recv(b, buffer, 2, MSG_WAITALL));
  TRY(close(1500));
  TRY(close_range(1400, 0x7fffffff, 0));
  TRY(write(high, "z", 1));
  limit.rlim_cur = (rlim_t)b + 1;
  setrlimit(RLIMIT_NOFILE, &limit);
  while (dup(0) >= 0) {
  }
  TRY(socket(AF_INET, SOCK_STREAM, 0));
  TRY(dup(a));
  limit.rlim_cur = soft;
  setrlimit(RLIMIT_NOFILE, &limit);
  TRY(write(a, "end", 3));
  TRY(recv(b, buffer, 3, MSG_WAITALL));
}

int main(void) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  close_under("read", reader);
  close_under("poll", poller);
  cancel();
  many();
  numbers();
  return 0;
}
