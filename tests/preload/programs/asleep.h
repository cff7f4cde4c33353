/* Whether a task of the program sleeps in a call that waits for descriptors: what stands in for a pause of some
 * milliseconds, which a busy machine makes too short. */
#pragma once
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The system call in which a task sleeps (proc_pid_syscall(5)); negative while it runs. */
static inline long call_of(int process, int task) {
  char name[64], text[256];
  snprintf(name, sizeof(name), "/proc/%d/task/%d/syscall", process, task);
  FILE* file = fopen(name, "r");
  if (file == NULL) return -1;
  const long call = fgets(text, sizeof(text), file) != NULL && text[0] != 'r' ? atol(text) : -1;
  fclose(file);
  return call;
}

/* Of the program's own call, or of one that the library makes for it. */
static inline int waits_for_descriptors(long call) {
  static const long kCalls[] = {SYS_read,    SYS_poll,       SYS_ppoll,       SYS_recvfrom,
                                SYS_recvmsg, SYS_epoll_wait, SYS_epoll_pwait, SYS_epoll_pwait2};
  for (size_t i = 0; i < sizeof(kCalls) / sizeof(kCalls[0]); i++)
    if (call == kCalls[i]) return 1;
  return 0;
}

/* The call in which it sleeps. */
static inline long await_sleep(int process, int task) {
  for (;; sched_yield()) {
    const long call = call_of(process, task);
    if (waits_for_descriptors(call)) return call;
  }
}
