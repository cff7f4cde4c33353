// Who answers a caught call: the library, if it concerns a socket or a process of ours, else the kernel.
#include <errno.h>
#include <linux/sched.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "preload/acceleration.h"
#include "preload/calls/process/filter.h"
#include "preload/calls/process/process.h"
#include "preload/raw/entry.h"
#include "preload/straight.h"
#include "preload/symbols.h"
#include "preload/uses.h"
#include "socket/api.h"

namespace bypass::preload::raw {
namespace {

/// A handler's calls are the kernel's: they may have interrupted a call of ours on another stack, and the order of
/// stacks would not show that (uses.h). Go's handlers use sockets in no way.
bool is_of_handler(const RawCall& call) {
  const auto& thread = socket::thread_signals;
  return thread.handlers != 0 && call.stack >= thread.handlers_low && call.stack < thread.handlers_high;
}

/// The child then runs in this memory, while the calling thread waits.
bool makes_vfork_child(const RawCall& call) {
  if (call.number == SYS_vfork) return true;
  constexpr unsigned long kVfork = CLONE_VM | CLONE_VFORK;
  unsigned long flags = 0;
  if (call.number == SYS_clone) flags = call.arguments.at<unsigned long>(0);
  if (call.number == SYS_clone3) flags = call.arguments.at<const clone_args*>(0)->flags;
  return (flags & (kVfork | CLONE_THREAD)) == kVfork;
}

Answer in_kernels_form(long result) {
  return {result == -1 ? -errno : result, kMade};
}

/// The child of such a call. It leaves the tables alone, and what does not return must not be made on a stack that its
/// parent uses, too.
Answer answer_vfork_child(const RawCall& call) {
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
  if (goes_straight()) return thread_path.depth == 0 ? answer_vfork_child(call) : kMakeIt;
  if (makes_vfork_child(call)) {
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
  if (!has_started() && !begins_something(call)) return kMakeIt;
  const KeepErrno keep;
  note_stack_of_thread();
  return answer(call);
}

}  // namespace bypass::preload::raw
