// FragmentWriter: fills the fragments of one outgoing L4 packet that is larger than its path's MTU (RFC 791 §3.2).
// Network::send_fragments() sends them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "stack/frame/checksum.h"
#include "stack/frame/frame_writer.h"
#include "stack/frame/packet.h"
#include "stack/frame/packet_list.h"
#include "stack/frame/wire.h"
#include "stack/ip/network.h"

namespace bypass {

/// Whether an L4 packet of so many bytes fits into one IP packet on this path. On the path to ourselves every packet
/// does.
[[nodiscard]] inline bool fits_one_packet(const Path& path, std::size_t l4_bytes) {
  return l4_bytes + sizeof(wire::Ipv4) <= path.mtu || path.neighbour == Path::kLooped;
}

class FragmentWriter {
 public:
  /// As FrameWriter's; the L4 header lies in the first fragment and has an even length.
  FragmentWriter(Network& network, Context& ctx, const Path& path, std::size_t header_len);
  ~FragmentWriter();
  FragmentWriter(const FragmentWriter&) = delete;
  FragmentWriter& operator=(const FragmentWriter&) = delete;

  /// False if the port has no frame left; the destructor then gives all fragments back.
  [[nodiscard]] bool append(std::span<const std::byte> bytes);
  /// `len` bytes of a received frame from `offset` on.
  [[nodiscard]] bool append(const Packet& frame, std::size_t offset, std::size_t len);

  /// The sum of the appended bytes. Every fragment but the last one has an even length.
  [[nodiscard]] PartialSum sum() const { return sum_ + current_->sum(); }
  /// The first fragment, whose L4 header the caller fills in. After that the caller takes over the fragments.
  [[nodiscard]] Packet* first() { return done_.empty() ? current_->frame() : done_.front(); }
  PacketList take();

 private:
  void finish_current();

  Network& network_;
  Context& ctx_;
  const Path& path_;
  std::size_t most_;  // payload bytes of a fragment at most
  PacketList done_;
  PartialSum sum_;
  std::optional<FrameWriter> current_;
};

}  // namespace bypass
