// A liburing as it may come with a program: of a name of its own, its system calls made by itself. As much as a ring's
// beginning takes.
#include <sys/syscall.h>

extern "C" int io_uring_queue_init(unsigned entries, void* params, unsigned) {
  long result;
  asm volatile("syscall" : "=a"(result) : "a"(SYS_io_uring_setup), "D"(entries), "S"(params) : "rcx", "r11", "memory");
  return static_cast<int>(result);
}
