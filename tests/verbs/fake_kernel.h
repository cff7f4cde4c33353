// FakeKernel: the kernel's side of an interface that it keeps, eth7, for code that asks it by netlink: its neighbours,
// its connections, its ICMP errors. The libc calls of the code under test end here. Descriptors are real ones.
#pragma once

#include <linux/neighbour.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/types.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "backends/packet/libc.h"
#include "stack/address.h"

namespace bypass::verbs {

class FakeKernel {
 public:
  static constexpr const char* kName = "eth7";
  static constexpr int kIndex = 7;
  static constexpr MacAddress kMac{{2, 0, 0, 0, 0, 7}};

  struct Connection {
    std::uint32_t local = 0, remote = 0;  // host order
    std::uint16_t local_port = 0, remote_port = 0;
    std::uint8_t state = TCP_ESTABLISHED;
    bool operator==(const Connection&) const = default;
  };
  /// What the kernel says of a neighbour.
  struct News {
    std::uint32_t address = 0;
    MacAddress mac;
    std::uint16_t state = NUD_REACHABLE;
    int interface = kIndex;
    std::uint8_t family = AF_INET;
  };

  FakeKernel();
  FakeKernel(const FakeKernel&) = delete;
  FakeKernel& operator=(const FakeKernel&) = delete;
  ~FakeKernel();

  void tell(const News& news);
  /// Reports that some network interface has changed.
  void tell_of_links();
  /// More messages came than there was room for. The next look at them says so.
  void lose_news() { lost_ = true; }
  /// An ICMP packet has come in.
  void deliver(std::span<const std::byte> packet);

  bool admin = true;  // the program has CAP_NET_ADMIN
  bool raw = true;    // … CAP_NET_RAW
  bool tells = true;  // of neighbours at all
  int index = kIndex;
  MacAddress mac = kMac;
  std::map<std::uint32_t, MacAddress> neighbours;
  std::vector<Connection> connections;

  // --- Requests that it got
  std::vector<std::uint32_t> looked_up, used, nudged;  // neighbours: RTM_GETNEIGH, NTF_USE, by a datagram
  std::vector<Connection> sought;                      // without their state
  std::map<int, std::string> bound;                    // SO_BINDTODEVICE by protocol: 0 (datagrams), IPPROTO_ICMP
  std::uint32_t icmp_filter = 0;                       // types that are kept away

 private:
  friend struct FakeKernelCalls;
  enum class Kind : std::uint8_t { kNews, kSockets, kIcmp, kDatagram };

  int make_socket(Kind kind);
  [[nodiscard]] Kind kind_of(int fd) const;
  void answer(Kind kind, std::span<const std::byte> message);
  void refuse(Kind kind, int error);
  void hear_of_neighbour(const void* message);
  void hear_of_connection(const void* message);

  packet::Libc before_;
  std::map<ino_t, Kind> sockets_;
  std::map<Kind, int> peers_;  // our end of the newest socket of each kind
  bool lost_ = false;
};

}  // namespace bypass::verbs
