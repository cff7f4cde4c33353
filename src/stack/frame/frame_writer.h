// FrameWriter: fills one outgoing L4 packet from pieces, over as many buffers as needed, and sums the bytes as it
// copies them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "stack/copy.h"
#include "stack/frame/checksum.h"
#include "stack/frame/packet.h"
#include "stack/ip/network.h"

namespace bypass {

class FrameWriter {
 public:
  /// Begins with the L4 header's `header_len` bytes, which the caller fills in and which are not part of the sum.
  /// `summing` off: the port makes the checksum.
  FrameWriter(Network& network, Context& ctx, const Path& path, std::size_t header_len, bool summing = true)
      : network_(network), ctx_(ctx), path_(path), head_(network.alloc(ctx, path)), last_(head_), summing_(summing) {
    if (head_ != nullptr) head_->len = head_->frame_len = static_cast<std::uint32_t>(header_len);
  }
  ~FrameWriter() {
    if (head_ != nullptr) ctx_.release(head_);
  }
  FrameWriter(const FrameWriter&) = delete;
  FrameWriter& operator=(const FrameWriter&) = delete;

  /// False if the port (or the arena) has no frame left; the destructor then gives the frame back.
  [[nodiscard]] bool append(std::span<const std::byte> bytes) {
    if (head_ == nullptr || bytes.size() > last_->tailroom()) return append_growing(bytes);
    put(bytes);
    return true;
  }
  /// `len` bytes of a received frame from `offset` on.
  [[nodiscard]] bool append(const Packet& frame, std::size_t offset, std::size_t len);

  [[nodiscard]] bool ok() const { return head_ != nullptr; }
  [[nodiscard]] Packet* frame() { return head_; }
  /// Of the bytes appended, as if they began at an even offset.
  [[nodiscard]] PartialSum sum() const { return sum_; }
  /// The frame becomes the caller's.
  Packet* take() { return std::exchange(head_, nullptr); }

 private:
  [[nodiscard]] bool grow();
  [[nodiscard]] bool append_growing(std::span<const std::byte> bytes);
  void copy_summing(std::byte* to, std::span<const std::byte> from);
  // Into the last buffer, which has room.
  void put(std::span<const std::byte> bytes) {
    std::byte* to = last_->data + last_->len;
    if (summing_)
      copy_summing(to, bytes);
    else if (!bytes.empty())
      copy_bytes(to, bytes.data(), bytes.size());
    last_->len += static_cast<std::uint32_t>(bytes.size());
    head_->frame_len += static_cast<std::uint32_t>(bytes.size());
  }

  Network& network_;
  Context& ctx_;
  const Path& path_;
  Packet* head_;
  Packet* last_;
  PartialSum sum_;
  bool summing_, odd_ = false;
};

}  // namespace bypass
