// PacketPort: an existing network interface, through packet sockets (af_packet:IFNAME).
//
// The interface stays as it is: none of its settings is changed. In both directions a virtio header in front of each
// frame says which checksums are still to be filled in. It also says how long the segments of a frame beyond the MTU
// are. So the port takes frames as a veth or a bridge passes them within one machine, or as the kernel's receive
// offload joined them.
//
// Receiving makes no system call. There are two rings, because a slot must hold the longest frame: many slots for
// frames up to the MTU, few for those up to 64 KiB. The slots' time stamps tell which of two heads came first. Sending
// is one sendmmsg() a batch: the kernel copies once, from where the bytes lie, the send buffers included. A
// transmission ring would need a second copy, and a system call all the same.
//
// The stack has a MAC address of its own. So the kernel takes the stack's frames for somebody else's, and neither
// answers nor forwards them. A shared interface (PortSpec::share_interface) has one address for both. Then the rings
// take what is steered, and a program behind them keeps those frames from the kernel.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "backends/packet/frame_port.h"
#include "backends/packet/frames/rx_ring.h"
#include "backends/packet/frames/sender.h"
#include "backends/packet/interface.h"

namespace bypass::packet {

class PacketPort final : public FramePort {
 public:
  /// Null: `problem` says why.
  static std::unique_ptr<PacketPort> open(const PortSpec& spec, std::string& problem);
  ~PacketPort() override;

  std::size_t receive(std::uint16_t queue, std::span<Packet*> out) override;
  std::size_t send(std::uint16_t queue, std::span<Packet* const> frames) override;
  bool arm(std::uint16_t queue) override;
  void look() override;

 private:
  bool set_up(const PortSpec& spec, std::string& problem);
  bool open_sockets(const PortSpec& spec, std::string& problem);
  bool make_rings();
  bool attach(const Interface& interface);
  bool join(const Interface& interface);
  bool follow(const Interface& interface, std::string& problem);
  RxRing* next_ring();
  void take(const tpacket2_hdr& slot);
  std::size_t take_waiting(std::span<Packet*> out);
  void explain_truncation(const tpacket2_hdr& slot);
  [[nodiscard]] std::uint64_t lost_by_kernel() const override;

  std::string name_;
  int index_ = 0;  // index of the interface that the sockets are attached to; only LinkWatch's thread uses it
  Descriptor tx_;
  Sender sender_;
  RxRing short_frames_, long_frames_;
  Packet* waiting_ = nullptr;  // received and not handed out yet, linked by queue_next
  bool explained_ = false;
  std::atomic<bool> losing_{false};
  mutable std::atomic<std::uint64_t> lost_{0};
};

}  // namespace bypass::packet
