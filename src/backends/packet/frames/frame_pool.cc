#include "backends/packet/frames/frame_pool.h"

#include <algorithm>
#include <cstring>

namespace bypass::packet {

FramePool::~FramePool() {
  // Frames that are still out must stay readable: then the memory is kept until the process ends.
  if (free_count() == total_) mapped_.unmap();
}

bool FramePool::create(const FrameLayout& layout, std::size_t budget_bytes, std::uint16_t port_index, Hugepages pages,
                       std::string& problem) {
  layout_ = layout;
  constexpr std::uint32_t kLeast = 256;
  const std::uint32_t count = std::max(kLeast, static_cast<std::uint32_t>(budget_bytes / layout.element));
  if (!mapped_.map(std::size_t{count} * layout.element, pages, problem)) return false;
  memory_ = mapped_.all().data();
  stack_ = std::make_unique<Packet*[]>(count);
  total_ = count;
  port_index_ = port_index;
  free_.store(count, std::memory_order_relaxed);
  return true;
}

Packet* FramePool::make_fresh() {
  if (fresh_ == total_) return nullptr;
  std::byte* const element = memory_ + std::size_t{fresh_++} * layout_.element;
  auto* const packet = new (element) Packet{};
  packet->buffer = element + kPacketRoom;
  packet->capacity = layout_.buffer;
  packet->port = port_index_;
  return packet;
}

Packet* FramePool::take() {
  Packet* const packet = stacked_ != 0 ? stack_[--stacked_] : make_fresh();
  if (packet == nullptr) {
    ran_dry_.store(ran_dry() + 1, std::memory_order_relaxed);
    return nullptr;
  }
  count_free(-1);
  packet->reset(kTxHeadroom);
  return packet;
}

std::size_t FramePool::alloc(std::span<Packet*> out) {
  std::size_t n = 0;
  while (n < out.size() && (out[n] = take()) != nullptr) n++;
  return n;
}

void FramePool::free_frame(Packet* head) {
  for (Packet* p = head; p != nullptr;) {
    Packet* const next = p->next_segment;
    stack_[stacked_++] = p;
    count_free(1);
    p = next;
  }
}

Packet* FramePool::copy_in(std::span<const std::byte> bytes) {
  Packet* head = nullptr;
  Packet** link = &head;
  for (std::span<const std::byte> left = bytes; head == nullptr || !left.empty();) {
    Packet* const segment = take();
    if (segment == nullptr) {
      free_frame(head);
      return nullptr;
    }
    const auto piece = left.first(std::min<std::size_t>(left.size(), layout_.buffer - kTxHeadroom));
    std::memcpy(segment->data, piece.data(), piece.size());
    segment->len = static_cast<std::uint32_t>(piece.size());
    *link = segment;
    link = &segment->next_segment;
    left = left.subspan(piece.size());
  }
  head->frame_len = static_cast<std::uint32_t>(bytes.size());
  return head;
}

}  // namespace bypass::packet
