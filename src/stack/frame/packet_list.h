// A first-in-first-out list of frames, linked through Packet::queue_next. It lies in the arena; the list's owner owns
// the frames.
#pragma once

#include <cstdint>

#include "stack/frame/packet.h"

namespace bypass {

class PacketList {
 public:
  void push(Packet* packet) {
    packet->queue_next = nullptr;
    (tail_ != nullptr ? tail_->queue_next : head_) = packet;
    tail_ = packet;
    count_++;
  }
  Packet* pop() {
    Packet* packet = head_;
    if (packet == nullptr) return nullptr;
    head_ = packet->queue_next;
    if (head_ == nullptr) tail_ = nullptr;
    packet->queue_next = nullptr;
    count_--;
    return packet;
  }
  /// Moves the other list's frames to the end of this one.
  void take_all(PacketList& other) {
    while (Packet* packet = other.pop()) push(packet);
  }
  [[nodiscard]] Packet* front() const { return head_; }
  [[nodiscard]] std::uint32_t count() const { return count_; }
  [[nodiscard]] bool empty() const { return head_ == nullptr; }

 private:
  Packet* head_ = nullptr;
  Packet* tail_ = nullptr;
  std::uint32_t count_ = 0;
};

}  // namespace bypass
