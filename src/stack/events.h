// Events: how the stack tells the socket layer that something changed, without knowing it.
//
// Everything a socket can stand on (connection, listener, UDP endpoint) begins with an EventNode. The stack
// ORs bits into it and links it once. After a batch the owner of the lock takes the whole list and turns bits into
// readiness. It has no function pointer and nothing private to a process: the list lies in the arena and can be rebuilt
// from the nodes' bits.
#pragma once

#include <cstdint>

namespace bypass {

enum Event : std::uint16_t {
  kEventReadable = 1 << 0,   // bytes, a datagram, or a connection to accept have arrived
  kEventWritable = 1 << 1,   // room in the send buffer again after a writer found too little
  kEventConnected = 1 << 2,  // our connect succeeded
  kEventEof = 1 << 3,        // the peer's FIN has been received (all data before it is readable)
  kEventError = 1 << 4,      // `error` of the object is set: reset, timed out, refused, unreachable
  kEventClosed = 1 << 5,     // both directions have ended
  kEventDelivered = 1 << 6,  // the peer has acknowledged our FIN, and so everything before it
};

enum class EventSource : std::uint8_t { kNone, kTcp, kListener, kUdp };

struct EventNode {
  EventNode* next = nullptr;
  void* user = nullptr;  // the socket layer's object (in the arena), null when orphaned
  std::uint16_t events = 0;
  EventSource source = EventSource::kNone;
  bool linked = false;
};

class EventList {
 public:
  /// Orphaned nodes collect no events.
  void post(EventNode& node, std::uint16_t events) {
    if (node.user == nullptr) return;
    node.events = static_cast<std::uint16_t>(node.events | events);
    if (node.linked) return;
    node.linked = true;
    node.next = nullptr;
    (tail_ != nullptr ? tail_->next : head_) = &node;
    tail_ = &node;
  }
  /// Unlinks and returns the oldest node; its bits are left for the caller to read and clear.
  EventNode* take() {
    EventNode* node = head_;
    if (node == nullptr) return nullptr;
    head_ = node->next;
    if (head_ == nullptr) tail_ = nullptr;
    node->linked = false;
    node->next = nullptr;
    return node;
  }
  /// Removes an object that goes away while it is linked: O(length), rare.
  void remove(EventNode& node) {
    if (!node.linked) return;
    EventNode* before = nullptr;
    for (EventNode* n = head_; n != nullptr; before = n, n = n->next) {
      if (n != &node) continue;
      (before != nullptr ? before->next : head_) = n->next;
      if (tail_ == n) tail_ = before;
      break;
    }
    node.linked = false;
    node.next = nullptr;
    node.events = 0;
  }
  [[nodiscard]] bool empty() const { return head_ == nullptr; }
  void clear() { head_ = tail_ = nullptr; }

 private:
  EventNode* head_ = nullptr;
  EventNode* tail_ = nullptr;
};

}  // namespace bypass
