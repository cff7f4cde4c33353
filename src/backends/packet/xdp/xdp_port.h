// XdpPort: an existing network interface, through an AF_XDP socket (af_xdp:IFNAME).
//
// The frames for us are taken from the kernel in its driver, before its stack sees them; everything else stays the
// kernel's. Buffers are the socket's own chunks, so received frames are handed up where they lie. There are no
// offloads: the stack makes and verifies checksums, and a frame is a segment.
//
// A veth's peer does not know that: frames from its own programs come with the checksum still to be filled in. The
// checksum field of such a frame holds only the pseudo header's sum. At a veth, the port accepts that as a good
// checksum.
//
// On a shared interface only steered frames come that way. ARP, neighbour discovery and groups' frames go to the
// kernel, and a small packet ring brings copies of them.
#pragma once

#include <memory>
#include <string>

#include "backends/packet/frame_port.h"
#include "backends/packet/frames/rx_ring.h"
#include "backends/packet/interface.h"
#include "backends/packet/xdp/xdp_program.h"
#include "backends/packet/xdp/xdp_ring.h"

namespace bypass::packet {

class XdpPort final : public FramePort {
 public:
  /// Null: `problem` says why.
  static std::unique_ptr<XdpPort> open(const PortSpec& spec, std::string& problem);

  std::size_t receive(std::uint16_t queue, std::span<Packet*> out) override;
  std::size_t send(std::uint16_t queue, std::span<Packet* const> frames) override;
  bool arm(std::uint16_t queue) override;
  void look() override;

 private:
  bool set_up(const PortSpec& spec, std::string& problem);
  bool choose(const PortSpec& spec, Interface& interface, std::string& problem);
  bool make_rings();
  bool bind_to(int interface);
  bool bind_patiently(int interface);
  bool attach(int interface, std::span<const IpAddress> addresses);
  bool open_copies(int interface);
  std::size_t take_received(std::span<Packet*> out);
  std::size_t take_copies(std::span<Packet*> out);
  void fill();
  void reap();
  void kick();
  [[nodiscard]] Packet* packet_at(std::uint64_t address) const;
  [[nodiscard]] std::uint64_t address_of(const std::byte* at) const;

  std::string name_;
  int index_ = 0;
  bool is_veth_ = false;
  // a packet socket that holds our MAC address at the interface, and asks for the interface's state
  Descriptor asking_;
  Descriptor socket_;
  XdpRing<xdp_desc> rx_, tx_;
  XdpRing<std::uint64_t> fill_, completion_;
  std::uint32_t posted_ = 0;  // chunks that the kernel will receive into, or has received into
  XdpProgram program_;
  std::unique_ptr<RxRing> copies_;  // the copies for a shared interface; null: the interface is not shared
};

}  // namespace bypass::packet
