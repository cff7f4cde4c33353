#include "preload/escape.h"

#include <errno.h>
#include <fcntl.h>

#include <atomic>

#include "preload/acceleration.h"
#include "preload/numbers.h"
#include "preload/pumped.h"
#include "preload/straight.h"
#include "preload/symbols.h"
#include "preload/uses.h"
#include "runtime/process.h"

namespace bypass::preload {

void note_escape(int fd, observe::Reason reason, const char* detail) {
  KeepErrno keep;
  runtime::record_why(fd, static_cast<unsigned>(reason), detail);
}

int refuse_without_memory(int fd, int error, const char* detail) {
  note_escape(fd, observe::Reason::kNoMemory, detail);
  real.close(fd);
  errno = error;
  return -1;
}

namespace {

std::atomic<const char*> io_uring_made{nullptr};  // the way it was made
std::atomic<bool> left_by_handler{false};

}  // namespace

bool goes_back_to_kernel(int fd) {
  Use use(fd);
  if (!use) return !is_tracked(fd);  // a pumped one, which is the kernel's by now
  socket::leave_shared_memory(*use);
  return socket::is_in_kernel(*use);
}

int let_libc_transfer(int fd, socket::Transfer transfer) {
  if (!is_tracked(fd)) return 0;
  Use use(fd);
  if (!use) return 0;
  socket::leave_shared_memory(*use);
  return socket::why_not_kernel(*use, transfer);
}

void note_io_uring(const char* detail) {
  KeepErrno keep;
  socket::end_shared_memory();
  io_uring_made.store(detail);
  if (has_started()) report_early_escapes();
}

void note_left_by_handler() {
  left_by_handler = true;
  if (has_started()) report_early_escapes();
}

void report_early_escapes() {
  if (left_by_handler.exchange(false))
    note_escape(-1, observe::Reason::kInHandler, "a socket or an epoll set of its own making is the kernel's");
  if (const char* const detail = io_uring_made.load()) note_escape(-1, observe::Reason::kEscapedIoUring, detail);
}

void note_given_away(int fd) {
  if (!goes_straight()) {
    if (is_tracked(fd)) (void)goes_back_to_kernel(fd);
    return;
  }
  if (thread_path.depth != 0) return;  // our own work, not a vfork child's
  const Entry entry = fd_table.load(fd);
  if (entry.is_socket()) socket::ask_to_leave_shared_memory(*entry.file());
}

void note_vfork_exec() {
  for (int fd = 0, end = fd_table.end(); fd < end; fd++) {
    if (!fd_table.load(fd).is_socket()) continue;
    const int flags = real.fcntl(fd, F_GETFD);
    if (flags >= 0 && (flags & FD_CLOEXEC) == 0) note_given_away(fd);
  }
}

bool note_exec(const char* program) {
  KeepErrno keep;
  pump_inherited_numbers();
  bool any = false;
  for (int fd = 0, end = fd_table.end(); fd < end; fd++) {
    if (!fd_table.load(fd).is_socket()) continue;
    int flags = real.fcntl(fd, F_GETFD);
    if (flags < 0 || (flags & FD_CLOEXEC) != 0 || goes_back_to_kernel(fd)) continue;
    note_escape(fd, observe::Reason::kEscapedExec, program);
    any = true;
  }
  return any;
}

}  // namespace bypass::preload
