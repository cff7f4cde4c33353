// Numbers that an outsider must not guess: initial sequence numbers (RFC 6528), timestamp offsets
// (RFC 7323 §7.1) and ephemeral ports (RFC 6056 algorithm 3), all from SipHash-2-4 under the engine's secret.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "stack/address.h"
#include "stack/tcp/seq.h"
#include "stack/time.h"

namespace bypass::tcp {

/// 128 bits; EngineConfig::secret.
struct Secret {
  std::uint64_t k0 = 0, k1 = 0;
};

/// SipHash-2-4 (Aumasson and Bernstein 2012).
std::uint64_t siphash24(const Secret& secret, std::span<const std::byte> bytes);

/// ISN = M + F(local, remote, secret). M ticks every 4 µs, so that a new connection between the same endpoints starts
/// above the last one.
SeqNum initial_sequence(const Secret& secret, const Endpoint& local, const Endpoint& remote, Instant now);

/// What a connection adds to the timestamp clock. It is the same for each connection between two endpoints, so that
/// timestamps keep rising (RFC 6191 needs this to reuse TIME_WAIT).
std::uint32_t timestamp_offset(const Secret& secret, const Endpoint& local, const Endpoint& remote);

/// RFC 6056 §3.3.3: where the search through the ephemeral ports begins for a destination. The candidate of the n-th
/// try is ephemeral_port(offset + next_ephemeral + n, …); next_ephemeral is one counter of the engine.
std::uint32_t port_offset(const Secret& secret, const IpAddress& local, const Endpoint& remote);
constexpr std::uint16_t ephemeral_port(std::uint32_t step, std::uint16_t first, std::uint16_t last) {
  return static_cast<std::uint16_t>(first + step % (static_cast<std::uint32_t>(last - first) + 1));
}

}  // namespace bypass::tcp
