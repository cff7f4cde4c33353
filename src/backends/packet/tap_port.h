// TapPort: an interface of our own making whose other end is the kernel (tap:NAME).
//
// The interface exists as long as the port is open; if it was made persistent before, it stays. The kernel's side is
// configured with ip(8). The virtio header passes checksums and frames of 64 KiB over, as with packet sockets. A tap
// device has no ring: each frame received or sent is a system call, and so is each look at an empty queue.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "backends/packet/frame_port.h"
#include "backends/packet/frames/vnet.h"

namespace bypass::packet {

class TapPort final : public FramePort {
 public:
  /// Null: `problem` says why.
  static std::unique_ptr<TapPort> open(const PortSpec& spec, std::string& problem);

  std::size_t receive(std::uint16_t queue, std::span<Packet*> out) override;
  std::size_t send(std::uint16_t queue, std::span<Packet* const> frames) override;
  void look() override;

 private:
  bool set_up(const PortSpec& spec, std::string& problem);
  bool make_device(std::string& problem);
  void bring_up();
  Packet* take_one();

  std::string name_;
  Descriptor tap_;
  Descriptor asking_;                     // any socket, to ask for the interface's state
  std::array<std::byte, 1 << 17> frame_;  // the frame that is being received
};

}  // namespace bypass::packet
