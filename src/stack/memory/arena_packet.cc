#include "stack/memory/arena_packet.h"

#include <algorithm>
#include <new>
#include <span>
#include <utility>

#include "stack/copy.h"

namespace bypass {
namespace {

constexpr std::size_t kSmallPacket = 512;  // a Packet with all headers and options, and nothing else

// Calls f with the frame's bytes in order, piece by piece.
template <typename F>
void for_each_piece(const Packet& frame, F&& f) {
  for (const Packet* p = &frame; p != nullptr; p = p->next_segment) f(p->bytes());
  for (int i = 0; i < 2; i++) f(std::span{frame.external[i], frame.external_len[i]});
}

// Appends bytes after a chain's last buffer, in as many more buffers as needed. False: the port has no buffer left.
bool append(PortQueue& queue, Packet*& last, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    if (last->tailroom() == 0) {
      Packet* next = queue.alloc();
      if (next == nullptr) return false;
      next->data = next->buffer;
      last->next_segment = next;
      last = next;
    }
    const std::size_t n = std::min(bytes.size(), last->tailroom());
    copy_bytes(last->data + last->len, bytes.data(), n);
    last->len += static_cast<std::uint32_t>(n);
    bytes = bytes.subspan(n);
  }
  return true;
}

}  // namespace

std::size_t arena_packet_size(std::size_t bytes_and_headroom) {
  return Memory::block_size(sizeof(Packet) + bytes_and_headroom);
}

namespace {

Packet* make_packet(void* block, std::uint32_t headroom, std::size_t wanted) {
  if (block == nullptr) return nullptr;
  auto* packet = new (block) Packet{};
  packet->buffer = static_cast<std::byte*>(block) + sizeof(Packet);
  packet->capacity = static_cast<std::uint32_t>(Memory::block_size(wanted) - sizeof(Packet));
  packet->flags = kInArena;
  packet->reset(headroom);
  return packet;
}

}  // namespace

Packet* allocate_arena_packet(Memory& memory, std::uint32_t headroom, std::size_t bytes) {
  const std::size_t wanted = sizeof(Packet) + headroom + bytes;
  return make_packet(wanted <= kMaxBlock ? memory.allocate(wanted) : nullptr, headroom, wanted);
}

Packet* allocate_received(Memory& memory, std::size_t bytes) {
  const std::size_t wanted = sizeof(Packet) + bytes;
  return make_packet(wanted <= kSmallPacket ? memory.allocate(wanted) : memory.allocate_bulk(wanted), 0, wanted);
}

Packet* allocate_arena_chain(Memory& memory, std::size_t bytes) {
  // two blocks of this size and a small one hold 64 KiB
  constexpr std::size_t kLargest = (std::size_t{32} << 10) - sizeof(Packet);
  Packet* head = nullptr;
  Packet** link = &head;
  do {
    const std::size_t piece = std::min(bytes, kLargest);
    Packet* packet = allocate_arena_packet(memory, 0, piece);
    if (packet == nullptr) break;
    *link = packet;
    link = &packet->next_segment;
    bytes -= piece;
  } while (bytes != 0);
  if (bytes == 0) return head;
  release_arena_packet(memory, head);
  return nullptr;
}

void release_arena_packet(Memory& memory, Packet* packet) {
  while (packet != nullptr) {
    Packet* const next = packet->next_segment;
    memory.release(packet);
    packet = next;
  }
}

bool mark_arena_packet(Memory& memory, const Packet& packet) {
  for (const Packet* p = &packet; p != nullptr; p = p->next_segment)
    if (!memory.mark_in_use(p)) return false;
  return true;
}

namespace {

Packet* copied(Packet* copy, const Packet& frame) {
  if (copy == nullptr) return nullptr;
  std::byte* to = copy->data;
  for_each_piece(frame, [&to](std::span<const std::byte> bytes) {
    if (!bytes.empty()) copy_bytes(to, bytes.data(), bytes.size());
    to += bytes.size();
  });
  Packet saved = frame;
  saved.data = copy->data;
  saved.buffer = copy->buffer;
  saved.capacity = copy->capacity;
  saved.len = saved.frame_len = static_cast<std::uint32_t>(to - copy->data);
  saved.next_segment = saved.queue_next = nullptr;
  saved.external[0] = saved.external[1] = nullptr;
  saved.external_len[0] = saved.external_len[1] = 0;
  saved.flags |= kInArena;
  *copy = saved;
  return copy;
}

}  // namespace

Packet* copy_to_arena(Memory& memory, const Packet& frame) {
  return copied(allocate_received(memory, frame.frame_len), frame);
}

Packet* copy_to_kept_back(Memory& memory, const Packet& frame) {
  Packet* copy = copied(allocate_arena_packet(memory, 0, frame.frame_len), frame);
  if (copy != nullptr) copy->flags |= kInReserve;
  return copy;
}

Packet* move_to_arena(Context& ctx, Packet* frame) {
  if ((frame->flags & kInArena) != 0 || !ctx.has_port_of(*frame)) return frame;
  Packet* copy = copy_to_arena(*ctx.memory, *frame);
  if (copy == nullptr) return frame;
  ctx.release(frame);
  return copy;
}

std::size_t move_to_arena(Context& ctx, PacketList& list) {
  std::size_t stayed = 0;
  PacketList old = std::exchange(list, {});
  while (Packet* frame = old.pop()) {
    Packet* packet = move_to_arena(ctx, frame);
    if ((packet->flags & kInArena) == 0) stayed++;
    list.push(packet);
  }
  return stayed;
}

Packet* to_device_frame(PortQueue& queue, const Packet& packet) {
  Packet* head = queue.alloc();
  if (head == nullptr) return nullptr;
  // The layout is a sender's: headers in the headroom, payload aligned after them.
  const std::size_t headers = std::size_t{packet.l2_len} + packet.l3_len + packet.l4_len;
  head->data -= std::min(headers, head->headroom());
  Packet* last = head;
  bool whole = true;
  for_each_piece(packet, [&](std::span<const std::byte> bytes) { whole = whole && append(queue, last, bytes); });
  if (!whole) {
    queue.free(head);
    return nullptr;
  }
  head->frame_len = packet.frame_len;
  // kInArena keeps the value of the new frame, as a port may have its buffers in the arena.
  head->flags = static_cast<std::uint16_t>((packet.flags & ~kInArena) | (head->flags & kInArena));
  head->l2_len = packet.l2_len;
  head->l3_len = packet.l3_len;
  head->l4_len = packet.l4_len;
  head->tso_mss = packet.tso_mss;
  return head;
}

}  // namespace bypass
