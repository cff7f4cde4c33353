// Listener: a port that accepts connections, with its SYN queue and accept queue (RFC 9293 §3.10.7.2).
//
// Linux's semantics: backlog + 1 connections may wait to be accepted. While they wait, a new SYN is dropped, and so is
// the ACK that would complete another connection (the SYN-ACK is sent again later). A half-open connection is a whole
// Tcb that names its listener; the SYN queue is a count. Once that is full, SYN cookies (syn_cookie.h) take its place.
// Connections that TCP_DEFER_ACCEPT holds back are counted separately: their peers have shown that they exist, so other
// SYNs lose no room to them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "stack/address.h"
#include "stack/events.h"
#include "stack/memory/memory.h"
#include "stack/tcp/engine.h"

namespace bypass::tcp {

struct Listener {
  EventNode event;                // first: the socket layer knows a Listener by it
  Listener* port_next = nullptr;  // the next listener with the same hash of the port
  Endpoint local;
  bool shared = false;   // SO_REUSEPORT: other shared listeners may have the same address and port
  bool steered = false;  // FlowLog has noted it
  std::uint32_t backlog = 0;
  std::uint32_t half_open = 0;     // Tcbs in SYN-RECEIVED
  std::uint32_t deferred = 0;      // established, and held back by defer_accept
  std::uint32_t accept_count = 0;  // Tcbs in the accept queue
  std::uint32_t next_order = 0;    // gives the order of the accept queue after a rebuild
  Tcb* accept_head = nullptr;
  Tcb* accept_tail = nullptr;
  Instant cookies_until{};  // when the latest cookie ends: until then an ACK without a connection may hold one
  Options options;

  [[nodiscard]] bool accept_full() const { return accept_count > backlog; }
  [[nodiscard]] bool matches(const Endpoint& to) const {
    return local.port == to.port && (local.address.is_any() || local.address == to.address);
  }
};
static_assert(offsetof(Listener, event) == 0);

/// Listeners by port. Of two that match, the one with the address wins. Of several that share one address, each gets a
/// part of the flows (socket(7), SO_REUSEPORT).
class ListenerTable {
 public:
  void clear();
  void insert(Listener& listener);
  void erase(Listener& listener);
  /// `flow_hash` chooses among listeners that share.
  [[nodiscard]] Listener* find(const Endpoint& to, std::uint32_t flow_hash) const;
  /// A listener whose local address overlaps, so that bind() would fail. A sharing listener does not count if `shared`
  /// is set.
  [[nodiscard]] Listener* conflicting(const Endpoint& local, bool shared = false) const;

 private:
  static constexpr std::size_t kBuckets = 256;
  Listener* buckets_[kBuckets]{};
};

void accept_push(Listener& listener, Tcb& tcb);
Tcb* accept_pop(Listener& listener);

}  // namespace bypass::tcp
