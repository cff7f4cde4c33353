// Recognizes a frame whose TCP or UDP checksum is still to be filled in (the kernel's CHECKSUM_PARTIAL), where nothing
// but the frame can tell. The field holds the pseudo header's sum (RFC 9293 §3.1, RFC 768), not inverted.
#pragma once

#include <cstddef>
#include <span>

namespace bypass::packet {

/// For an Ethernet frame with IPv4; false for any other. One damaged frame in 65,536 is taken for such a frame.
bool has_partial_checksum(std::span<const std::byte> frame);

}  // namespace bypass::packet
