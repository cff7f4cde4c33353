// KernelSide: for a port that shares an interface with the kernel, it gets what the kernel knows and the port needs.
// That is which MAC address a neighbour has (rtnetlink(7)), and the ICMP errors about our packets (raw(7)). Neither can
// be steered to a queue pair: the kernel needs them itself.
//
// The stack still speaks ARP. KernelSide takes the stack's questions out of what it sends, and puts them to the kernel.
// The kernel's answers come back as ARP replies, so that nothing above the port is different. When the kernel learns
// another MAC address of a neighbour, KernelSide announces it to the stack, since ARP's requests and announcements
// reach only the kernel.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "backends/packet/descriptor.h"
#include "backends/packet/frames/frame_pool.h"
#include "backends/packet/interface.h"
#include "backends/packet/wakeup.h"
#include "stack/address.h"
#include "stack/frame/packet.h"

namespace bypass::verbs {

class KernelSide {
 public:
  /// How many frames of ARP replies and ICMP errors may be ready at once.
  static constexpr std::size_t kMostReady = 16;

  /// Whether an interface with that name and MAC address exists. False: `problem` says why.
  static bool is_there(const std::string& interface, const MacAddress& mac, std::string& problem);
  /// Opens for the interface with that name. False: `problem` says why.
  bool open(const std::string& interface, packet::Wakeup& wakeup, std::string& problem);
  /// Opens for the interface that has the name and the MAC address now. False: `problem` says why, if has_moved() is
  /// still true.
  bool follow(packet::Wakeup& wakeup, std::string& problem);
  /// The interface's MAC address. A GID made from an address need not tell it (RFC 7217).
  [[nodiscard]] const MacAddress& mac() const { return mac_; }
  /// The interface's index.
  [[nodiscard]] int index() const { return interface_; }
  [[nodiscard]] bool is_open() const { return netlink_.is_open(); }

  /// Takes an outgoing ARP frame, which goes no further. A question is put to the kernel.
  void take_arp(const Packet& frame);
  /// Whether an outgoing RST is for a connection that is the kernel's. Such a connection was made before the flow of
  /// its port was steered, and its frames come here all the same (as copies, from a packet socket). It asks the kernel
  /// (sock_diag(7)).
  [[nodiscard]] bool is_wrong_reset(const Packet& frame) const;
  /// Fills `out` with what the kernel has told since the last call, as frames from `pool`. It makes system calls. Call
  /// it when the descriptor is readable, while questions are open, and every now and then.
  std::size_t receive(packet::FramePool& pool, std::span<Packet*> out);
  [[nodiscard]] bool has_questions() const { return questions_ != 0; }
  /// receive() has heard that another interface has the name now: call follow().
  [[nodiscard]] bool has_moved() const { return moved_; }

 private:
  struct Known {
    std::uint32_t address = 0;  // host order; 0: the entry is empty
    MacAddress mac;
  };

  Known* known_of(std::uint32_t address);
  bool watch(const packet::Interface& found, packet::Wakeup& wakeup, std::string& problem);
  bool has_connection(const std::byte* addresses, const std::byte* ports) const;
  void ask(std::uint32_t address);
  bool request(std::uint16_t type, std::uint16_t flags, std::uint8_t neighbour_flags, std::uint32_t address) const;
  void nudge(std::uint32_t address) const;
  std::size_t read_neighbours(packet::FramePool& pool, std::span<Packet*> out);
  std::size_t read_errors(packet::FramePool& pool, std::span<Packet*> out) const;
  Packet* answer(packet::FramePool& pool, std::uint32_t address, const MacAddress& mac);
  void ask_again() const;
  [[nodiscard]] bool is_another() const;

  int interface_ = 0;
  std::string name_;
  MacAddress mac_;
  packet::Descriptor netlink_, icmp_, sockets_;
  bool moved_ = false;
  bool may_ask_ = true;  // the kernel lets us ask (CAP_NET_ADMIN)
  struct Question {
    std::uint32_t address = 0;  // host order; 0: the entry is empty
    std::uint32_t asker = 0;
  };
  std::array<Question, 64> open_{};
  std::size_t questions_ = 0;
  std::size_t next_ = 0;
  std::array<Known, 512> known_{};  // what the stack was told last; as many entries as it has neighbours
  std::size_t next_known_ = 0;
};

}  // namespace bypass::verbs
