// Relay: listens and connects on the port for a process that has given rights up and has left the family, while the
// family goes on with the port (privilege.h). It runs in a process of ours, which has the family's rights
// (relay_process.h).
//
// The other side has fewer rights. Its records are read once, and checked. What it can make here is bounded, and
// no call that may wait for it is made with the family's lock held. Bytes go by pumps (pump.h), never through the
// relay.
//
// - A listener is a pair of SOCK_SEQPACKET sockets. The program's end takes the place of its number. The relay accepts
//   connections, and sends the program's end of each. So poll(2) of the kernel says when there are some. The program
//   accepts by recvmsg(2) (preload/relayed.h).
// - A connection that is being made is a pair of SOCK_STREAM sockets. The program's end is full of bytes that the relay
//   does not read, so that it is not writable. When the connection stands, a pump is made, and the bytes are read. When
//   it has failed, the relay's end gets a name that says why (os/pump_name.h), and is closed.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/family/pump/relay_request.h"
#include "socket/api.h"
#include "stack/address.h"

namespace bypass::runtime {

class Relay {
 public:
  /// `control`: the socket on which requests come.
  explicit Relay(int control) : control_(control) {}
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  /// Until nobody can ask any more, and nobody has a listener or waits for a connection.
  void run();

  static constexpr std::size_t kMostListeners = 64;
  static constexpr std::size_t kMostAttempts = 64;
  static constexpr std::size_t kMostPumps = 256;      // connections that live or are being made
  static constexpr std::uint32_t kMostWaiting = 128;  // connections that a listener has, and nobody has accepted

 private:
  /// A socket on the wire, the kernel's socket that has its port, and our end of the pair.
  struct Place {
    socket::File* file = nullptr;
    int kernels = -1, ours = -1;
    int unsent = -1;  // of a listener: the program's end of a connection for which the pair has no room
    int domain = 0;
    Endpoint remote;         // of an attempt
    std::size_t filled = 0;  // … the bytes that make the program's end not writable
  };
  /// What came with a request.
  struct Asked {
    RelayRequest request;
    int kernels = -1, answer = -1;
  };
  /// The socket of the kernel's, as far as it has been checked.
  struct Bound {
    int domain = 0;
    Endpoint local;  // port 0: not bound
  };

  void hear_requests();
  void drop_left_listeners();
  [[nodiscard]] bool take_request(Asked& asked);
  void serve(Asked& asked);
  /// The errno for the asker. 0: `programs` is the program's end, and the socket of the kernel's has been taken over.
  [[nodiscard]] int listen(Asked& asked, const Bound& bound, int& programs);
  [[nodiscard]] int connect(Asked& asked, const Bound& bound, int& programs);
  [[nodiscard]] bool accept(Place& listener);
  [[nodiscard]] bool deliver(Place& listener);
  [[nodiscard]] bool finish(Place& attempt, bool is_left);
  void forget_ended_pumps();
  [[nodiscard]] bool has_room() const { return attempts_.size() + pumps_.size() < kMostPumps; }
  void wait();
  [[nodiscard]] bool is_over() const { return control_ < 0 && listeners_.empty() && attempts_.empty(); }

  int control_;
  std::vector<Place> listeners_, attempts_;
  std::vector<int> pumps_;  // each says POLLHUP when its pump has ended
};

}  // namespace bypass::runtime
