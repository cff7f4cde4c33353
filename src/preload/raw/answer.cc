// Who answers a caught call: the library, if it concerns a socket or a process of ours, else the kernel.
#include <errno.h>
#include <linux/sched.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "os/program_memory.h"
#include "preload/acceleration.h"
#include "preload/calls/process/filter.h"
#include "preload/calls/process/process.h"
#include "preload/numbers.h"
#include "preload/raw/entry.h"
#include "preload/straight.h"
#include "preload/symbols.h"
#include "socket/api.h"

namespace bypass::preload::raw {
namespace {

/// A handler's calls are the kernel's: they may have interrupted a call of ours on another stack, and the order of
/// stacks would not show that (uses.h). Go's handlers use sockets in no way.
bool is_of_handler(const RawCall& call) {
  const auto& thread = socket::thread_signals;
  return thread.handlers != 0 && call.stack >= thread.handlers_low && call.stack < thread.handlers_high;
}

/// A new process. Go makes one only to execute a program, in its parent's memory (CLONE_VFORK) or in a copy. In the
/// copy other threads' locks, malloc's among them, may be held for ever. So it is treated as a vfork child, too.
bool makes_child(const RawCall& call) {
  switch (call.number) {
    case SYS_vfork:
    case SYS_fork:
      return true;
    case SYS_clone:
      return (call.arguments.at<unsigned long>(0) & CLONE_THREAD) == 0;
    case SYS_clone3: {
      decltype(clone_args::flags) flags = CLONE_THREAD;  // the first member
      (void)socket::copy_from_program(flags, call.arguments.at<const decltype(flags)*>(0));
      return (flags & CLONE_THREAD) == 0;
    }
    default:
      return false;
  }
}

Answer in_kernels_form(long result) {
  return {result == -1 ? -errno : result, kMade};
}

/// The child leaves the tables alone. What does not return must not be made on a stack that its parent uses, too.
Answer answer_child(const RawCall& call) {
  const RawArguments& a = call.arguments;
  switch (call.number) {
    case SYS_dup2:
      return in_kernels_form(::dup2(a.at<int>(0), a.at<int>(1)));
    case SYS_dup3:
      return in_kernels_form(::dup3(a.at<int>(0), a.at<int>(1), a.at<int>(2)));
    case SYS_execve:
      (void)before_exec({a.at<const char*>(0)}, a.at<char* const*>(2));
      return kMakeIt;
    default:
      return kMakeIt;
  }
}

/// Calls that matter before there is any socket of ours.
bool begins_something(const RawCall& call) {
  switch (call.number) {
    case SYS_socket:
    case SYS_epoll_create1:
    case SYS_clone:
    case SYS_clone3:
    case SYS_vfork:
    case SYS_fork:
    case SYS_execve:
    case SYS_exit_group:
    case SYS_io_uring_setup:
      return true;
    default:
      return concerns_filters(call.number);
  }
}

Answer answer(const RawCall& call) {
  if (is_of_handler(call)) return kMakeIt;
  if (goes_straight()) return thread_path.depth == 0 ? answer_child(call) : kMakeIt;
  if (makes_child(call)) {
    note_vfork();
    return kMakeIt;
  }
  if (call.number == SYS_exit) {
    before_thread_ends();
    return kMakeIt;
  }
  const auto result = answer_by_number(call.number, call.arguments);
  return result.has_value() ? in_kernels_form(*result) : kMakeIt;
}

}  // namespace

extern "C" [[gnu::used, gnu::visibility("hidden")]] Answer bypass_answer_raw_call(const RawCall& call) {
  note_stack_of_thread();
  if (!has_started() && !begins_something(call)) return kMakeIt;
  const KeepErrno keep;
  return answer(call);
}

}  // namespace bypass::preload::raw
