// FrameWriter: fills one outgoing L4 packet from pieces, over as many buffers as it takes, summing as it copies.
#pragma once

#include <cstddef>
#include <span>

#include "stack/checksum.h"
#include "stack/network.h"
#include "stack/packet.h"

namespace bypass {

class FrameWriter {
 public:
  /// Begins with the L4 header's `header_len` bytes, left to the caller and not part of the sum. `summing` off: the
  /// port makes the checksum.
  FrameWriter(Network& network, Context& ctx, const Path& path, std::size_t header_len, bool summing = true);
  ~FrameWriter();
  FrameWriter(const FrameWriter&) = delete;
  FrameWriter& operator=(const FrameWriter&) = delete;

  /// False when the port (or the arena) has no frame left; the frame is then given back at the end.
  [[nodiscard]] bool append(std::span<const std::byte> bytes);
  /// `len` bytes of a received frame from `offset` on.
  [[nodiscard]] bool append(const Packet& frame, std::size_t offset, std::size_t len);

  [[nodiscard]] bool ok() const { return head_ != nullptr; }
  [[nodiscard]] Packet* frame() { return head_; }
  /// Of the bytes appended, as if they began at an even offset.
  [[nodiscard]] PartialSum sum() const { return sum_; }
  /// The frame becomes the caller's.
  Packet* take();

 private:
  [[nodiscard]] bool grow();
  void copy(std::byte* to, std::span<const std::byte> from);

  Network& network_;
  Context& ctx_;
  const Path& path_;
  Packet* head_;
  Packet* last_;
  PartialSum sum_;
  bool summing_, odd_ = false;
};

}  // namespace bypass
