#include "preload/pumped.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/auxv.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <span>

#include "observe/reasons.h"
#include "os/errno_map.h"
#include "os/net/address.h"
#include "os/net/unix_queue.h"
#include "os/os.h"
#include "os/program_memory.h"
#include "preload/calls/process/filter.h"
#include "preload/numbers.h"
#include "preload/straight.h"
#include "preload/symbols.h"
#include "runtime/family/pump/pump_process.h"
#include "runtime/family/rights/privilege.h"
#include "runtime/process.h"
#include "runtime/undisturbed.h"
#include "socket/family/pumped.h"

namespace bypass::preload {

constinit std::atomic<int> number_in_exchange{-1};

namespace {

/// One thread at a time exchanges what a number names.
pthread_mutex_t g_taking = PTHREAD_MUTEX_INITIALIZER;
/// … or looks at the options that are kept for connections.
pthread_mutex_t g_keeping = PTHREAD_MUTEX_INITIALIZER;

std::optional<socket::PumpName> read_name(int fd, NameCall call) {
  sockaddr_un name{};
  socklen_t length = sizeof name;
  if (call(fd, reinterpret_cast<sockaddr*>(&name), &length) != 0) return std::nullopt;
  return socket::read_pump_name(name, length);
}

std::optional<socket::PumpName> read_name_quietly(int fd, NameCall call) {
  const KeepErrno keep;
  return read_name(fd, call);
}

/// Of the program's end of a pair, which `fd` names. A program with more rights than its caller (AT_SECURE) believes no
/// name: the caller may have made the socket, and the library only passes its calls on.
std::optional<socket::PumpName> pump_name(int fd) {
  if (!may_ask_names()) return std::nullopt;
  const auto name = read_name(fd, real.getsockname);
  if (!name.has_value() || getauxval(AT_SECURE) != 0) return std::nullopt;
  const bool is_end = name->end == socket::PumpName::End::kPrograms || name->end == socket::PumpName::End::kListener;
  return is_end ? name : std::nullopt;
}

std::optional<socket::PumpName> pump_name_quietly(int fd) {
  const KeepErrno keep;
  return pump_name(fd);
}

/// A thread that goes straight, and not for our own work.
bool is_vfork_child() {
  return thread_path.depth == 0 && goes_straight();
}

/// A program may have as many descriptors as it is allowed: for a moment we take more.
class MoreNumbers {
 public:
  /// `fd` is one of the program's, which may have lowered its limit since.
  explicit MoreNumbers(int fd, rlim_t more = 8) {
    if (os::call(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, os::address(&before_)) != 0) return;
    if (before_.rlim_cur >= RLIM_INFINITY - more) return;
    const rlim_t wanted = std::max(before_.rlim_cur, static_cast<rlim_t>(fd)) + more;
    const rlimit now{wanted, std::max(before_.rlim_max, wanted)};  // the kernel knows who may have more than the most
    raised_ = os::call(SYS_prlimit64, 0, RLIMIT_NOFILE, os::address(&now), 0) == 0;
  }
  ~MoreNumbers() {
    if (raised_) os::call(SYS_prlimit64, 0, RLIMIT_NOFILE, os::address(&before_), 0);
  }
  MoreNumbers(const MoreNumbers&) = delete;
  MoreNumbers& operator=(const MoreNumbers&) = delete;

  explicit operator bool() const { return raised_; }

 private:
  rlimit before_{};
  bool raised_ = false;
};

/// Whether the kernel's socket has the number's place.
bool put_kernels_there(int fd, File& file, int flags) {
  const int end = runtime::fetch_pumped(file);
  if (end < 0) return false;
  if (const auto as = pump_name(end))
    runtime::record_why(fd, static_cast<unsigned>(observe::Reason::kPumped), as->remote, "");
  const bool put = real.dup3(end, fd, (flags & FD_CLOEXEC) != 0 ? O_CLOEXEC : 0) >= 0;
  os::close(end);
  return put;
}

/// Shown to who takes the number out of the table meanwhile, and waits (await_exchange_of()).
class Exchanging {
 public:
  explicit Exchanging(int fd) {
    number_in_exchange.store(fd, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  ~Exchanging() { number_in_exchange.store(-1, std::memory_order_release); }
  Exchanging(const Exchanging&) = delete;
  Exchanging& operator=(const Exchanging&) = delete;
};

/// Without a descriptor the number stays as it is, and the next call tries again.
void exchange(int fd, Entry entry) {
  const Exchanging exchanging(fd);
  if (fd_table.load(fd) != entry) return;
  const int flags = real.fcntl(fd, F_GETFD);
  if (flags < 0) return;
  if (!put_kernels_there(fd, *entry.file(), flags)) {
    const MoreNumbers more(fd);
    if (!more || !put_kernels_there(fd, *entry.file(), flags)) return;
  }
  if (fd_table.clear(fd, entry)) release_entry(entry, fd);
}

bool give_number(int fd, Entry entry, int end) {
  const Exchanging exchanging(fd);
  if (fd_table.load(fd) != entry) return false;
  const int flags = real.fcntl(fd, F_GETFD);
  if (flags < 0 || real.dup3(end, fd, (flags & FD_CLOEXEC) != 0 ? O_CLOEXEC : 0) < 0) return false;
  socket::give_number_to_kernel(*entry.file());
  if (fd_table.clear(fd, entry)) release_entry(entry, fd);
  return true;
}

}  // namespace

bool give_number_to(int fd, Entry entry, int end) {
  const KeepErrno keep;
  const runtime::Undisturbed undisturbed;
  pthread_mutex_lock(&g_taking);
  const bool given = give_number(fd, entry, end);
  pthread_mutex_unlock(&g_taking);
  return given;
}

std::optional<socket::PumpName> stand_in_name(int fd) {
  return pump_name_quietly(fd);
}

bool exchange_pumped_number(int fd, Entry entry) {
  if (is_vfork_child()) return false;
  const KeepErrno keep;
  const runtime::Undisturbed undisturbed;  // a handler's call would wait for the one that it stands on
  pthread_mutex_lock(&g_taking);
  exchange(fd, entry);
  pthread_mutex_unlock(&g_taking);
  return fd_table.load(fd) != entry;
}

void forget_taking_after_fork() {
  pthread_mutex_init(&g_taking, nullptr);  // another thread of the parent's may have been at it
  pthread_mutex_init(&g_keeping, nullptr);
  number_in_exchange = -1;
}

void await_exchange() {
  const runtime::Undisturbed undisturbed;
  pthread_mutex_lock(&g_taking);
  pthread_mutex_unlock(&g_taking);
}

void exchange_all_pumped() {
  for (int fd = 0, end = fd_table.end(); fd < end; fd++) (void)exchange_if_pumped(fd);
}

void forbid_pumps() {
  for (int fd = 0, end = fd_table.end(); fd < end; fd++) {
    const Entry entry = fd_table.load(fd);
    if (entry.is_socket() && !is_pumped(entry)) socket::forbid_pump(*entry.file());
    (void)exchange_if_pumped(fd);  // it may have been pumped just before
  }
}

bool has_moved_to_kernel(const Use& use, int fd, long& result) {
  if (result != socket::kMoved) [[likely]]
    return false;
  if (exchange_pumped_number(fd, use.entry())) return true;
  result = -ENOBUFS;
  return false;
}

bool Onward::is_blocking_there() const {
  return exchange_pumped_number(fd_, use_.entry()) && (real.fcntl(fd_, F_GETFL) & O_NONBLOCK) == 0;
}

// --- A process that leaves its family

namespace {

/// Standard input, output and error, as far as they are sockets of ours that an image is to find.
template <typename Visit>
void for_inherited(Visit visit) {
  for (int fd = 0; fd <= STDERR_FILENO; fd++) {
    const Entry entry = fd_table.load(fd);
    const int flags = entry.is_socket() ? real.fcntl(fd, F_GETFD) : -1;
    if (flags >= 0 && (flags & FD_CLOEXEC) == 0) visit(fd, entry);
  }
}

/// A program may give up its descriptors before its rights (vsftpd), and a pump has as many as the process that it is
/// made by.
void pump_number(int fd, Entry entry) {
  constexpr rlim_t kPumps = 64;
  if (!socket::is_pumpable(*entry.file())) return;
  const MoreNumbers more(fd, kPumps);
  const char* const problem = runtime::begin_pumping(*entry.file());
  if (problem != nullptr) runtime::report_unpumped(problem);
}

}  // namespace

void pump_numbers() {
  for (int fd = 0, end = fd_table.end(); fd < end; fd++) {
    const Entry entry = fd_table.load(fd);
    if (!entry.is_socket()) continue;
    if (!is_pumped(entry)) pump_number(fd, entry);
    (void)exchange_if_pumped(fd);
  }
}

void pump_inherited_numbers() {
  if (is_filtered()) return;  // it makes processes
  bool any = false;
  for_inherited([&](int fd, Entry entry) {
    if (exchange_if_pumped(fd)) return;
    any = any || socket::is_pumpable(*entry.file());
  });
  const auto pump = [] {
    for_inherited([](int fd, Entry entry) {
      pump_number(fd, entry);
      (void)exchange_if_pumped(fd);
    });
  };
  if (any) runtime::pump_before_exec(pump);
}

void pump_passed_number(int fd) {
  const Entry entry = fd_table.load(fd);
  if (is_filtered() || goes_straight() || !entry.is_socket() || !socket::is_pumpable(*entry.file())) return;
  const KeepErrno keep;
  const auto pump = [](int number) {
    pump_number(number, fd_table.load(number));
    (void)exchange_if_pumped(number);
  };
  runtime::pump_before_passing(fd, pump);
}

// --- What the kernel's socket says of itself

namespace {

/// An option that only TCP has, as the program has set it: nothing of the connection's depends on it (the pump sends
/// at once what it has).
struct Kept {
  socket::PumpName as;  // the connection's
  int level, name;
  socklen_t bytes;
  std::array<std::byte, 64> value;
};
/// Of all connections; the eldest makes room.
constexpr std::size_t kMostKept = 128;
std::array<Kept, kMostKept> g_kept;
std::size_t g_kept_count = 0;  // that have ever been kept

/// While one is alive no other thread, and no handler on top, looks at what is kept.
class Keeping {
 public:
  Keeping() { pthread_mutex_lock(&g_keeping); }
  ~Keeping() { pthread_mutex_unlock(&g_keeping); }
  Keeping(const Keeping&) = delete;
  Keeping& operator=(const Keeping&) = delete;

 private:
  runtime::Undisturbed undisturbed_;
};

Kept* find_kept(const socket::PumpName& as, int level, int name) {
  for (Kept& kept : std::span(g_kept).first(std::min(g_kept_count, kMostKept)))
    if (kept.level == level && kept.name == name && kept.as == as) return &kept;
  return nullptr;
}

std::optional<Kept> load_kept(const socket::PumpName& as, int level, int name) {
  const Keeping keeping;
  const Kept* const kept = find_kept(as, level, name);
  return kept == nullptr ? std::nullopt : std::optional(*kept);
}

void keep(const Kept& kept) {
  const Keeping keeping;
  Kept* const before = find_kept(kept.as, kept.level, kept.name);
  (before != nullptr ? *before : g_kept[g_kept_count++ % kMostKept]) = kept;
}

constexpr int kAttempt = -1;  // in place of an option's level

void keep_unreported(const socket::PumpName& attempt, bool expected) {
  Kept kept{attempt, kAttempt, 0, 1, {}};
  kept.value[0] = std::byte{expected};
  keep(kept);
}

/// A socket of the kind that the program takes it for. None under a filter that may end the process for it.
class Stranger {
 public:
  explicit Stranger(int domain) : fd_(!may_make_sockets() ? -1 : real.socket(domain, SOCK_STREAM | SOCK_CLOEXEC, 0)) {}
  ~Stranger() {
    const KeepErrno keep;
    if (fd_ >= 0) os::close(fd_);
  }
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;

  explicit operator bool() const { return fd_ >= 0; }
  [[nodiscard]] int fd() const { return fd_; }

 private:
  int fd_;
};

bool is_tcps(int level) {
  return level == IPPROTO_TCP || level == IPPROTO_IP || level == IPPROTO_IPV6;
}

/// Of a Unix socket that does not know it.
bool is_unknown(int result) {
  return result < 0 && (errno == EOPNOTSUPP || errno == ENOPROTOOPT);
}

int tell_kept(const Kept& kept, void* value, socklen_t* length) {
  socklen_t room = 0;
  if (!socket::copy_from_program(room, length)) return errno = EFAULT, -1;
  room = room < kept.bytes ? room : kept.bytes;
  if (socket::copy_program_bytes(value, kept.value.data(), room) && socket::copy_to_program(length, room)) return 0;
  return errno = EFAULT, -1;
}

int get_as_tcp(const socket::PumpName& as, int level, int name, void* value, socklen_t* length) {
  if (const auto kept = load_kept(as, level, name)) return tell_kept(*kept, value, length);
  const Stranger stranger(as.domain);
  if (!stranger) return errno = ENOPROTOOPT, -1;
  const int r = real.getsockopt(stranger.fd(), level, name, value, length);
  socklen_t told = 0;
  const bool is_info = r == 0 && level == IPPROTO_TCP && name == TCP_INFO;
  if (is_info && socket::copy_from_program(told, length) && told != 0)
    static_cast<tcp_info*>(value)->tcpi_state = TCP_ESTABLISHED;  // its first byte
  return r;
}

int set_as_tcp(const socket::PumpName& as, int level, int name, const void* value, socklen_t length) {
  if (const Stranger stranger(as.domain); stranger) {
    const int r = real.setsockopt(stranger.fd(), level, name, value, length);
    if (r != 0) return r;
  }
  Kept kept{as, level, name, length, {}};
  if (length > sizeof kept.value) return 0;
  if (!socket::copy_program_bytes(kept.value.data(), value, length)) return errno = EFAULT, -1;
  keep(kept);
  return 0;
}

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83  // Linux 6.16
#endif
#ifndef SO_PEERPIDFD
#define SO_PASSPIDFD 76
#define SO_PEERPIDFD 77  // both: Linux 6.5
#endif

/// Whether it tells, or asks for, who the peer is: of a Unix socket that is the pump's process, a TCP socket knows none
/// (unix(7), socket(7)).
bool tells_process(int level, int name) {
  constexpr auto kNames = std::to_array<int>(
      {SO_PEERCRED, SO_PEERSEC, SO_PEERGROUPS, SO_PEERPIDFD, SO_PASSCRED, SO_PASSSEC, SO_PASSPIDFD, SO_PASSRIGHTS});
  return level == SOL_SOCKET && std::ranges::find(kNames, name) != kNames.end();
}

/// The error of an attempt to connect that a relay has made. The kernel knows it as ECONNRESET.
int error_told(int fd, const socket::PumpName& as, int told) {
  const auto other = read_name_quietly(fd, real.getpeername);
  const int failed = other.has_value() ? socket::connect_error(as, *other) : 0;
  return failed != 0 ? failed : told;
}

/// What TCP answers for an option of a Unix socket that stands for a TCP one.
int as_of_tcp(int fd, const socket::PumpName& as, int name, int told) {
  const bool listens = as.end == socket::PumpName::End::kListener;
  switch (name) {
    case SO_DOMAIN:
      return as.domain;
    case SO_PROTOCOL:
      return IPPROTO_TCP;
    case SO_TYPE:
      return SOCK_STREAM;
    case SO_ACCEPTCONN:
      return listens ? 1 : told;
    default:
      return error_told(fd, as, told);
  }
}

/// Whether a Unix socket that stands for a TCP one may have given this answer, and TCP gives another one.
bool may_tell_otherwise(int name, int told) {
  switch (name) {
    case SO_DOMAIN:
      return told == AF_UNIX;
    case SO_PROTOCOL:
    case SO_ACCEPTCONN:
      return told == 0;
    case SO_TYPE:
      return told == SOCK_SEQPACKET;
    case SO_ERROR:
      return told == ECONNRESET;
    default:
      return false;
  }
}

/// Corrects the answer of the kernel, which the program has got.
void correct_answer(int fd, int name, void* value) {
  constexpr auto kCorrected = std::to_array<int>({SO_DOMAIN, SO_PROTOCOL, SO_TYPE, SO_ACCEPTCONN, SO_ERROR});
  if (std::ranges::find(kCorrected, name) == kCorrected.end()) return;  // of others the value may be nowhere
  const int told = *static_cast<const int*>(value);
  if (!may_tell_otherwise(name, told)) return;
  const KeepErrno keep;
  if (const auto as = pump_name(fd)) *static_cast<int*>(value) = as_of_tcp(fd, *as, name, told);
}

struct Told {
  bool is_unix = false;
  std::optional<socket::PumpName> name;
};

/// What the kernel says for a name call, in memory of ours. Keeps errno.
Told ask_name(int fd, NameCall call) {
  const KeepErrno keep;
  sockaddr_un name{};
  socklen_t length = sizeof name;
  if (call(fd, reinterpret_cast<sockaddr*>(&name), &length) != 0 || name.sun_family != AF_UNIX) return {};
  return {true, socket::read_pump_name(name, length)};
}

}  // namespace

// The program's pointers are the kernel's to check, but for a pumped connection: so the name is asked for once more,
// with a buffer of ours, before.
int name_in_kernel(int fd, sockaddr* address, socklen_t* length, NameCall call) {
  const bool of_peer = call == real.getpeername;
  const Told said = ask_name(fd, call);
  const auto as = said.is_unix ? pump_name_quietly(fd) : std::nullopt;
  if (!as.has_value()) [[likely]]
    return call(fd, address, length);
  // A listener that a relay has, and a connection that is being made or has failed, have no peer.
  if (of_peer && (!said.name.has_value() || !socket::are_ends(*as, *said.name))) return errno = ENOTCONN, -1;
  if (address == nullptr) return call(fd, address, length);
  const long r = socket::copy_name(of_peer ? as->remote : as->local, as->domain, address, length);
  if (r < 0) errno = static_cast<int>(-r);
  return r < 0 ? -1 : 0;
}

void mark_unreported(const socket::PumpName& attempt) {
  keep_unreported(attempt, true);
}

bool take_unreported(const socket::PumpName& attempt) {
  const auto kept = load_kept(attempt, kAttempt, 0);
  const bool expected = kept.has_value() && kept->value[0] == std::byte{1};
  if (expected) keep_unreported(attempt, false);
  return expected;
}

bool has_pump_beneath(int fd) {
  return pump_name_quietly(fd).has_value();
}

int get_kernel_option(int fd, int level, int name, void* value, socklen_t* length) {
  if (tells_process(level, name)) {
    const auto as = pump_name_quietly(fd);
    if (as.has_value()) return get_as_tcp(*as, level, name, value, length);
  }
  const int r = real.getsockopt(fd, level, name, value, length);
  if (r == 0 && level == SOL_SOCKET && *length == sizeof(int)) correct_answer(fd, name, value);
  if (!is_unknown(r) || !is_tcps(level)) [[likely]]
    return r;
  const int error = errno;
  if (const auto as = pump_name(fd)) return get_as_tcp(*as, level, name, value, length);
  errno = error;
  return r;
}

int set_kernel_option(int fd, int level, int name, const void* value, socklen_t length) {
  // What stays in its send buffer (pump.h) must leave room there.
  if (level == SOL_SOCKET && (name == SO_SNDBUF || name == SO_SNDBUFFORCE) && length >= sizeof(int)) {
    if (pump_name_quietly(fd).has_value()) return 0;
  }
  if (tells_process(level, name)) {
    const auto as = pump_name_quietly(fd);
    if (as.has_value()) return set_as_tcp(*as, level, name, value, length);
  }
  const int r = real.setsockopt(fd, level, name, value, length);
  if (!is_unknown(r) || !is_tcps(level)) [[likely]]
    return r;
  const int error = errno;
  const auto as = pump_name(fd);
  errno = error;
  if (!as.has_value()) return r;
  const int done = set_as_tcp(*as, level, name, value, length);
  return done;
}

// A byte always stays unread at the pump (pump.h), and the memory that it came in counts in the kernel's answer.
int control_in_kernel(int fd, unsigned long request, void* argument) {
  const int r = real.ioctl(fd, request, argument);
  if (r != 0 || request != SIOCOUTQ) [[likely]]
    return r;
  const KeepErrno keep;
  if (!may_make_sockets() || !pump_name(fd).has_value()) return r;
  const auto unread = os::unread_at_other_end(static_cast<std::uint32_t>(os::inode_of(fd)));
  if (!unread.has_value()) return r;
  const int left = *unread > 0 ? static_cast<int>(*unread) - 1 : 0;
  (void)socket::copy_to_program(static_cast<int*>(argument), left);
  return r;
}

}  // namespace bypass::preload
