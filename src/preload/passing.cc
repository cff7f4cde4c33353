#include "preload/passing.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include <atomic>
#include <optional>

#include "os/os.h"
#include "os/own/in_handler.h"
#include "os/program_memory.h"
#include "preload/acceleration.h"
#include "preload/calls/process/filter.h"
#include "preload/escape.h"
#include "preload/numbers.h"
#include "preload/pumped.h"
#include "preload/straight.h"
#include "preload/symbols.h"
#include "preload/uses.h"
#include "runtime/family/passing.h"
#include "socket/api.h"

namespace bypass::preload {

namespace {

constinit std::atomic<bool> g_takes_nothing{false};

/// Calls visit(place of a descriptor) for each descriptor that the message carries.
template <typename Visit>
void for_each_passed(msghdr& message, const Visit& visit) {
  const char* const end = static_cast<const char*>(message.msg_control) + message.msg_controllen;
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    char* const begin = reinterpret_cast<char*>(c);
    for (size_t at = CMSG_LEN(0); at + sizeof(int) <= c->cmsg_len && begin + at + sizeof(int) <= end; at += sizeof(int))
      visit(begin + at);
  }
}

int number_at(const char* place) {
  int fd;
  memcpy(&fd, place, sizeof fd);
  return fd;
}

bool carries_control(const msghdr* message) {
  constexpr std::size_t kMost = 1 << 20;  // far above net.core.optmem_max
  return message->msg_control != nullptr && message->msg_controllen != 0 && message->msg_controllen <= kMost &&
         socket::is_readable(message->msg_control, message->msg_controllen);
}

/// Whether one of ours is among the message's descriptors.
bool passes_ours(const msghdr* message) {
  if (fd_table.end() == 0 || !socket::is_readable(message, sizeof *message) || !carries_control(message)) return false;
  msghdr read = *message;
  bool any = false;
  for_each_passed(read, [&](const char* place) { any = any || is_tracked(number_at(place)); });
  return any;
}

/// A message that is about to be sent. Its descriptors are looked at, and some are replaced, in a copy.
class Outgoing {
 public:
  Outgoing(int channel, const msghdr& message) : header_(message) {
    const KeepErrno keep;
    const bool to_family = may_make_tickets() && runtime::is_read_by_family(channel);
    if (to_family) copy_control();
    for_each_passed(header_, [&](char* place) {
      const int fd = number_at(place);
      if (!is_tracked(fd) || goes_back_to_kernel(fd)) return;
      if (to_family && replace(place, fd)) return;
      pump_passed_number(fd);
      if (is_tracked(fd)) note_escape(fd, observe::Reason::kEscapedPassed, "SCM_RIGHTS");
    });
  }
  ~Outgoing() {
    const KeepErrno keep;
    for (const int ticket : tickets_) runtime::close_ticket(ticket, sent_);
  }
  Outgoing(const Outgoing&) = delete;
  Outgoing& operator=(const Outgoing&) = delete;

  [[nodiscard]] ssize_t send(int channel, int flags) {
    const ssize_t bytes = real.sendmsg(channel, &header_, flags);
    sent_ = bytes >= 0;
    return bytes;
  }

 private:
  static bool may_make_tickets() {
    return has_started() && !goes_straight() && !is_filtered() && may_make_sockets() && !g_takes_nothing.load();
  }

  void copy_control() {
    const auto* const control = static_cast<const char*>(header_.msg_control);
    control_.assign(control, control + header_.msg_controllen);
    header_.msg_control = control_.data();
  }

  bool replace(char* place, int fd) {
    const Use use(fd, Use::kAny);
    const int ticket = use ? runtime::make_ticket(*use, fd) : -1;
    if (ticket < 0) return false;
    tickets_.push_back(ticket);
    memcpy(place, &ticket, sizeof ticket);
    return true;
  }

  msghdr header_;
  std::vector<char> control_;
  std::vector<int> tickets_;
  bool sent_ = false;
};

}  // namespace

ssize_t send_passing(int fd, const msghdr* message, int flags) {
  if (!passes_ours(message)) [[likely]]
    return real.sendmsg(fd, message, flags);
  Outgoing outgoing(fd, *message);
  return outgoing.send(fd, flags);
}

// sendmmsg(2) makes the calls of sendmsg(2) one after the other, and tells of a failure only where it is the first.
int send_many_passing(int fd, mmsghdr* messages, unsigned count, int flags) {
  bool any = false;
  for (unsigned i = 0; i < count && fd_table.end() != 0 && !any; i++) {
    if (!socket::is_readable(&messages[i], sizeof messages[i])) break;
    any = passes_ours(&messages[i].msg_hdr);
  }
  if (!any) [[likely]]
    return real.sendmmsg(fd, messages, count, flags);
  const int before = errno;
  unsigned sent = 0;
  for (; sent < count && socket::is_readable(&messages[sent], sizeof messages[sent]); sent++) {
    const ssize_t bytes = send_passing(fd, &messages[sent].msg_hdr, flags);
    if (bytes < 0 && sent == 0) return -1;
    if (bytes < 0) break;
    if (!socket::copy_to_program(&messages[sent].msg_len, static_cast<unsigned>(bytes))) break;
  }
  if (sent == 0) return errno = EFAULT, -1;
  errno = before;
  return static_cast<int>(sent);
}

namespace {

void take(int fd) {
  drop_stale_number(fd);
  const auto taken = runtime::take_by_ticket(fd);
  if (!taken.has_value()) return;
  const int flags = real.fcntl(fd, F_GETFD);
  const bool put = real.dup3(taken->beneath, fd, (flags & FD_CLOEXEC) != 0 ? O_CLOEXEC : 0) >= 0;
  os::close(taken->beneath);
  if (taken->object != nullptr && !put) socket::release(*taken->object, -1);
  if (taken->object != nullptr && put && enter_number(fd, taken->object)) runtime::go_on_with(*taken, fd);
  runtime::settle(*taken);
}

}  // namespace

void take_passed(const msghdr& message) {
  if (message.msg_control == nullptr || message.msg_controllen == 0) [[likely]]
    return;
  if (!has_started() || goes_straight() || is_filtered() || g_takes_nothing.load()) return;
  const KeepErrno keep;
  msghdr read = message;
  for_each_passed(read, [](const char* place) { take(number_at(place)); });
}

void take_nothing() {
  g_takes_nothing.store(true);
  if (has_started()) runtime::take_nothing();
}

}  // namespace bypass::preload
