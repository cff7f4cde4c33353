#include "runtime/family/pump/relay.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "fastpath/shm/rendezvous/directory.h"
#include "os/kernel.h"
#include "os/log/log.h"
#include "os/net/address.h"
#include "os/net/rights_message.h"
#include "os/os.h"
#include "os/pump_name.h"
#include "runtime/family/pump/family_process.h"
#include "runtime/family/pump/pump_process.h"
#include "runtime/process_graph.h"
#include "socket/policy.h"

namespace bypass::runtime {

namespace {

using socket::Decision;
using socket::kernel;
using socket::PumpName;
using socket::SocketName;
constexpr int kNoWait = MSG_DONTWAIT | MSG_NOSIGNAL;

void close_if_open(int& fd) {
  if (fd >= 0) os::close(std::exchange(fd, -1));
}

int option_of(int fd, int name) {
  int value = -1;
  socklen_t length = sizeof value;
  return kernel->getsockopt(fd, SOL_SOCKET, name, &value, &length) == 0 ? value : -1;
}

template <typename T>
void set(int fd, int name, const T& value) {
  kernel->setsockopt(fd, SOL_SOCKET, name, &value, sizeof value);
}

/// Whether the socket is in this process's network namespace.
bool is_at_home(int fd) {
  const int own = kernel->socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (own < 0) return false;
  const std::uint32_t home = fastpath::shm::network_tag(own);
  os::close(own);
  return home != 0 && fastpath::shm::network_tag(fd) == home;
}

/// Whether the kernel has not the address.
bool is_free(const Endpoint& local, int domain) {
  SocketName name;
  const socklen_t length = socket::write_name({local.address, 0}, domain, name);
  const int probe = kernel->socket(domain, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool refused = probe >= 0 && kernel->bind(probe, &name.base, length) != 0 && errno == EADDRNOTAVAIL;
  if (probe >= 0) os::close(probe);
  return refused;
}

/// Whether it is a TCP socket that is neither connected nor listens. The asker may still change it: what depends on
/// that is its own.
bool is_fresh_stream(int fd) {
  SocketName peer;
  socklen_t length = sizeof peer.storage;
  return option_of(fd, SO_TYPE) == SOCK_STREAM && option_of(fd, SO_PROTOCOL) == IPPROTO_TCP &&
         option_of(fd, SO_ACCEPTCONN) == 0 && kernel->getpeername(fd, &peer.base, &length) != 0;
}

/// Whether a connection may come from there: the kernel lets everybody bind to any address by IP_FREEBIND.
bool is_the_ports(const IpAddress& address) {
  socket::Shard& shard = process()->shard;
  const socket::Guard guard(shard);
  return shard.stack().network().is_local(address);
}

/// Whether a listener or a connection of the family has the port: of those the asker's kernel socket knows nothing.
bool is_taken(const Endpoint& local, int fd) {
  const std::uint8_t sharing = option_of(fd, SO_REUSEADDR) > 0 ? tcp::kShareAddress : std::uint8_t{0};
  socket::Shard& shard = process()->shard;
  const socket::Guard guard(shard);
  return shard.stack().tcp().port_in_use(local, sharing);
}

/// The object for a socket of the asker's. `is_free_bound`: to an address that the kernel has not. Null: there is no
/// memory.
socket::File* open_file(int fd, int domain, const Endpoint& local, bool is_free_bound) {
  socket::File* const file = socket::open_socket(fd, domain, SOCK_STREAM | SOCK_NONBLOCK, IPPROTO_TCP);
  if (file == nullptr) return nullptr;
  const int shares = option_of(fd, SO_REUSEADDR) > 0 ? 1 : 0;
  (void)socket::set_option(*file, fd, SOL_SOCKET, SO_REUSEADDR, &shares, sizeof shares);
  if (local.port != 0) socket::adopt_bound(*file, fd, is_free_bound);
  return file;
}

/// Fills an end's send buffer, by `piece` bytes at a time, so that it is not writable. Returns how many there are.
std::size_t fill(int fd, std::size_t piece) {
  static constexpr std::array<char, std::size_t{16} << 10> kBytes{};
  for (std::size_t filled = 0;;) {
    const long sent = os::call(SYS_sendto, fd, os::address(kBytes.data()), static_cast<long>(piece), kNoWait, 0, 0);
    if (sent <= 0) return filled;
    filled += static_cast<std::size_t>(sent);
  }
}

/// Reads what fill() has written, up to one byte. That stays unread, as a pump wants it (pump.h). Meanwhile the program
/// may write behind it.
void drain(int fd, std::size_t filled) {
  std::array<char, std::size_t{16} << 10> bytes;
  while (filled > 1) {
    const auto wanted = static_cast<long>(std::min(filled - 1, bytes.size()));
    const long got = os::call(SYS_recvfrom, fd, os::address(bytes.data()), wanted, MSG_DONTWAIT, 0, 0);
    if (got <= 0) return;
    filled -= static_cast<std::size_t>(got);
  }
}

/// Sends a record with a descriptor, or none (below 0). Returns a negative errno where that is not possible now.
long send_with(int fd, const void* record, std::size_t bytes, int passed) {
  os::RightsMessage<1> message(record, bytes);
  if (passed >= 0) message.pass({&passed, 1});
  return os::call(SYS_sendmsg, fd, os::address(&message.header()), kNoWait);
}

/// The number of the asker's socket goes no further: what keeps it may close it with the family's lock held, and the
/// asker can make that close wait (SO_LINGER).
void forget(socket::File*& file) {
  if (file != nullptr) (void)socket::release(*std::exchange(file, nullptr), -1);
}

/// The pair for a listener. `programs` gets the program's end, by which nothing can be written.
int make_listener_pair(int domain, const Endpoint& local, int& programs) {
  constexpr std::size_t kPiece = 1024;          // a record has to fit
  constexpr int kLeast = 0, kQueued = 8 << 10;  // the kernel's least; so many that some connections can wait there
  UnixPair pair(SOCK_SEQPACKET);
  PumpName as{static_cast<std::uint8_t>(domain), local, {}, PumpName::End::kListener};
  if (!pair || !os::fill_random(&as.serial, sizeof as.serial) || !name_end(pair[0], as)) return -1;
  set(pair[0], SO_SNDBUF, kLeast);
  set(pair[1], SO_SNDBUF, kQueued);
  (void)fill(pair[0], kPiece);
  kernel->shutdown(pair[0], SHUT_WR);
  programs = pair.take(0);
  return pair.take(1);
}

/// The pair for a connection that is being made, with the program's end full.
int make_attempt_pair(int domain, const Endpoint& local, const Endpoint& remote, int& programs, std::size_t& filled) {
  constexpr int kSendBytes = 256 << 10;  // the first byte's message stays there (pump.h)
  constexpr std::size_t kPiece = std::size_t{16} << 10;
  UnixPair pair(SOCK_STREAM);
  PumpName as{static_cast<std::uint8_t>(domain), local, remote, PumpName::End::kPrograms};
  if (!pair || !os::fill_random(&as.serial, sizeof as.serial) || !name_end(pair[0], as)) return -1;
  set(pair[0], SO_SNDBUF, kSendBytes);
  set(pair[0], SO_SNDBUFFORCE, kSendBytes);
  filled = fill(pair[0], kPiece);
  programs = pair.take(0);
  return pair.take(1);
}

/// Names our end of a connection that was being made, by what the program's end is named.
void name_ours(int ours, PumpName::End end, int error) {
  sockaddr_un name{};
  socklen_t length = sizeof name;
  if (kernel->getpeername(ours, reinterpret_cast<sockaddr*>(&name), &length) != 0) return;
  std::optional<PumpName> as = socket::read_pump_name(name, length);
  if (!as.has_value()) return;
  as->end = end;
  as->error = static_cast<std::uint8_t>(error);
  (void)name_end(ours, *as);
}

struct Pumping {
  socket::File* file;
  int ours;  // below 0: the pair is to be made
  const char* problem = "the relay has several threads";
  int life = -1;
  int programs = -1;
};

/// Has a pump made for a connection that only this process has.
void pump(Pumping& pumping) {
  pump_alone(
      [](void* what) {
        auto& p = *static_cast<Pumping*>(what);
        p.problem = p.ours >= 0 ? begin_pumping_to(*p.file, p.ours, p.life) : begin_pumping(*p.file, &p.life);
        if (p.problem == nullptr && p.ours < 0) p.programs = fetch_pumped(*p.file);
      },
      &pumping);
  if (pumping.problem != nullptr) report_unpumped(pumping.problem);
}

}  // namespace

// --- Requests

bool Relay::take_request(Asked& asked) {
  os::RightsMessage<2> message(&asked.request, sizeof asked.request);
  message.expect();
  const long got = os::call(SYS_recvmsg, control_, os::address(&message.header()), MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got == -EAGAIN || got == -EINTR) return false;
  // An empty record, and the end, are both 0 bytes.
  if (got < 0 || (got == 0 && (os::poll_now(control_, 0) & POLLHUP) != 0)) {
    close_if_open(control_);
    return false;
  }
  const auto [kernels, answer] = message.received();
  asked.kernels = kernels;
  asked.answer = answer;
  if (got != sizeof asked.request || message.lacks_bytes() || message.lacks_descriptors()) asked.request.kind = 0;
  return true;
}

void Relay::hear_requests() {
  constexpr int kAtOnce = 16;  // others are to be served, too
  for (int i = 0; i < kAtOnce && control_ >= 0; i++) {
    Asked asked;
    if (!take_request(asked)) return;
    drop_left_listeners();  // what the asker has closed is closed for what it asks next
    const bool is_answers =
        option_of(asked.answer, SO_DOMAIN) == AF_UNIX && option_of(asked.answer, SO_TYPE) == SOCK_SEQPACKET;
    if (is_answers) serve(asked);
    close_if_open(asked.kernels);
    close_if_open(asked.answer);
  }
}

void Relay::serve(Asked& asked) {
  SocketName name;
  socklen_t length = sizeof name.storage;
  RelayAnswer answer{EINVAL};
  int programs = -1;
  const int domain = option_of(asked.kernels, SO_DOMAIN);
  const bool is_ours = (domain == AF_INET || domain == AF_INET6) && is_fresh_stream(asked.kernels) &&
                       is_at_home(asked.kernels) && kernel->getsockname(asked.kernels, &name.base, &length) == 0;
  const auto local = is_ours ? socket::endpoint_of(&name.base, length) : std::nullopt;
  if (local.has_value()) {
    const Bound bound{domain, *local};
    if (asked.request.kind == RelayRequest::kListen) answer.error = listen(asked, bound, programs);
    if (asked.request.kind == RelayRequest::kConnect) answer.error = connect(asked, bound, programs);
  }
  (void)send_with(asked.answer, &answer, sizeof answer, programs);
  close_if_open(programs);
}

int Relay::listen(Asked& asked, const Bound& bound, int& programs) {
  if (listeners_.size() >= kMostListeners) return ENOBUFS;
  SocketName name;
  (void)socket::write_name(bound.local, bound.domain, name);
  if (bound.local.port == 0 || bound.local.address.is_any()) return EADDRNOTAVAIL;
  // Where the kernel has the address, a listener has a half in the kernel: accept(2) there is called with the family's
  // lock held, on a socket that the asker may make blocking.
  if (!is_free(bound.local, bound.domain)) return EADDRNOTAVAIL;
  const Decision decision = socket::policy.decide_listen(asked.kernels, SOCK_STREAM, &name.base);
  if (decision != Decision::kBypass) return decision == Decision::kFail ? EACCES : EADDRNOTAVAIL;
  Place place;
  place.file = open_file(asked.kernels, bound.domain, bound.local, true);
  if (place.file == nullptr) return ENOBUFS;
  place.ours = make_listener_pair(bound.domain, bound.local, programs);
  long r = place.ours < 0 ? -ENOBUFS
                          : socket::listen(*place.file, asked.kernels,
                                           static_cast<int>(std::min(asked.request.backlog, kMostWaiting)));
  if (r == 0 && socket::decided_for_kernel(*place.file)) r = -EADDRNOTAVAIL;
  if (r != 0) {
    forget(place.file);
    close_if_open(place.ours);
    close_if_open(programs);
    return static_cast<int>(-r);
  }
  place.kernels = std::exchange(asked.kernels, -1);
  place.domain = bound.domain;
  listeners_.push_back(place);
  return 0;
}

int Relay::connect(Asked& asked, const Bound& bound, int& programs) {
  if (attempts_.size() >= kMostAttempts || !has_room()) return EAGAIN;
  const Endpoint remote{{asked.request.remote_address}, asked.request.remote_port};
  SocketName name, peer;
  (void)socket::write_name(bound.local, bound.domain, name);
  const socklen_t length = socket::write_name(remote, bound.domain, peer);
  if (!remote.address.is_v4() || remote.address.is_any()) return EADDRNOTAVAIL;
  if (!bound.local.address.is_any() && !is_the_ports(bound.local.address)) return EADDRNOTAVAIL;
  if (bound.local.port != 0 && is_taken(bound.local, asked.kernels)) return EADDRINUSE;
  const Decision decision = socket::policy.decide_connect(asked.kernels, SOCK_STREAM,
                                                          bound.local.port != 0 ? &name.base : nullptr, &peer.base);
  if (decision != Decision::kBypass) return decision == Decision::kFail ? EACCES : ENETUNREACH;
  if (bound.local.port == 0) {  // the asker's socket says nothing, and calls on it may wait with the lock held
    const int own = kernel->socket(bound.domain, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (own < 0) return ENOBUFS;
    os::close(std::exchange(asked.kernels, own));
  }
  Place place;
  place.file = open_file(asked.kernels, bound.domain, bound.local, is_free(bound.local, bound.domain));
  if (place.file == nullptr) return ENOBUFS;
  long r = socket::connect(*place.file, asked.kernels, &peer.base, length);
  if (r == -EINPROGRESS) {
    SocketName local;
    socklen_t bytes = sizeof local.storage;
    (void)socket::local_name(*place.file, asked.kernels, &local.base, &bytes);
    const auto own = socket::endpoint_of(&local.base, bytes);
    place.ours = own.has_value() ? make_attempt_pair(bound.domain, *own, remote, programs, place.filled) : -1;
    r = place.ours < 0 ? -ENOBUFS : 0;
  } else if (r == 0) {
    r = -ENETUNREACH;  // not by the wire
  }
  if (r != 0) {
    forget(place.file);
    return static_cast<int>(-r);
  }
  place.kernels = std::exchange(asked.kernels, -1);
  place.domain = bound.domain;
  place.remote = remote;
  attempts_.push_back(place);
  return 0;
}

// --- Listeners

/// Sends the program's end of a connection. False: nobody has the listener any more.
bool Relay::deliver(Place& listener) {
  constexpr char kConnection = 'c';
  const long sent = send_with(listener.ours, &kConnection, 1, listener.unsent);
  if (sent == -EAGAIN || sent == -EINTR) return true;
  close_if_open(listener.unsent);  // for want of memory or descriptors one connection is lost
  return sent != -EPIPE && sent != -ECONNRESET && sent != -ENOTCONN && sent != -ECONNREFUSED;
}

/// False: nobody has the listener any more.
bool Relay::accept(Place& listener) {
  while (listener.unsent < 0 && has_room()) {
    socket::Accepted accepted;
    const long r =
        socket::accept(*listener.file, listener.kernels, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC, accepted);
    if (r < 0) return true;  // none is there, or there is no room for one now
    listener.unsent = accepted.kernel_fd;
    if (accepted.file != nullptr) {
      Pumping pumping{accepted.file, -1};
      pump(pumping);
      if (pumping.life >= 0) pumps_.push_back(pumping.life);
      listener.unsent = pumping.programs;
      (void)socket::release(*std::exchange(accepted.file, nullptr), accepted.number);
      os::close(accepted.number);
    }
    if (listener.unsent >= 0 && !deliver(listener)) return false;
  }
  return true;
}

// --- Connections that are being made

/// Returns whether the attempt is over.
bool Relay::finish(Place& attempt, bool is_left) {
  SocketName peer;
  const socklen_t length = socket::write_name(attempt.remote, attempt.domain, peer);
  const long r = is_left ? -ECONNABORTED : socket::connect(*attempt.file, attempt.kernels, &peer.base, length);
  if (r == -EALREADY || r == -EINPROGRESS) return false;
  if (r == 0 || r == -EISCONN) {
    name_ours(attempt.ours, PumpName::End::kPumps, 0);
    drain(attempt.ours, attempt.filled);
    Pumping pumping{attempt.file, attempt.ours};
    pump(pumping);
    if (pumping.life >= 0) pumps_.push_back(pumping.life);
  } else if (!is_left) {
    name_ours(attempt.ours, PumpName::End::kFailed, static_cast<int>(-r));
  }
  forget(attempt.file);
  close_if_open(attempt.kernels);
  close_if_open(attempt.ours);
  return true;
}

// --- The loop

void Relay::forget_ended_pumps() {
  std::erase_if(pumps_, [](int& life) {
    const bool ended = (os::poll_now(life, 0) & POLLHUP) != 0;
    if (ended) os::close(life);
    return ended;
  });
}

void Relay::wait() {
  std::vector<socket::PollItem> items;
  items.push_back({.fd = control_, .events = POLLIN});
  for (const Place& listener : listeners_) {
    items.push_back({.fd = listener.ours, .events = static_cast<short>(listener.unsent >= 0 ? POLLOUT : 0)});
    const bool accepts = listener.unsent < 0 && has_room();
    if (accepts) items.push_back({.events = POLLIN, .file = listener.file});
  }
  for (const Place& attempt : attempts_) {
    items.push_back({.fd = attempt.ours, .events = 0});
    items.push_back({.events = POLLOUT, .file = attempt.file});
  }
  for (const int life : pumps_) items.push_back({.fd = life, .events = 0});
  (void)socket::poll(items, Duration{-1}, nullptr);
}

namespace {

template <typename Place>
bool is_left(const Place& place) {
  return (os::poll_now(place.ours, 0) & POLLHUP) != 0;
}

template <typename Place>
void end(Place& place) {
  forget(place.file);
  for (int* const fd : {&place.kernels, &place.ours, &place.unsent}) close_if_open(*fd);
}

}  // namespace

void Relay::drop_left_listeners() {
  std::erase_if(listeners_, [](Place& listener) {
    if (!is_left(listener)) return false;
    end(listener);
    return true;
  });
}

void Relay::run() {
  while (!is_over()) {
    wait();
    forget_ended_pumps();
    if (control_ >= 0) hear_requests();
    drop_left_listeners();
    std::erase_if(listeners_, [&](Place& listener) {
      const bool lives = (listener.unsent < 0 || deliver(listener)) && accept(listener);
      if (!lives) end(listener);
      return !lives;
    });
    std::erase_if(attempts_, [&](Place& attempt) { return finish(attempt, is_left(attempt)); });
  }
  for (int& life : pumps_) close_if_open(life);
}

}  // namespace bypass::runtime
