// LinksConfig: how the process wants its links, set before the first connection.
// Tests: tests/fastpath/peer_links_test.cc.
#pragma once

#include <cstdint>
#include <span>

#include "fastpath/framed/handshake.h"
#include "stack/address.h"

namespace bypass::fastpath {

struct PeerLink;
struct PeerTable;

struct LinksConfig {
  static constexpr unsigned kPlaceBits = 20, kHostBits = 12;

  std::uint32_t link_memory = 0;          // bytes a link, a power of two (LinkLayout); 0: by the arena's budget
  std::uint64_t (*random)() = nullptr;    // returns 0 if no random number can be had
  std::uint32_t tcp_window = 256U << 10;  // FramedConfig's
  std::uint8_t capabilities = kCapRoce;   // those of the devices that will be added
  /// Where this process shares memory: kPlaceBits, of which the upper kHostBits name the host and the others a run
  /// directory there. Two places may be equal by chance; a process that asks is then refused. 0: not known.
  std::uint32_t place = 0;
  /// Peers that are asked although a router is between. Without such a rule the experimental option goes only to the
  /// port's own subnets, because it may only go where it is known to be welcome (RFC 3692). The span must outlive the
  /// links.
  std::span<const Prefix> routed_peers{};
  /// Called when a link is up, was not made, or has failed; the entry has its stage and reason. With kRefused, no link
  /// was asked for; the peer is then unset if the reason has to do with no particular peer. May be null.
  void (*note)(const PeerLink& link) = nullptr;

  /// The family's table, where this image goes on with that of the image before; null: a new one is made.
  PeerTable* table = nullptr;

  /// Whether a stack's tag, whose upper bits say where it is, names our place.
  [[nodiscard]] bool is_our_place(std::uint32_t tag) const { return place != 0 && tag >> (32 - kPlaceBits) == place; }
  [[nodiscard]] bool is_our_host(std::uint32_t tag, std::uint32_t ours) const {
    return place != 0 && (tag ^ ours) >> (32 - kHostBits) == 0;
  }
};

}  // namespace bypass::fastpath
