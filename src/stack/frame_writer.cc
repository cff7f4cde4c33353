#include "stack/frame_writer.h"

#include <algorithm>
#include <cstring>

namespace bypass {

FrameWriter::FrameWriter(Network& network, Context& ctx, const Path& path, std::size_t header_len, bool summing)
    : network_(network), ctx_(ctx), path_(path), head_(network.alloc(ctx, path)), last_(head_), summing_(summing) {
  if (head_ == nullptr) return;
  head_->len = head_->frame_len = static_cast<std::uint32_t>(header_len);
}

FrameWriter::~FrameWriter() {
  if (head_ != nullptr) ctx_.release(head_);
}

bool FrameWriter::grow() {
  Packet* next = network_.alloc(ctx_, path_);
  if (next == nullptr) return false;
  next->data = next->buffer;
  last_->next_segment = next;
  last_ = next;
  return true;
}

void FrameWriter::copy(std::byte* to, std::span<const std::byte> from) {
  if (!summing_) {
    std::memcpy(to, from.data(), from.size());
    return;
  }
  const PartialSum piece = copy_checksum(to, from.data(), from.size());
  sum_ += odd_ ? checksum_odd(piece) : piece;
  odd_ ^= (from.size() & 1) != 0;
}

bool FrameWriter::append(std::span<const std::byte> bytes) {
  if (head_ == nullptr) return false;
  while (!bytes.empty()) {
    if (last_->tailroom() == 0 && !grow()) return false;
    const std::size_t take = std::min(bytes.size(), last_->tailroom());
    copy(last_->data + last_->len, bytes.first(take));
    last_->len += static_cast<std::uint32_t>(take);
    head_->frame_len += static_cast<std::uint32_t>(take);
    bytes = bytes.subspan(take);
  }
  return true;
}

bool FrameWriter::append(const Packet& frame, std::size_t offset, std::size_t len) {
  if (head_ == nullptr) return false;
  for (const Packet* p = &frame; p != nullptr && len != 0; p = p->next_segment) {
    const std::size_t skip = std::min<std::size_t>(offset, p->len);
    offset -= skip;
    const std::size_t take = std::min(len, p->len - skip);
    if (!append({p->data + skip, take})) return false;
    len -= take;
  }
  return len == 0;
}

Packet* FrameWriter::take() {
  Packet* frame = head_;
  head_ = nullptr;
  return frame;
}

}  // namespace bypass
