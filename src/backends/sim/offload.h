// What a network card does to a frame on the simulated wire: fill checksums, cut large TCP frames, verify.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace bypass::sim {

using Bytes = std::vector<std::byte>;

struct ChecksumVerdict {
  bool ip_good = false, l4_good = false, bad = false;
};

/// Verifies the checksums of an IPv4 frame. For other frames, it gives no verdict.
ChecksumVerdict verify_checksums(std::span<const std::byte> frame);

/// Fills the IPv4 header checksum (its field is zero).
void fill_ip_checksum(std::span<std::byte> frame, std::size_t l2_len, std::size_t l3_len);
/// Fills the L4 checksum over a field that holds the pseudo-header sum.
void fill_l4_checksum(std::span<std::byte> frame, std::size_t l2_len, std::size_t l3_len);

/// Cuts a large TCP frame into frames of at most `mss` payload bytes, with all checksums filled.
std::vector<Bytes> cut_tcp(std::span<const std::byte> frame, std::size_t l2_len, std::size_t l3_len, std::size_t l4_len,
                           std::size_t mss);

}  // namespace bypass::sim
