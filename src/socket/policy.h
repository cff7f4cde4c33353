// Policy: what the process decides for the socket layer. Budgets: its settings, as numbers.
//
// src/runtime fills both in before the first object. Each function of Policy has an answer from the start: that of a
// process with no ports, no rules and no numbers of its own to protect. Any thread may call them; a function that needs
// the shard's lock says so.
#pragma once

#include <fcntl.h>
#include <sys/socket.h>

#include <cstdint>

#include "os/kernel.h"
#include "stack/address.h"
#include "stack/time.h"

namespace bypass::socket {

/// The result of rules and routes for a socket. kFail: a rule forbids it (the call fails with EACCES). kRelay: the port
/// is another family's, which has left a relay for this process (runtime/family/pump/relay.h).
enum class Decision : std::uint8_t { kKernel, kBypass, kFail, kRelay };

/// No member is ever null.
struct Policy {
  /// Routes and rules: bypass or kernel, with the reason recorded for `bypass why`. Opens the ports when the answer is
  /// bypass and they are not open yet (milliseconds, once).
  Decision (*decide_connect)(int fd, int type, const sockaddr* local, const sockaddr* remote) =
      [](int, int, const sockaddr*, const sockaddr*) { return Decision::kKernel; };
  Decision (*decide_listen)(int fd, int type, const sockaddr* local) = [](int, int, const sockaddr*) {
    return Decision::kKernel;
  };
  /// Decides for one address of ours, or one that a port routes to: for datagrams, each of which is decided separately.
  Decision (*routes_to)(const sockaddr* remote) = [](const sockaddr*) { return Decision::kKernel; };
  /// Whether a port is on this interface of the kernel's, given by its number. A stream that is bound to it
  /// (SO_BINDTODEVICE) may be on that port, and is decided by its address.
  bool (*is_port_on)(int interface) = [](int) { return false; };
  /// Whether this address of ours is unavailable because another process has the wire: it then counts as in use.
  bool (*is_taken)(const sockaddr* local) = [](const sockaddr*) { return false; };

  /// A bypass object needs the wire now: opens the ports if they are not (accept, poll, send …). False: they cannot be
  /// opened.
  bool (*open_wire)() = [] { return true; };
  /// A call begins to wait for the wire: open_wire(), and ports that are lent to a family of fewer rights are asked
  /// for.
  void (*open_wire_for_wait)() = [] {};
  /// A socket has come onto the wire: somebody of the family is to have the ports, soon. Lock held, under which
  /// others find that nobody needs them (is_wire_needed).
  void (*ask_for_wire)() = [] {};

  /// Records why something was left to the kernel, for `bypass why`. `reason`: an observe::Reason.
  void (*record_why)(int fd, unsigned reason, const char* detail) = [](int, unsigned, const char*) {};
  void (*record_why_at)(int fd, unsigned reason, const Endpoint& address,
                        const char* detail) = [](int, unsigned, const Endpoint&, const char*) {};

  /// Moves a new descriptor of ours above the program's, sets CLOEXEC and protects it. Returns its new number. A
  /// negative argument is returned as it is.
  int (*own_descriptor)(int fd) = [](int fd) { return fd; };
  /// A copy of `fd`, kept in the same way, that lasts as long as a connection. Negative: there is no number for it.
  int (*own_copy)(int fd) = [](int fd) { return kernel->fcntl(fd, F_DUPFD_CLOEXEC, 0); };
  /// A descriptor of either kind is about to be closed.
  void (*disown_descriptor)(int fd) = [](int) {};
  /// It is not: protects it again, under the number that it has.
  void (*protect_descriptor)(int fd) = [](int) {};
};
extern Policy policy;

/// The settings for waits and buffers. The shard has a reference to them: Shard::budgets().
struct Budgets {
  Duration spin{};                // how long a wait polls without yielding; negative: for ever
  Duration yield{};               // after that, how long with sched_yield() between polls; negative: for ever
  Duration kernel_poll{};         // how often a busy mixed set looks at kernel descriptors
  std::uint32_t send_buffer = 0;  // bytes; the defaults that getsockopt reports
  std::uint32_t receive_buffer = 0;
  /// After so many calls on a connection within the host, the connecting side looks for the other; the accepting side
  /// makes a few more calls first.
  std::uint32_t local_after = 0;
};

}  // namespace bypass::socket
