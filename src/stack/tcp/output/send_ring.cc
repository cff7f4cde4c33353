#include "stack/tcp/output/send_ring.h"

#include <algorithm>
#include <utility>

#include "stack/copy.h"

namespace bypass::tcp {

Result<Room> SendRing::reserve(Memory& memory, std::size_t want, std::size_t limit) {
  if (want == 0) return Error::kInvalid;
  if (reserved()) return Error::kAlready;
  const std::size_t allowed = std::min({want, room(limit), kMaxBlock - size()});
  if (allowed == 0) return Error::kWouldBlock;
  if (block_ == nullptr) take_first(memory, allowed);
  if (capacity_ - size() < allowed) grow(memory, size() + allowed);
  if (block_ == nullptr) take_least(memory, allowed);
  const std::size_t given = std::min(allowed, capacity_ - size());
  if (given == 0) return empty() ? Error::kNoMemory : Error::kWouldBlock;

  if (empty()) origin_ = end_;
  reserved_ = static_cast<std::uint32_t>(given);
  const std::size_t at = position(end_);
  const std::size_t first = std::min(given, capacity_ - at);
  return Room{{{block_ + at, first}, {block_, given - first}}};
}

void SendRing::commit(Memory& memory, std::size_t bytes) {
  end_ += std::min<std::size_t>(bytes, reserved_);
  reserved_ = 0;
  release_if_idle(memory);
}

SendRing::Spans SendRing::spans(std::uint64_t offset, std::size_t length) const {
  if (length == 0) return {};
  const std::size_t at = position(offset);
  const std::size_t first = std::min(length, capacity_ - at);
  return {{{block_ + at, first}, {block_, length - first}}};
}

void SendRing::advance(Memory& memory, std::uint64_t una) {
  begin_ = una;
  release_if_idle(memory);
}

void SendRing::unpin(Memory& memory) {
  pins_--;
  release_if_idle(memory);
}

void SendRing::clear(Memory& memory) {
  begin_ = end_;
  release_if_idle(memory);
}

/// `block` may be null: the ring then has no block.
void SendRing::begin_with(void* block, std::size_t bytes) {
  block_ = static_cast<std::byte*>(block);
  capacity_ = block_ != nullptr ? static_cast<std::uint32_t>(bytes) : 0;
}

/// The usual case: a request or an answer in an empty ring. When memory is short, grow() does the rest.
void SendRing::take_first(Memory& memory, std::size_t needed) {
  const std::size_t wanted = needed <= kFirstBlock ? kFirstBlock : Memory::block_size(needed);
  begin_with(memory.allocate_bulk(wanted), wanted);
}

/// Linux lets each socket have some bytes whatever the memory (tcp_wmem[0]). A program that waits to write its question
/// may be the one that has all the answers to read.
void SendRing::take_least(Memory& memory, std::size_t needed) {
  if (memory.is_short()) return;
  const std::size_t wanted = Memory::block_size(std::min(needed, kFirstBlock));
  begin_with(memory.allocate(wanted), wanted);
}

/// Takes a block for `needed` live and new bytes, or the largest smaller one that can be had, and moves the live bytes
/// to its start.
void SendRing::grow(Memory& memory, std::size_t needed) {
  if (busy()) return;
  std::size_t wanted = Memory::block_size(std::max(needed, kFirstBlock));
  void* larger = nullptr;
  for (; wanted > capacity_ && wanted >= kFirstBlock; wanted /= 2)
    if ((larger = memory.allocate_bulk(wanted)) != nullptr) break;
  if (larger == nullptr) return;

  auto* to = static_cast<std::byte*>(larger);
  for (const auto& part : spans(begin_, size()).part) {
    if (!part.empty()) copy_bytes(to, part.data(), part.size());
    to += part.size();
  }
  std::byte* smaller = std::exchange(block_, static_cast<std::byte*>(larger));
  capacity_ = static_cast<std::uint32_t>(wanted);
  origin_ = begin_;
  if (smaller != nullptr) memory.release(smaller);
}

void SendRing::release_if_idle(Memory& memory) {
  if (block_ == nullptr || busy() || !empty()) return;
  capacity_ = 0;
  memory.release(std::exchange(block_, nullptr));
}

}  // namespace bypass::tcp
