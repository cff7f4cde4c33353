#include "softverbs/engine/transmit.h"

#include <algorithm>
#include <span>

#include "softverbs/engine/wire/crc32.h"
#include "stack/copy.h"

namespace bypass::rdma {

Transmit::~Transmit() {
  port_.free(std::span{batch_}.first(pending_));
  port_.free(std::span{spare_}.first(spare_count_));
  while (Packet* frame = loop_.pop()) free(frame);
}

void Transmit::flush() {
  if (pending_ == 0) return;
  const std::size_t sent = port_.send(queue_, std::span{batch_}.first(pending_));
  std::copy(batch_.begin() + static_cast<std::ptrdiff_t>(sent), batch_.begin() + static_cast<std::ptrdiff_t>(pending_),
            batch_.begin());
  pending_ -= sent;
  fetch_spare();
}

void Transmit::fetch_spare() const {
  constexpr std::size_t kCacheLine = 64;
  if (spare_count_ == 0) return;
  const std::byte* const at = spare_[spare_count_ - 1]->data;
  __builtin_prefetch(at, 1);
  __builtin_prefetch(at + kCacheLine, 1);
}

bool FrameWriter::grow() {
  Packet* segment = transmit_.alloc();
  if (segment == nullptr) {
    transmit_.free(std::exchange(head_, nullptr));
    return false;
  }
  tail_->next_segment = segment;
  tail_ = segment;
  return true;
}

std::byte* FrameWriter::append_raw(std::size_t len) {
  if (head_ == nullptr || (tail_->tailroom() < len && !grow())) return nullptr;
  std::byte* at = tail_->data + tail_->len;
  tail_->len += static_cast<std::uint32_t>(len);
  head_->frame_len += static_cast<std::uint32_t>(len);
  return at;
}

template <typename Write>
void FrameWriter::append_pieces(const void* bytes, std::size_t len, Write&& write) {
  const auto* from = static_cast<const std::byte*>(bytes);
  while (len != 0 && head_ != nullptr) {
    if (tail_->tailroom() == 0 && !grow()) return;
    const std::size_t n = std::min(len, tail_->tailroom());
    write(append_raw(n), from, n);
    from += n;
    len -= n;
  }
}

void FrameWriter::append(const void* bytes, std::size_t len) {
  append_pieces(bytes, len, [](std::byte* to, const std::byte* from, std::size_t n) { copy_bytes(to, from, n); });
}

// The copy is made first, as a whole: memory that a peer's processor had last is fetched faster if nothing comes
// between the stores.
void FrameWriter::append_summing(const void* bytes, std::size_t len, std::uint32_t& crc) {
  append_pieces(bytes, len, [&](std::byte* to, const std::byte* from, std::size_t n) {
    copy_bytes(to, from, n);
    crc = crc32_update(crc, to, n);
  });
}

}  // namespace bypass::rdma
