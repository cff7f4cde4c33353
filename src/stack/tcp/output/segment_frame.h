// A segment as a frame: room for its header before the payload, the header's fields, the checksum, and its way to the
// port. Segments of connections (transmit.cc) and segments that belong to none (detached.cc) are made by these.
#pragma once

#include <cstdint>

#include "stack/frame/checksum.h"
#include "stack/tcp/core.h"

namespace bypass::tcp::segment {

// What the port does for this path; nothing while the port is not open in this process.
inline Network::Offloads offloads_of(Env& env, const Path& path) {
  if (path.neighbour != Path::kLooped && env.ctx.queue(path.port).port() == nullptr) return {};
  return env.core.network.offloads(env.ctx, path);
}

/// A frame of the path; null if the pool is empty or the device has no room.
inline Packet* new_frame(Env& env, const Path& path) {
  if (!env.ctx.queue(path.port).can_transmit()) return nullptr;
  return env.core.network.alloc(env.ctx, path);
}

struct Fields {
  std::uint16_t source, destination;
  SeqNum seq, ack;
  std::uint8_t flags;
  std::uint16_t window;
  std::size_t options_len;
};

// Makes room for the header before the frame's bytes. Options lie after the fixed part.
inline std::byte* push_header(Packet& frame, std::size_t options_len) {
  const auto len = static_cast<std::uint32_t>(sizeof(TcpHeader) + options_len);
  frame.data -= len;
  frame.len += len;
  frame.frame_len += len;
  frame.l4_len = static_cast<std::uint16_t>(len);
  return frame.data + sizeof(TcpHeader);
}

inline void write_header(Packet& frame, const Fields& f) {
  auto& h = wire::at<TcpHeader>(frame, 0);
  h.source = f.source;
  h.destination = f.destination;
  h.seq = f.seq.v;
  h.ack = (f.flags & kAck) != 0 ? f.ack.v : 0;
  h.data_offset = static_cast<std::uint8_t>((sizeof(TcpHeader) + f.options_len) / 4 << 4);
  h.flags = f.flags;
  h.window = f.window;
  h.urgent = 0;
}

// RFC 9293 §3.1. The port makes the checksum if it can; the field then holds the pseudo header's sum, as packet.h says.
inline void write_checksum(Packet& frame, const Path& path, bool offload, PartialSum payload = {}) {
  auto& h = wire::at<TcpHeader>(frame, 0);
  const PartialSum pseudo = checksum_pseudo(path.local, path.remote, wire::kProtocolTcp, frame.frame_len);
  if (offload) {
    frame.flags = static_cast<std::uint16_t>(frame.flags | kTxL4Checksum);
    h.checksum.set_raw(checksum_fold(pseudo));
    return;
  }
  h.checksum.set_raw(0);
  h.checksum.set_raw(checksum_finish(pseudo + checksum(&h, frame.l4_len) + payload));
}

inline bool launch(Env& env, Path& path, Packet* frame) {
  const auto sent = env.core.network.send(env.ctx, path, frame, wire::kProtocolTcp);
  if (!sent.ok() && sent.error() == Error::kWouldBlock) {
    env.ctx.release(frame);
    return false;
  }
  env.count().tcp_segments_out++;
  return true;
}

}  // namespace bypass::tcp::segment
