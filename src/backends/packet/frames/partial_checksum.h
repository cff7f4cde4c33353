// A frame whose TCP or UDP checksum is still to be made (the kernel's CHECKSUM_PARTIAL), where nothing beside the frame
// says so. The field holds the pseudo header's sum (RFC 9293 §3.1, RFC 768), not inverted.
#pragma once

#include <cstddef>
#include <span>

namespace bypass::packet {

/// Of an Ethernet frame with IPv4; false for any other. A frame that was damaged looks like one in 65,536 cases.
bool has_partial_checksum(std::span<const std::byte> frame);

}  // namespace bypass::packet
