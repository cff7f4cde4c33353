// KernelSide: what the kernel knows of an interface that it keeps, and a port that shares it needs. That is who has
// which MAC address (rtnetlink(7)), and ICMP errors about our packets (raw(7)). Neither can be steered to a queue pair:
// the kernel needs them itself.
//
// The stack goes on speaking ARP. Its questions are taken out of what it sends and put to the kernel. The kernel's
// answers come back as ARP replies, so that above the port nothing is different. A neighbour whose MAC address the
// kernel learns to be another one (ARP's requests and announcements reach the kernel alone) is announced, too.
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
  /// Frames of an ARP reply or an ICMP error that are ready at once.
  static constexpr std::size_t kMostReady = 16;

  /// Whether there is an interface of that name and MAC address. False: `problem`.
  static bool is_there(const std::string& interface, const MacAddress& mac, std::string& problem);
  /// Of the interface of that name. False: `problem`.
  bool open(const std::string& interface, packet::Wakeup& wakeup, std::string& problem);
  /// The same for the one that has the name and MAC address now. False: `problem`, if has_moved() holds still.
  bool follow(packet::Wakeup& wakeup, std::string& problem);
  /// The interface's. (An address that a GID is made of need not tell it: RFC 7217.)
  [[nodiscard]] const MacAddress& mac() const { return mac_; }
  /// The interface's number.
  [[nodiscard]] int index() const { return interface_; }
  [[nodiscard]] bool is_open() const { return netlink_.is_open(); }

  /// An outgoing ARP frame, which goes no further: a question is put to the kernel.
  void take_arp(const Packet& frame);
  /// An outgoing RST for a connection that is the kernel's. It came about before the flow of its port was steered, and
  /// its frames come here all the same (as copies, from a packet socket). A question to the kernel (sock_diag(7)).
  [[nodiscard]] bool is_wrong_reset(const Packet& frame) const;
  /// What the kernel has told since, as frames from `pool`, into `out`. System calls: to be called when the descriptor
  /// says so, while questions are open, and every now and then.
  std::size_t receive(packet::FramePool& pool, std::span<Packet*> out);
  [[nodiscard]] bool has_questions() const { return questions_ != 0; }
  /// Another interface has the name now, by what receive() has heard: follow() is for that.
  [[nodiscard]] bool has_moved() const { return moved_; }

 private:
  struct Known {
    std::uint32_t address = 0;  // host order; 0: none
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
  bool may_ask_ = true;  // the kernel lets us (CAP_NET_ADMIN)
  struct Question {
    std::uint32_t address = 0;  // host order; 0: none
    std::uint32_t asker = 0;
  };
  std::array<Question, 64> open_{};
  std::size_t questions_ = 0;
  std::size_t next_ = 0;
  std::array<Known, 512> known_{};  // what the stack was told last; as many as it has neighbours
  std::size_t next_known_ = 0;
};

}  // namespace bypass::verbs
