#include "stack/tcp/output/payload_frame.h"

#include "stack/copy.h"
#include "stack/frame/frame_writer.h"
#include "stack/tcp/output/overlay.h"

namespace bypass::tcp {

Payload copy_payload(Env& env, const Path& path, const SendRing::Spans& spans, bool summing) {
  FrameWriter writer{env.core.network, env.ctx, path, 0, summing};
  for (const auto& part : spans.part)
    if (!part.empty() && !writer.append(part)) return {};
  const PartialSum sum = writer.sum();
  return {writer.take(), sum};
}

Payload refer_to_payload(Env& env, const Path& path, const SendRing::Spans& spans, bool summing) {
  Packet* frame = env.core.network.alloc(env.ctx, path);
  if (frame == nullptr) return {};
  for (int i = 0; i < 2; i++) {
    frame->external[i] = spans.part[i].data();
    frame->external_len[i] = static_cast<std::uint32_t>(spans.part[i].size());
  }
  frame->frame_len = static_cast<std::uint32_t>(spans.size());
  return {frame, summing ? checksum_frame(*frame, 0, frame->frame_len) : PartialSum{}};
}

// --- Of a connection under an overlay

namespace {
constexpr std::size_t kPieces = 16;
}  // namespace

Payload copy_mapped(Env& env, const Tcb& tcb, std::uint64_t position, std::uint32_t length, bool summing) {
  FrameWriter writer{env.core.network, env.ctx, tcb.path, 0, summing};
  std::span<const std::byte> pieces[kPieces];
  for (std::size_t done = 0, covered = 0; done < length; done += covered) {
    const std::size_t n = tcb.overlay->map.pieces(tcb.ring, position + done, length - done, pieces, covered);
    for (std::size_t i = 0; i < n; i++)
      if (!writer.append(pieces[i])) return {};
  }
  const PartialSum sum = writer.sum();
  return {writer.take(), sum};
}

Payload refer_to_mapped(Env& env, const Tcb& tcb, std::uint64_t position, std::uint32_t length, bool summing) {
  Packet* frame = env.core.network.alloc(env.ctx, tcb.path);
  if (frame == nullptr) return {};
  std::span<const std::byte> pieces[SendMap::kPiecesOfOne];
  std::size_t covered = 0;
  const std::size_t n = tcb.overlay->map.pieces(tcb.ring, position, length, pieces, covered);
  const std::size_t own = tcb.overlay->map.own_bytes(position, length);
  std::size_t referred = 0;
  for (std::size_t i = 0; i < n; i++) {
    const auto size = static_cast<std::uint32_t>(pieces[i].size());
    if (frame->len < own) {
      copy_bytes(frame->data + frame->len, pieces[i].data(), size);
      frame->len += size;
    } else {
      frame->external[referred] = pieces[i].data();
      frame->external_len[referred++] = size;
    }
  }
  frame->frame_len = length;
  return {frame, summing ? checksum_frame(*frame, 0, frame->frame_len) : PartialSum{}};
}

}  // namespace bypass::tcp
