// PacketPort: an existing network interface, through packet sockets (af_packet:IFNAME).
//
// The interface stays as it is: no setting of its is changed. In both directions a virtio header in front of each frame
// says which checksums are still to be made, and how long the segments of a frame beyond the MTU are. So frames are
// taken as a veth or a bridge passes them within one machine, or as the kernel's receive offload joined them.
//
// Receiving makes no system call. There are two rings, because a slot must hold the longest frame: many slots for
// frames up to the MTU, few for those up to 64 KiB; the slots' time stamps tell which of two heads came first. Sending
// is one sendmmsg() a batch: the kernel copies from where the bytes lie, the send buffers included, once; the ring for
// transmission would have them copied twice, and needs its system call all the same.
//
// The stack has a MAC address of its own there, so that the kernel takes frames to it for somebody else's and neither
// answers nor forwards them. An interface that is shared (PortSpec::share_interface) has one for both; then the rings
// take what is steered, and a program behind them keeps that from the kernel.
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
  int index_ = 0;  // of the interface that the sockets are attached to; LinkWatch's thread
  Descriptor tx_;
  Sender sender_;
  RxRing short_frames_, long_frames_;
  Packet* waiting_ = nullptr;  // received and not handed out yet; by queue_next
  bool explained_ = false;
  std::atomic<bool> losing_{false};
  mutable std::atomic<std::uint64_t> lost_{0};
};

}  // namespace bypass::packet
