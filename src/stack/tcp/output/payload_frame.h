// The payload of a segment as a frame: copied into the frame's buffers, or referred to where it lies in the send ring.
#pragma once

#include <cstdint>

#include "stack/frame/checksum.h"
#include "stack/tcp/core.h"

namespace bypass::tcp {

/// A frame without its header, and the sum of its bytes if the port does not make the checksum. `frame` is null if the
/// pool has run out.
struct Payload {
  Packet* frame = nullptr;
  PartialSum sum{};
};

/// `refer_to_mapped()` copies own bytes of an overlay up to this number: every port's buffer holds them beside the
/// headers.
inline constexpr std::size_t kMostOwnInFrame = 512;

/// Copies the payload into as many buffers as needed. `summing`: it is summed on the way.
Payload copy_payload(Env& env, const Path& path, const SendRing::Spans& spans, bool summing);
/// A frame that refers to the ring's bytes: the ring must stay until the frame has left.
Payload refer_to_payload(Env& env, const Path& path, const SendRing::Spans& spans, bool summing);

/// As the two above, for a connection under an overlay (output/overlay.h).
Payload copy_mapped(Env& env, const Tcb& tcb, std::uint64_t position, std::uint32_t length, bool summing);
/// Own bytes are copied into the frame, and it refers to the ring's bytes after them: at most one run of the map.
Payload refer_to_mapped(Env& env, const Tcb& tcb, std::uint64_t position, std::uint32_t length, bool summing);

}  // namespace bypass::tcp
