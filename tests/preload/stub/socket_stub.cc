// A stand-in for src/socket under src/preload: every object is a kernel socket of its own, numbered high above
// the program's, and what lies under the program's number is an unconnected shadow, as with the real layer. A
// call that escapes the interposers therefore fails visibly.
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <unistd.h>

#include <atomic>
#include <memory>

#include "os/program_memory.h"
#include "preload/stub/stub.h"
#include "socket/api.h"

namespace bypass::socket {

struct File {
  FileKind kind = FileKind::kStream;
  int io = -1;  // where the work is done; an epoll set's is its number's own
  int domain = 0;
  std::atomic<int> references{1};
  bool shadowed = false;
};

const Kernel* kernel = nullptr;
constinit thread_local ThreadSignals thread_signals;
void (*redeliver_signals)() = nullptr;
void end_sleep() {}
std::uintptr_t forget_left_handlers(std::uintptr_t) {
  thread_signals.handlers = 0;
  return UINTPTR_MAX;
}
void drop_left(std::uintptr_t) {}
enum class Inherited : std::uint8_t { kNot };
Inherited inherited_as(const File&);  // socket/family/next_image.h, which knows another File, as does
Inherited inherited_as(const File&) {
  return Inherited::kNot;
}
bool refers_to_wire();    // socket/family/kin.h
bool is_pumpable(File&);  // socket/family/pumped.h
bool refers_to_wire() {
  return false;
}
void forbid_pump(File&);
bool is_pumpable(File&) {
  return false;
}
void forbid_pump(File&) {}

namespace {

constexpr int kBase = 600;
std::atomic<int> live{0};

long answer(long result) {
  return result < 0 ? -errno : result;
}

File* make(FileKind kind, int io, int domain) {
  auto* file = new File;
  file->kind = kind;
  file->io = io;
  file->domain = domain;
  preload_stub::own(io, true);
  live++;
  return file;
}

}  // namespace

bool is_our_kind(int, int, int) {
  return false;
}

File* open_socket(int fd, int domain, int type, int) {
  int base_type = type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (base_type != SOCK_STREAM && base_type != SOCK_DGRAM) return nullptr;
  int io = kernel->socket(domain, type | SOCK_CLOEXEC, 0);
  int high = kernel->fcntl(io, F_DUPFD_CLOEXEC, kBase);
  kernel->close(io);
  (void)fd;
  return make(base_type == SOCK_STREAM ? FileKind::kStream : FileKind::kDatagram, high, domain);
}

File* open_epoll(int fd) {
  return make(FileKind::kEpoll, kernel->fcntl(fd, F_DUPFD_CLOEXEC, kBase), 0);
}

void note_number(File&, int) {}
void retain(File& file) {
  file.references++;
}

int release(File& file, int) {
  if (--file.references > 0) return 0;
  preload_stub::own(file.io, false);
  kernel->close(file.io);
  live--;
  delete &file;
  return 0;
}

FileKind kind(const File& file) {
  return file.kind;
}

// Option 4711 of SOL_SOCKET decides for the kernel: the shadow serves from then on.
void number_closes(File&, int) {}
void give_number_to_kernel(File&) {}
bool decided_for_kernel(const File& file) {
  return file.shadowed;
}

long bind(File& file, int, const sockaddr* address, socklen_t length) {
  return answer(kernel->bind(file.io, address, length));
}
long listen(File& file, int, int backlog) {
  file.kind = FileKind::kListener;
  return answer(kernel->listen(file.io, backlog));
}
long connect(File& file, int, const sockaddr* address, socklen_t length) {
  return answer(kernel->connect(file.io, address, length));
}

bool adopts_accepted() {
  return false;
}

File* adopt_accepted(int, const sockaddr*, socklen_t, int) {
  return nullptr;
}

void leave_shared_memory(File&, Wait) {}
bool spare_numbers() {
  return false;
}

void ask_to_leave_shared_memory(File&) {}

bool is_in_kernel(const File&) {
  return false;
}

int why_not_kernel(File&, Transfer) {
  return ENOSYS;
}

void end_shared_memory() {}

bool give_up(File&) {
  return false;
}

int shadow_placeholder(int domain) {
  static const int placeholder = [domain] {
    int low = kernel->socket(domain, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int high = kernel->fcntl(low, F_DUPFD_CLOEXEC, kBase);
    kernel->close(low);
    preload_stub::own(high, true);
    return high;
  }();
  return placeholder;
}

long accept(File& file, int, sockaddr* address, socklen_t* length, int flags, Accepted& out) {
  int io = kernel->accept4(file.io, address, length, flags | SOCK_CLOEXEC);
  if (io < 0) return -errno;
  int high = kernel->fcntl(io, F_DUPFD_CLOEXEC, kBase);
  kernel->close(io);
  out.file = make(FileKind::kStream, high, file.domain);
  const int duplicate = (flags & SOCK_CLOEXEC) != 0 ? F_DUPFD_CLOEXEC : F_DUPFD;
  out.number = kernel->fcntl(shadow_placeholder(file.domain), duplicate, 0);
  if (out.number >= 0) return 0;
  const long failed = -errno;
  release(*out.file, -1);
  return failed;
}

long shutdown(File& file, int, int how) {
  return answer(kernel->shutdown(file.io, how));
}
long local_name(File& file, int, sockaddr* address, socklen_t* length) {
  return answer(kernel->getsockname(file.io, address, length));
}
long peer_name(File& file, int, sockaddr* address, socklen_t* length) {
  return answer(kernel->getpeername(file.io, address, length));
}

namespace {

msghdr header_of(const Message& message) {
  msghdr header{};
  header.msg_name = message.name;
  header.msg_namelen = message.name_length;
  header.msg_iov = const_cast<iovec*>(message.data.data());
  header.msg_iovlen = message.data.size();
  header.msg_control = message.control;
  header.msg_controllen = message.control_length;
  return header;
}

}  // namespace

void note_timeout_below_zero() {}

std::optional<long> receive_at_once(File&, std::span<const iovec>, int) {
  return std::nullopt;
}
std::optional<long> send_at_once(File&, std::span<const iovec>, int) {
  return std::nullopt;
}

long receive(File& file, int, Message& message, int flags) {
  msghdr header = header_of(message);
  long result = answer(kernel->recvmsg(file.io, &header, flags));
  if (result < 0) return result;
  message.name_length = header.msg_namelen;
  message.control_length = header.msg_controllen;
  message.flags = header.msg_flags;
  return result;
}

long receive_header(File& file, int fd, msghdr& header, int flags) {
  Message message = message_of(header);
  const long result = receive(file, fd, message, flags);
  return result < 0 || report(message, header, flags) ? result : -EFAULT;
}

long send(File& file, int, const Message& message, int flags, bool& sigpipe) {
  msghdr header = header_of(message);
  long result = answer(kernel->sendmsg(file.io, &header, flags | MSG_NOSIGNAL));
  sigpipe = result == -EPIPE && (flags & MSG_NOSIGNAL) == 0;
  return result;
}

long receive_many(File& file, int fd, mmsghdr* messages, unsigned count, int flags, timespec*) {
  unsigned done = 0;
  for (; done < count; done++) {
    msghdr& header = messages[done].msg_hdr;
    int more = done > 0 && (flags & MSG_WAITFORONE) != 0 ? MSG_DONTWAIT : 0;
    long result = receive_header(file, fd, header, (flags & ~MSG_WAITFORONE) | more);
    if (result < 0) return done > 0 ? static_cast<long>(done) : result;
    messages[done].msg_len = static_cast<unsigned>(result);
  }
  return done;
}

long send_many(File& file, int fd, mmsghdr* messages, unsigned count, int flags, bool& sigpipe) {
  unsigned done = 0;
  for (; done < count; done++) {
    msghdr& header = messages[done].msg_hdr;
    long result = send(file, fd, message_of(header), flags, sigpipe);
    if (result < 0) return done > 0 ? static_cast<long>(done) : result;
    messages[done].msg_len = static_cast<unsigned>(result);
  }
  return done;
}

bool has_splice(const File&) {
  return false;
}
long splice_to_pipe(File&, int, std::size_t, unsigned, bool&) {
  return -EINVAL;
}
long splice_from_pipe(File&, int, std::size_t, unsigned, bool&) {
  return -EINVAL;
}
long send_file(File& file, int, int in_fd, off_t* offset, std::size_t count, bool&) {
  return answer(::syscall(SYS_sendfile, file.io, in_fd, offset, count));
}

long get_option(File& file, int, int level, int name, void* value, socklen_t* length) {
  return answer(kernel->getsockopt(file.io, level, name, value, length));
}
long set_option(File& file, int fd, int level, int name, const void* value, socklen_t length) {
  if (level == SOL_SOCKET && name == 4711) {
    file.shadowed = true;
    return 0;
  }
  (void)fd;
  return answer(kernel->setsockopt(file.io, level, name, value, length));
}
std::optional<long> control(File& file, int, unsigned long request, void* argument) {
  if (request == FIOCLEX || request == FIONCLEX) return std::nullopt;
  return answer(kernel->ioctl(file.io, request, argument));
}
long status_flags(File& file, int) {
  return answer(kernel->fcntl(file.io, F_GETFL));
}
bool sets_async(int command) {
  return command == F_SETOWN || command == F_SETOWN_EX || command == F_SETSIG;
}
long set_async(File& file, int, int command, void* argument) {
  return answer(kernel->fcntl(file.io, command, argument));
}
long set_status_flags(File& file, int, int flags) {
  return answer(kernel->fcntl(file.io, F_SETFL, flags));
}

long poll(std::span<PollItem> items, Duration timeout, const sigset_t* mask) {
  std::unique_ptr<pollfd[]> set(new pollfd[items.size()]);
  for (std::size_t i = 0; i < items.size(); i++) {
    set[i] = {items[i].file != nullptr ? items[i].file->io : items[i].fd, items[i].events, 0};
  }
  timespec limit{timeout.count() / 1'000'000'000, timeout.count() % 1'000'000'000};
  long result = answer(kernel->ppoll(set.get(), items.size(), timeout < Duration(0) ? nullptr : &limit, mask));
  for (std::size_t i = 0; i < items.size(); i++) items[i].revents = set[i].revents;
  return result;
}

long epoll_control(File& epoll, int, int operation, int fd, File* target, epoll_event* event) {
  return answer(kernel->epoll_ctl(epoll.io, operation, target != nullptr ? target->io : fd, event));
}

void note_unseen_items(File&) {}
bool is_kernels_alone(const File&) {
  return false;
}
KernelSleep::KernelSleep(File& epoll, bool) : set_(reinterpret_cast<Epoll&>(epoll)) {}
std::optional<int> KernelSleep::told_of_calls(int, epoll_event*, int count) {
  return count;
}
long epoll_wait(File& epoll, int, epoll_event* events, int count, Duration timeout, const sigset_t* mask) {
  int limit = timeout < Duration(0) ? -1 : static_cast<int>(timeout / std::chrono::milliseconds(1));
  return answer(kernel->epoll_pwait(epoll.io, events, count, limit, mask));
}

}  // namespace bypass::socket

namespace bypass::preload_stub {

int live_objects() {
  return socket::live;
}

}  // namespace bypass::preload_stub
