#include "stack/tcp/output/transmit.h"

#include <algorithm>
#include <cstring>

#include "stack/tcp/input/receive_window.h"
#include "stack/tcp/output/overlay.h"
#include "stack/tcp/output/payload_frame.h"
#include "stack/tcp/output/segment_frame.h"
#include "stack/tcp/timers.h"

namespace bypass::tcp {

using namespace segment;

namespace {

// An IPv4 packet is at most 65,535 bytes, headers with all options included.
constexpr std::uint32_t kLargestFrame = 65535 - 120;

// Not while the neighbour is unknown: a frame that waits for it must own its bytes.
bool may_refer(const Network::Offloads& offloads, const Path& path, std::uint32_t length) {
  if (!offloads.gather || length < kGatherBytes) return false;
  return path.header_len != 0 || path.neighbour == Path::kLooped;
}

// The frame that refers to the ring may outlive this call: the ring's block stays until the frame has left.
void pin(Env& env, Tcb& tcb) {
  if (tcb.has(kPinned)) return;
  tcb.set(kPinned);
  tcb.ring.pin();
  tcb.pinned_next = env.core.pinned;
  env.core.pinned = &tcb;
}

// --- An established connection's options: timestamps, then what SACK has to say

[[gnu::noinline, gnu::cold]] std::size_t write_sack_option(Tcb& tcb, std::span<std::byte> room) {
  if (!tcb.has(kSackPermitted)) {
    tcb.reassembly.forget_duplicate();
    return 0;
  }
  SackBlock blocks[kMaxSackBlocks];
  const std::size_t count = tcb.reassembly.take_sack_blocks({blocks, max_sack_blocks(tcb.has(kTimestamps))});
  return write_sack(room, {blocks, count});
}

// Makes room for header and options before the frame's bytes. Returns the options' length.
std::size_t push_connection_header(Env& env, Tcb& tcb, Packet& frame) {
  std::byte sack[kMaxOptionBytes];
  const std::size_t sack_len = tcb.reassembly.has_sack() ? write_sack_option(tcb, sack) : 0;
  const std::size_t stamps_len = tcb.has(kTimestamps) ? kTimestampsBytes : 0;
  std::byte* options = push_header(frame, stamps_len + sack_len);
  if (stamps_len != 0) write_timestamps(options, timestamp_clock(env.now()) + tcb.ts_offset, tcb.ts_recent);
  if (sack_len != 0) std::memcpy(options + stamps_len, sack, sack_len);
  return stamps_len + sack_len;
}

// What a sent segment has told the peer is no longer owed.
void note_sent(Tcb& tcb, std::uint8_t flags) {
  tcb.segments_out++;
  if ((flags & kAck) == 0) return;
  tcb.last_ack_sent = tcb.rcv_nxt;
  tcb.clear(kAckNow | kAckDelayed);
  disarm(tcb, Timer::kDelayedAck);
}

bool send_frame(Env& env, Tcb& tcb, const Payload& payload, bool checksum_offload, SeqNum seq, std::uint8_t flags) {
  Packet& frame = *payload.frame;
  const std::size_t options_len = push_connection_header(env, tcb, frame);
  write_header(
      frame, {tcb.flow.local_port, tcb.flow.remote_port, seq, tcb.rcv_nxt, flags, advertise_window(tcb), options_len});
  write_checksum(frame, tcb.path, checksum_offload, payload.sum);
  if (!launch(env, tcb.path, &frame)) return false;
  note_sent(tcb, flags);
  return true;
}

// How a mapped connection's bytes are cut: whole segments of one run are sent by reference, and a segment across the
// run's end by copying.
struct MappedCut {
  std::uint32_t length;
  bool refer;
};
MappedCut cut_mapped(const Tcb& tcb, std::uint64_t position, std::uint32_t length, std::uint32_t room, bool refer) {
  if (!refer) return {length, false};
  const std::uint64_t run = tcb.overlay->map.run(position);
  if (tcb.overlay->map.own_bytes(position, length) > kMostOwnInFrame) return {std::min(length, room), false};
  if (run >= length) return {length, true};
  if (run < room) return {std::min(length, room), false};
  return {static_cast<std::uint32_t>(run - run % room), true};
}

struct Launch {
  std::uint64_t position;
  std::uint32_t room;  // payload bytes of a segment
  std::uint8_t flags;
  bool refer, checksum_offload;
};
[[gnu::always_inline]] inline std::optional<std::uint32_t> launch_data(Env& env, Tcb& tcb, const Payload& payload,
                                                                       std::uint32_t length, const Launch& how) {
  if (how.refer) pin(env, tcb);
  std::uint32_t more_segments = 0;
  if (length > how.room) {
    payload.frame->flags = static_cast<std::uint16_t>(payload.frame->flags | kTxTso);
    payload.frame->tso_mss = static_cast<std::uint16_t>(how.room);
    more_segments = (length - 1) / how.room;
  }
  if (!send_frame(env, tcb, payload, how.checksum_offload, tcb.seq_of(how.position), how.flags)) return std::nullopt;
  tcb.segments_out += more_segments;  // TCP_INFO counts segments on the wire
  tcb.last_sent_ms = milliseconds_of(env.now());
  return length;
}

}  // namespace

std::uint32_t segment_room(const Tcb& tcb) {
  if (!tcb.has(kSackPermitted) || !tcb.reassembly.has_sack()) return tcb.mss;
  const std::size_t most = max_sack_blocks(tcb.has(kTimestamps));
  const auto sack = options_size(false, std::min(tcb.reassembly.islands() + 1, most));
  return tcb.mss - static_cast<std::uint32_t>(std::min<std::size_t>(sack, tcb.mss / 2U));
}

std::uint32_t frame_limit(Env& env, const Tcb& tcb) {
  const std::uint32_t room = segment_room(tcb);
  return std::max(room, std::min(offloads_of(env, tcb.path).tso_max_bytes, kLargestFrame));
}

namespace {

[[gnu::noinline]] std::optional<std::uint32_t> send_mapped(Env& env, Tcb& tcb, std::uint64_t position,
                                                           std::uint32_t length, std::uint8_t flags) {
  const Network::Offloads offloads = offloads_of(env, tcb.path);
  const std::uint32_t room = segment_room(tcb);
  const MappedCut cut = cut_mapped(tcb, position, length, room, may_refer(offloads, tcb.path, length));
  if (cut.length != length) flags = kAck;
  const auto make = cut.refer ? refer_to_mapped : copy_mapped;
  const Payload payload = make(env, tcb, position, cut.length, !offloads.l4_checksum);
  if (payload.frame != nullptr)
    return launch_data(env, tcb, payload, cut.length, {position, room, flags, cut.refer, offloads.l4_checksum});
  if (cut.refer || cut.length <= room) return std::nullopt;
  return send_mapped(env, tcb, position, room, kAck);
}

}  // namespace

std::optional<std::uint32_t> send_data(Env& env, Tcb& tcb, std::uint64_t position, std::uint32_t length,
                                       std::uint8_t flags) {
  if (!env.ctx.queue(tcb.path.port).can_transmit()) return std::nullopt;
  if (tcb.overlay != nullptr) [[unlikely]]
    return send_mapped(env, tcb, position, length, flags);
  const Network::Offloads offloads = offloads_of(env, tcb.path);
  const std::uint32_t room = segment_room(tcb);
  const bool refer = may_refer(offloads, tcb.path, length);
  const auto make = refer ? refer_to_payload : copy_payload;
  const Payload payload = make(env, tcb.path, tcb.ring.spans(position, length), !offloads.l4_checksum);
  if (payload.frame != nullptr)
    return launch_data(env, tcb, payload, length, {position, room, flags, refer, offloads.l4_checksum});
  if (refer || length <= room) return std::nullopt;
  return send_data(env, tcb, position, room, kAck);  // a frame of one segment needs fewer buffers
}

bool send_empty(Env& env, Tcb& tcb, SeqNum seq, std::uint8_t flags) {
  Packet* frame = new_frame(env, tcb.path);
  return frame != nullptr && send_frame(env, tcb, {frame, {}}, offloads_of(env, tcb.path).l4_checksum, seq, flags);
}

bool send_syn(Env& env, Tcb& tcb) {
  Packet* frame = new_frame(env, tcb.path);
  if (frame == nullptr) return false;
  const bool syn_ack = tcb.state == State::kSynReceived;
  SynOptions syn;
  syn.mss = tcb.own_mss;
  syn.sack_permitted = tcb.has(kSackPermitted);
  syn.timestamps = tcb.has(kTimestamps);
  syn.window_scaling = tcb.has(kWindowScaling);
  syn.window_scale = tcb.rcv_scale;
  syn.ts_value = timestamp_clock(env.now()) + tcb.ts_offset;
  syn.ts_echo = syn_ack ? tcb.ts_recent : 0;
  std::byte options[kMaxOptionBytes];
  std::size_t used = write_syn_options(options, syn);
  const Hooks* hooks = env.ctx.hooks;
  if (hooks != nullptr && hooks->add_syn_options != nullptr) {
    const auto room = std::span(options).subspan(used);
    used += std::min(room.size(), hooks->add_syn_options(hooks->self, tcb, syn_ack, tcb.attempts, room));
    used = pad_options(options, used);
  }
  std::memcpy(push_header(*frame, used), options, used);
  // RFC 7323 §2.2: the window of a SYN is never scaled.
  const std::uint32_t wnd = std::min<std::uint32_t>(tcb.rcv_limit, 0xffff);
  tcb.rcv_adv = tcb.rcv_nxt + wnd;
  const auto flags = static_cast<std::uint8_t>(syn_ack ? kSyn | kAck : kSyn);
  write_header(*frame, {tcb.flow.local_port, tcb.flow.remote_port, tcb.seq_base - 1, tcb.rcv_nxt, flags,
                        static_cast<std::uint16_t>(wnd), used});
  write_checksum(*frame, tcb.path, offloads_of(env, tcb.path).l4_checksum);
  if (!launch(env, tcb.path, frame)) return false;
  note_sent(tcb, flags);
  return true;
}

RecentReset note_farewell(Env& env, const Tcb& tcb, bool asks) {
  const RecentReset recent_reset{{tcb.path.local, tcb.path.remote, tcb.flow.local_port, tcb.flow.remote_port},
                                 tcb.seq_of(tcb.snd_nxt),
                                 tcb.rcv_nxt,
                                 tcb.seq_of(tcb.snd_una) - 1,
                                 env.now(),
                                 false,
                                 asks};
  if (env.core.recent_resets.note(recent_reset)) env.count().tcp_resets_forgotten++;
  return recent_reset;
}

void send_reset(Env& env, Tcb& tcb) {
  (void)note_farewell(env, tcb);
  if (send_empty(env, tcb, tcb.seq_of(tcb.snd_nxt), kRst | kAck))
    env.count().tcp_resets_out++;
  else
    env.core.recent_resets.owe();
}

void block(Env& env, Tcb& tcb) {
  if (tcb.has(kBlocked)) return;
  tcb.set(kBlocked);
  queue_blocked(env, tcb);
}

void queue_blocked(Env& env, Tcb& tcb) {
  env.core.blocked_ports |= 1U << tcb.path.port;
  env.core.blocked[tcb.path.port].push<&Tcb::blocked_next>(tcb);
}

}  // namespace bypass::tcp
