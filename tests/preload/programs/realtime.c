/* Two threads of real-time priorities on one processor: the lower one is in the middle of a call that sets the library
 * up when the higher one makes the same call. What the higher one waits for has to sleep, or the lower one never goes
 * on. */
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "say.h"

extern void* __libc_malloc(size_t);

static sem_t go;
static __thread int wakes_the_other; /* at its next allocation */

static void wake_the_other(void) {
  if (!wakes_the_other) return;
  wakes_the_other = 0;
  sem_post(&go); /* the higher one has the processor at once */
}

void* malloc(size_t size) {
  wake_the_other();
  return __libc_malloc(size);
}

static void* call(void* argument) {
  const int connects = *(int*)argument;
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = own_address()};
  if (connects) connect(fd, (struct sockaddr*)&address, sizeof address);
  return (void*)(long)close(fd);
}

static void* lower(void* argument) {
  wakes_the_other = 1;
  void* result = call(argument);
  wake_the_other(); /* nothing was allocated, as on the kernel */
  return result;
}

static void* higher(void* argument) {
  while (sem_wait(&go) != 0) {
  }
  return call(argument);
}

static int make(pthread_t* thread, int priority, void* (*body)(void*), int* argument) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setinheritsched(&attributes, PTHREAD_EXPLICIT_SCHED);
  pthread_attr_setschedpolicy(&attributes, SCHED_RR);
  pthread_attr_setschedparam(&attributes, &(struct sched_param){priority});
  return pthread_create(thread, &attributes, body, argument);
}

int main(void) {
  alarm(10);
  cpu_set_t all, one;
  CPU_ZERO(&one);
  sched_getaffinity(0, sizeof all, &all);
  for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; cpu++)
    if (CPU_ISSET(cpu, &all)) CPU_SET(cpu, &one);
  sched_setaffinity(0, sizeof one, &one);
  sem_init(&go, 0, 0);
  for (int connects = 0; connects < 2; connects++) {
    pthread_t threads[2];
    if (make(&threads[0], 2, higher, &connects) != 0 || make(&threads[1], 1, lower, &connects) != 0) {
      puts("no real-time priority is to be had");
      fflush(stdout);
      _exit(0);
    }
    for (int i = 0; i < 2; i++) {
      void* result = NULL;
      pthread_join(threads[i], &result);
      say(connects ? "connected" : "made", (long)result);
    }
  }
  return 0;
}
