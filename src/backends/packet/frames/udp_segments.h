// A program that sends with UDP_SEGMENT over a virtual interface hands its datagrams over in one frame
// (VnetHeader::kUdpDatagrams), as a card would get them. The stack needs the datagrams one by one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "backends/packet/frames/frame_pool.h"
#include "backends/packet/frames/vnet.h"
#include "stack/frame/packet.h"

namespace bypass::packet {

bool holds_datagrams(const VnetHeader& header);

/// The datagrams as frames of their own, linked by queue_next. Null: the frame is not valid, or the pool has too few
/// buffers. The checksums are marked as good, and not computed.
Packet* split_datagrams(FramePool& pool, std::span<const std::byte> frame, const VnetHeader& header);

}  // namespace bypass::packet
