// Listener: a port that takes connections, its SYN queue and its accept queue (RFC 9293 §3.10.7.2).
//
// Linux's semantics: backlog + 1 connections may wait to be accepted; a SYN that finds them full is
// dropped, and so is the ACK that would complete one more (the SYN-ACK is sent again later).
// A half-open connection is a whole Tcb that names its listener; the SYN queue is a count.
#pragma once

#include <cstddef>
#include <cstdint>

#include "stack/address.h"
#include "stack/events.h"
#include "stack/memory.h"
#include "stack/tcp/engine.h"

namespace bypass::tcp {

struct Listener {
  EventNode event;                // first: the socket layer knows a Listener by it
  Listener* port_next = nullptr;  // others whose port hashes alike
  Endpoint local;
  std::uint32_t backlog = 0;
  std::uint32_t half_open = 0;     // Tcbs in SYN-RECEIVED, and those that defer_accept holds back
  std::uint32_t accept_count = 0;  // Tcbs in the accept queue
  std::uint32_t next_order = 0;    // for the queue's order after a rebuild
  Tcb* accept_head = nullptr;
  Tcb* accept_tail = nullptr;
  Options options;

  [[nodiscard]] bool accept_full() const { return accept_count > backlog; }
  [[nodiscard]] bool matches(const Endpoint& to) const {
    return local.port == to.port && (local.address.is_any() || local.address == to.address);
  }
};
static_assert(offsetof(Listener, event) == 0);

/// Listeners by port; of two that match, the one with the address wins.
class ListenerTable {
 public:
  void clear();
  void insert(Listener& listener);
  void erase(Listener& listener);
  [[nodiscard]] Listener* find(const Endpoint& to) const;
  /// One whose local address overlaps: bind() would fail.
  [[nodiscard]] Listener* conflicting(const Endpoint& local) const;

 private:
  static constexpr std::size_t kBuckets = 256;
  Listener* buckets_[kBuckets]{};
};

void accept_push(Listener& listener, Tcb& tcb);
Tcb* accept_pop(Listener& listener);

}  // namespace bypass::tcp
