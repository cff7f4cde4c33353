#include "stack/tcp/output/transmit.h"

#include <algorithm>
#include <cstring>

#include "stack/copy.h"
#include "stack/frame/checksum.h"
#include "stack/frame/frame_writer.h"
#include "stack/tcp/input/receive_window.h"
#include "stack/tcp/open/open.h"
#include "stack/tcp/open/syn_cookie.h"
#include "stack/tcp/output/overlay.h"
#include "stack/tcp/timers.h"

namespace bypass::tcp {
namespace {

// An IPv4 packet is at most 65,535 bytes, headers with all options included.
constexpr std::uint32_t kLargestFrame = 65535 - 120;

// What the port does for this path; nothing while the port is not open in this process.
Network::Offloads offloads_of(Env& env, const Path& path) {
  if (path.neighbour != Path::kLooped && env.ctx.queue(path.port).port() == nullptr) return {};
  return env.core.network.offloads(env.ctx, path);
}

Packet* new_frame(Env& env, const Path& path) {
  if (!env.ctx.queue(path.port).can_transmit()) return nullptr;
  return env.core.network.alloc(env.ctx, path);
}

// --- Payload

// A frame without its header, and the sum of its bytes if the port does not make the checksum.
struct Payload {
  Packet* frame = nullptr;
  PartialSum sum{};
};

// Copies the payload into as many buffers as needed, and sums it on the way. Returns no frame if the pool has run out.
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

constexpr std::size_t kPieces = 16;
constexpr std::size_t kMostOwnInFrame = 512;  // every port's buffer can hold them beside the headers

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

// Own bytes are copied into the frame, and it refers to the ring's bytes after them: at most one run of the map.
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

// --- Header

struct Fields {
  std::uint16_t source, destination;
  SeqNum seq, ack;
  std::uint8_t flags;
  std::uint16_t window;
  std::size_t options_len;
};

// Makes room for the header before the frame's bytes. Options lie after the fixed part.
std::byte* push_header(Packet& frame, std::size_t options_len) {
  const auto len = static_cast<std::uint32_t>(sizeof(TcpHeader) + options_len);
  frame.data -= len;
  frame.len += len;
  frame.frame_len += len;
  frame.l4_len = static_cast<std::uint16_t>(len);
  return frame.data + sizeof(TcpHeader);
}

void write_header(Packet& frame, const Fields& f) {
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
void write_checksum(Packet& frame, const Path& path, bool offload, PartialSum payload = {}) {
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

bool launch(Env& env, Path& path, Packet* frame) {
  const auto sent = env.core.network.send(env.ctx, path, frame, wire::kProtocolTcp);
  if (!sent.ok() && sent.error() == Error::kWouldBlock) {
    env.ctx.release(frame);
    return false;
  }
  env.count().tcp_segments_out++;
  return true;
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

bool send_detached(Env& env, const Detached& s) {
  Path path;
  if (!env.core.network.resolve(s.key.local, s.key.remote, path).ok()) return true;
  path.tos = s.tos;
  path.ttl = s.ttl;
  Packet* frame = new_frame(env, path);
  if (frame == nullptr) return false;
  const std::size_t options_len = s.timestamps ? kTimestampsBytes : 0;
  std::byte* options = push_header(*frame, options_len);
  if (s.timestamps) write_timestamps(options, s.ts_value, s.ts_echo);
  write_header(*frame, {s.key.local_port, s.key.remote_port, s.seq, s.ack, s.flags, s.window, options_len});
  write_checksum(*frame, path, offloads_of(env, path).l4_checksum);
  const bool sent = launch(env, path, frame);
  if (sent && (s.flags & kRst) != 0) env.count().tcp_resets_out++;
  return sent;
}

// Its options are those of a connection made from that SYN, or fewer: make_connection(), negotiate().
bool send_cookie_syn_ack(Env& env, const FlowKey& key, SeqNum cookie, const Segment& syn, const Options& options) {
  Path path;
  if (!env.core.network.resolve(key.local, key.remote, path).ok()) return false;
  path.tos = options.tos;
  path.ttl = options.ttl;
  Packet* frame = new_frame(env, path);
  if (frame == nullptr) return false;
  const auto& config = env.core.config;
  SynOptions o;
  o.mss = own_mss(path.mtu, options);
  o.timestamps = config.timestamps && syn.options.has_timestamps;
  if (o.timestamps) {
    o.sack_permitted = config.sack && syn.options.sack_permitted;
    o.window_scaling = config.window_scaling && syn.options.has_window_scale;
    o.window_scale = window_scale_for(largest_window(config, options));
    o.ts_value = make_cookie_timestamp(timestamp_clock(env.now()), syn.options) +
                 timestamp_offset(env.core.secret, {key.local, key.local_port}, {key.remote, key.remote_port});
    o.ts_echo = syn.options.ts_value;
  }
  std::byte room[kMaxOptionBytes];
  const std::size_t used = write_syn_options(room, o);
  std::memcpy(push_header(*frame, used), room, used);
  const auto window = static_cast<std::uint16_t>(std::min<std::uint32_t>(first_window(config, options), 0xffff));
  write_header(*frame, {key.local_port, key.remote_port, cookie, syn.seq + 1, kSyn | kAck, window, used});
  write_checksum(*frame, path, offloads_of(env, path).l4_checksum);
  return launch(env, path, frame);
}

namespace {

bool send_for(Env& env, const RecentReset& recent_reset, SeqNum seq, std::uint8_t flags) {
  Detached segment;
  segment.key = recent_reset.key;
  segment.seq = seq;
  segment.ack = recent_reset.ack;
  segment.flags = flags;
  return send_detached(env, segment);
}

}  // namespace

bool send_farewell(Env& env, const RecentReset& recent_reset) {
  if (recent_reset.asks) return send_for(env, recent_reset, recent_reset.before, kAck);
  return send_for(env, recent_reset, recent_reset.seq, kRst | kAck);
}

bool repeat_farewell(Env& env, const RecentReset& recent_reset) {
  const bool sent = send_farewell(env, recent_reset);
  if (sent && !recent_reset.asks) send_for(env, recent_reset, recent_reset.before, kAck);
  return sent;
}

void answer_with_reset(Env& env, const Segment& segment) {
  if (segment.has(kRst) || segment.input->broadcast) return;
  const TcpHeader& h = header_of(*segment.input);
  Detached reset;
  reset.key = {segment.input->destination, segment.input->source, h.destination, h.source};
  if (segment.has(kAck)) {
    reset.seq = segment.ack;
    reset.flags = kRst;
  } else {
    reset.ack = segment.end();
    reset.flags = kRst | kAck;
  }
  send_detached(env, reset);
}

}  // namespace bypass::tcp
