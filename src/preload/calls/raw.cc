// System calls by their number: if the call concerns a socket of ours, the numbers whose functions we interpose are
// handled as those functions. They come from syscall(2), and from the instructions that preload/raw catches.
#include "preload/calls/raw.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "os/program_memory.h"
#include "preload/acceleration.h"
#include "preload/calls/process/credentials.h"
#include "preload/calls/process/filter.h"
#include "preload/calls/process/process.h"
#include "preload/calls/transfer/transfer.h"
#include "preload/escape.h"
#include "preload/numbers.h"
#include "preload/straight.h"
#include "preload/symbols.h"
#include "runtime/host.h"

namespace bypass::preload {
namespace {

using Arguments = RawArguments;

// Calls an exported function of ours (these names are our own exports) with the words as arguments.
template <typename R, typename... A, std::size_t... I>
long call_words(R (*function)(A...), const Arguments& arguments, std::index_sequence<I...>) {
  return static_cast<long>(function(arguments.at<A>(static_cast<int>(I))...));
}
template <typename R, typename... A>
long call(R (*function)(A...), const Arguments& arguments) {
  return call_words(function, arguments, std::index_sequence_for<A...>{});
}

long call_fcntl(const Arguments& a) {
  return ::fcntl(a.at<int>(0), a.at<int>(1), a.at<void*>(2));
}

long call_ioctl(const Arguments& a) {
  return ::ioctl(a.at<int>(0), a.at<unsigned long>(1), a.at<void*>(2));
}

long make_fork(long number, const Arguments& a) {
  const bool goes = number == SYS_clone && (a.word[0] & CLONE_NEWNET) != 0;
  goes ? before_fork_to_new_network() : before_fork();
  runtime::await_beginning_threads();
  long child = real.syscall(number, a.word[0], a.word[1], a.word[2], a.word[3], a.word[4], a.word[5]);
  child == 0 ? after_fork_in_child() : after_fork_in_parent(static_cast<int>(child));
  return child;
}

// Calls that make or end numbers, or make, end or move the process, whatever their first argument is.
bool is_lifecycle_call(long number, const Arguments& a) {
  switch (number) {
    case SYS_socket:
    case SYS_close:  // the library's own descriptors are not the program's to close
    case SYS_close_range:
    case SYS_epoll_create1:
    case SYS_dup2:
    case SYS_dup3:
    case SYS_execve:
    case SYS_exit:
    case SYS_exit_group:
    case SYS_fork:
    case SYS_unshare:
    case SYS_setns:
      return true;
    case SYS_clone:
      return (a.word[0] & CLONE_VM) == 0 && a.word[1] == 0;
    default:
      return false;
  }
}

long call_lifecycle(long number, const Arguments& a) {
  switch (number) {
    case SYS_socket:
      return call(::socket, a);
    case SYS_close:
      return call(::close, a);
    case SYS_close_range:
      return ::close_range(a.at<unsigned>(0), a.at<unsigned>(1), a.at<int>(2));
    case SYS_epoll_create1:
      return call(::epoll_create1, a);
    case SYS_dup2:
      return call(::dup2, a);
    case SYS_dup3:
      return call(::dup3, a);
    case SYS_execve:
      return call(::execve, a);
    case SYS_unshare:
      return call(::unshare, a);
    case SYS_setns:
      return call(::setns, a);
    case SYS_exit_group:
      ::_exit(a.at<int>(0));
    case SYS_exit:
      before_thread_ends();
      return real.syscall(number, a.word[0]);
    default:
      return make_fork(number, a);
  }
}

// Transfers and other calls on a socket or a set of ours. False: a number that we do not interpose.
bool call_tracked(long number, const Arguments& a, long& result) {
  switch (number) {
#define BYPASS_CASE(name)     \
  case SYS_##name:            \
    result = call(::name, a); \
    return true;
    BYPASS_CASE(close)
    BYPASS_CASE(dup)
    BYPASS_CASE(bind)
    BYPASS_CASE(listen)
    BYPASS_CASE(accept)
    BYPASS_CASE(accept4)
    BYPASS_CASE(connect)
    BYPASS_CASE(shutdown)
    BYPASS_CASE(getsockname)
    BYPASS_CASE(getpeername)
    BYPASS_CASE(getsockopt)
    BYPASS_CASE(setsockopt)
    BYPASS_CASE(read)
    BYPASS_CASE(write)
    BYPASS_CASE(readv)
    BYPASS_CASE(writev)
    BYPASS_CASE(recvfrom)
    BYPASS_CASE(recvmsg)
    BYPASS_CASE(recvmmsg)
    BYPASS_CASE(sendto)
    BYPASS_CASE(sendmsg)
    BYPASS_CASE(sendmmsg)
    BYPASS_CASE(epoll_wait)
    BYPASS_CASE(epoll_pwait)
    BYPASS_CASE(epoll_pwait2)
#undef BYPASS_CASE
    case SYS_preadv2:
      result = ::preadv2(a.at<int>(0), a.at<const iovec*>(1), a.at<int>(2), a.word[3], a.at<int>(5));
      return true;
    case SYS_pwritev2:
      result = ::pwritev2(a.at<int>(0), a.at<const iovec*>(1), a.at<int>(2), a.word[3], a.at<int>(5));
      return true;
    case SYS_fcntl:
      result = call_fcntl(a);
      return true;
    case SYS_ioctl:
      result = call_ioctl(a);
      return true;
    default:
      return false;
  }
}

// Calls of sockets, which may concern us whatever their descriptor is: connections of a listener of the kernel's may
// move to shared memory, messages may carry sockets of ours, and a relay may have been asked.
bool is_call_of_sockets(long number) {
  switch (number) {
    case SYS_listen:
    case SYS_accept:
    case SYS_accept4:
    case SYS_connect:
    case SYS_getsockname:
    case SYS_getpeername:
    case SYS_recvmsg:
    case SYS_recvmmsg:
    case SYS_sendmsg:
    case SYS_sendmmsg:
      return true;
    default:
      return false;
  }
}

// Calls of two descriptors. Either may be a socket of ours.
bool call_of_two(long number, const Arguments& a, long& result) {
  switch (number) {
    case SYS_sendfile:
      if (!is_tracked(a.at<int>(0)) && !is_tracked(a.at<int>(1))) return false;
      result = call(::sendfile, a);
      return true;
    case SYS_splice:
      if (!is_tracked(a.at<int>(0)) && !is_tracked(a.at<int>(2))) return false;
      result = call(::splice, a);
      return true;
    default:
      return false;
  }
}

// pselect() in the kernel's form: the mask comes with its size.
struct MaskAndSize {
  const sigset_t* mask;
  std::size_t size;
};

long call_pselect(const Arguments& a) {
  const auto* const given = a.at<const MaskAndSize*>(5);
  MaskAndSize mask{};
  if (given != nullptr && !socket::copy_from_program(mask, given)) return refused(-EFAULT);
  return ::pselect(a.at<int>(0), a.at<fd_set*>(1), a.at<fd_set*>(2), a.at<fd_set*>(3), a.at<const timespec*>(4),
                   mask.mask);
}

bool call_waiting(long number, const Arguments& a, long& result) {
  switch (number) {
    case SYS_epoll_ctl:
      result = call(::epoll_ctl, a);
      return true;
    case SYS_poll:
      result = call(::poll, a);
      return true;
    case SYS_ppoll:
      result = call(::ppoll, a);
      return true;
    case SYS_select:
      result = call(::select, a);
      return true;
    case SYS_pselect6:
      result = call_pselect(a);
      return true;
    default:
      return false;
  }
}

}  // namespace

std::optional<long> answer_by_number(long number, const RawArguments& a) {
  long result = 0;
  if (number == SYS_io_uring_setup) {
    const long ring = real.syscall(number, a.word[0], a.word[1], a.word[2], a.word[3], a.word[4], a.word[5]);
    if (ring >= 0 && !goes_straight()) note_io_uring("syscall");
    return ring;
  }
  if (concerns_filters(number)) before_filter_call(number, a.word[0], a.word[1], a.word[2]);
  if (has_started() && changes_rights(number) && !goes_straight()) return change_rights_by_number(number, a.word);
  if (goes_straight()) return std::nullopt;
  if (is_lifecycle_call(number, a)) return call_lifecycle(number, a);
  if (fd_table.end() == 0) return std::nullopt;
  const bool may_concern_us = is_tracked(a.at<int>(0)) || is_call_of_sockets(number);
  if (may_concern_us && call_tracked(number, a, result)) return result;
  if (call_of_two(number, a, result)) return result;
  if (call_waiting(number, a, result)) return result;
  return std::nullopt;
}

namespace {

// Until there is a socket of ours, only calls matter that make one, or that let others read it.
BYPASS_EXPORT(long, syscall, (long number, long a, long b, long c, long d, long e, long f)) {
  if (!has_started() && number != SYS_socket && number != SYS_io_uring_setup && !concerns_filters(number)) [[likely]]
    return real.syscall(number, a, b, c, d, e, f);
  const std::optional<long> answer = answer_by_number(number, {{a, b, c, d, e, f}});
  return answer.has_value() ? *answer : real.syscall(number, a, b, c, d, e, f);
}

}  // namespace
}  // namespace bypass::preload
