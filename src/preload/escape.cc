#include "preload/escape.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include <atomic>

#include "os/program_memory.h"
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

// If the kernel has the connection beneath, the connection goes back to it, for any process that gets the descriptor.
bool goes_back(int fd) {
  Use use(fd);
  if (!use) return !is_tracked(fd);  // a pumped one, which is the kernel's by now
  socket::leave_shared_memory(*use);
  return socket::is_in_kernel(*use);
}

}  // namespace

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

void note_passed_descriptors(const msghdr* message) {
  if (fd_table.end() == 0 || !socket::is_readable(message, sizeof *message)) return;
  if (message->msg_control == nullptr || message->msg_controllen == 0) return;
  constexpr std::size_t kMost = 1 << 20;  // far above net.core.optmem_max
  if (message->msg_controllen > kMost || !socket::is_readable(message->msg_control, message->msg_controllen)) return;
  auto* copy = const_cast<msghdr*>(message);
  for (cmsghdr* c = CMSG_FIRSTHDR(copy); c != nullptr; c = CMSG_NXTHDR(copy, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    for (size_t at = CMSG_LEN(0); at + sizeof(int) <= c->cmsg_len; at += sizeof(int)) {
      int fd;
      memcpy(&fd, reinterpret_cast<const char*>(c) + at, sizeof(fd));
      if (!is_tracked(fd) || goes_back(fd)) continue;
      pump_passed_number(fd);
      if (is_tracked(fd)) note_escape(fd, observe::Reason::kEscapedPassed, "SCM_RIGHTS");
    }
  }
}

void note_given_away(int fd) {
  if (!goes_straight()) {
    if (is_tracked(fd)) (void)goes_back(fd);
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
    if (flags < 0 || (flags & FD_CLOEXEC) != 0 || goes_back(fd)) continue;
    note_escape(fd, observe::Reason::kEscapedExec, program);
    any = true;
  }
  return any;
}

}  // namespace bypass::preload
