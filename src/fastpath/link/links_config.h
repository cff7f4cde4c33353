// LinksConfig: what the process says of its links, before the first connection.
#pragma once

#include <cstdint>
#include <span>

#include "fastpath/framed/handshake.h"
#include "stack/address.h"

namespace bypass::fastpath {

struct PeerLink;

struct LinksConfig {
  static constexpr unsigned kPlaceBits = 20, kHostBits = 12;

  std::uint32_t link_memory = 0;          // bytes a link, a power of two (LinkLayout); 0: by the arena's budget
  std::uint64_t (*random)() = nullptr;    // 0: there are no random numbers to be had
  std::uint32_t tcp_window = 256U << 10;  // FramedConfig's
  std::uint8_t capabilities = kCapRoce;   // of the devices to come
  /// Where memory may be shared: kPlaceBits, of which the upper kHostBits are the host's and the others those of a
  /// run directory there. Equal ones may be another's by chance; who asks is then refused. 0: not known.
  std::uint32_t place = 0;
  /// Peers that are asked though a router is between: beyond the port's own subnets an experimental option goes only
  /// where it is known to be welcome (RFC 3692). Outlives the links.
  std::span<const Prefix> routed_peers{};
  /// A link is up, was not made, or has failed: its stage and reason; or, with kRefused, there is no reason to ask
  /// for one, its peer being nobody in particular where that has to do with none. May be null.
  void (*note)(const PeerLink& link) = nullptr;

  /// Of a stack's tag, whose upper bits say where it is.
  [[nodiscard]] bool is_our_place(std::uint32_t tag) const { return place != 0 && tag >> (32 - kPlaceBits) == place; }
  [[nodiscard]] bool is_our_host(std::uint32_t tag, std::uint32_t ours) const {
    return place != 0 && (tag ^ ours) >> (32 - kHostBits) == 0;
  }
};

}  // namespace bypass::fastpath
