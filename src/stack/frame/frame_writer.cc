#include "stack/frame/frame_writer.h"

#include <algorithm>

namespace bypass {

bool FrameWriter::grow() {
  Packet* next = network_.alloc(ctx_, path_);
  if (next == nullptr) return false;
  next->data = next->buffer;
  last_->next_segment = next;
  last_ = next;
  return true;
}

void FrameWriter::copy_summing(std::byte* to, std::span<const std::byte> from) {
  const PartialSum piece = copy_checksum(to, from.data(), from.size());
  sum_ += odd_ ? checksum_odd(piece) : piece;
  odd_ ^= (from.size() & 1) != 0;
}

bool FrameWriter::append_growing(std::span<const std::byte> bytes) {
  if (head_ == nullptr) return false;
  while (!bytes.empty()) {
    if (last_->tailroom() == 0 && !grow()) return false;
    const std::size_t take = std::min(bytes.size(), last_->tailroom());
    put(bytes.first(take));
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

}  // namespace bypass
