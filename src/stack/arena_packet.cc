#include "stack/arena_packet.h"

#include <cstring>
#include <new>

namespace bypass {

std::size_t arena_packet_size(std::size_t bytes_and_headroom) {
  return Memory::block_size(sizeof(Packet) + bytes_and_headroom);
}

Packet* allocate_arena_packet(Memory& memory, std::uint32_t headroom, std::size_t bytes) {
  const std::size_t wanted = sizeof(Packet) + headroom + bytes;
  if (wanted > kMaxBlock) return nullptr;
  void* block = memory.allocate(wanted);
  if (block == nullptr) return nullptr;
  auto* packet = new (block) Packet{};
  packet->buffer = static_cast<std::byte*>(block) + sizeof(Packet);
  packet->capacity = static_cast<std::uint32_t>(Memory::block_size(wanted) - sizeof(Packet));
  packet->flags = kInArena;
  packet->reset(headroom);
  return packet;
}

Packet* copy_to_arena(Memory& memory, const Packet& frame) {
  Packet* copy = allocate_arena_packet(memory, 0, frame.frame_len);
  if (copy == nullptr) return nullptr;
  std::byte* to = copy->data;
  const auto append = [&to](const std::byte* bytes, std::size_t len) {
    if (len != 0) std::memcpy(to, bytes, len);
    to += len;
  };
  for (const Packet* p = &frame; p != nullptr; p = p->next_segment) append(p->data, p->len);
  for (int i = 0; i < 2; i++) append(frame.external[i], frame.external_len[i]);
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

}  // namespace bypass
