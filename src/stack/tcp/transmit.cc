#include "stack/tcp/transmit.h"

#include <algorithm>
#include <cstring>

#include "stack/checksum.h"
#include "stack/tcp/receive_window.h"
#include "stack/tcp/timers.h"

namespace bypass::tcp {
namespace {

// An IPv4 packet is at most 65,535 bytes, headers with all options included.
constexpr std::uint32_t kLargestFrame = 65535 - 120;

// What the port does for this path; nothing while it is not open in this process.
Network::Offloads offloads_of(Env& env, const Path& path) {
  if (path.neighbour != Path::kLooped && env.ctx.queue(path.port).port() == nullptr) return {};
  return env.core.network.offloads(env.ctx, path);
}

Packet* new_frame(Env& env, const Path& path) {
  if (!env.ctx.queue(path.port).can_transmit()) return nullptr;
  return env.core.network.alloc(env.ctx, path);
}

// --- Payload

struct Source {
  SendRing::Spans spans;

  std::uint32_t take(std::byte* to, std::size_t room) {
    std::size_t taken = 0;
    for (auto& part : spans.part) {
      const std::size_t n = std::min(part.size(), room - taken);
      if (n != 0) std::memcpy(to + taken, part.data(), n);
      part = part.subspan(n);
      taken += n;
    }
    return static_cast<std::uint32_t>(taken);
  }
};

// Copies into the head and as many further buffers as it takes. False: the pool ran dry.
bool copy_payload(Env& env, Packet& head, Source source) {
  head.len = source.take(head.data, head.tailroom());
  head.frame_len = head.len;
  Packet* last = &head;
  while (source.spans.size() != 0) {
    Packet* more = env.ctx.queue(head.port).alloc();
    if (more == nullptr) return false;
    more->reset(0);
    more->len = source.take(more->data, more->capacity);
    head.frame_len += more->len;
    last->next_segment = more;
    last = more;
  }
  return true;
}

void refer_to_payload(Packet& head, const SendRing::Spans& spans) {
  for (int i = 0; i < 2; i++) {
    head.external[i] = spans.part[i].data();
    head.external_len[i] = static_cast<std::uint32_t>(spans.part[i].size());
  }
  head.frame_len = static_cast<std::uint32_t>(spans.size());
}

// Not while the neighbour is unknown: a frame that waits for it must own its bytes.
bool may_refer(const Network::Offloads& offloads, const Path& path, std::uint32_t length) {
  if (!offloads.gather || length < kGatherBytes) return false;
  return path.header_len != 0 || path.neighbour == Path::kLooped;
}

// The frame that refers to the ring may outlive this call: the ring's block stays until it has left.
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

// Makes room for the header in front of what the frame holds. Options lie behind the fixed part.
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

// RFC 9293 §3.1; by the port where it can, with the pseudo header's sum as packet.h says.
void write_checksum(Packet& frame, const Path& path, bool offload) {
  auto& h = wire::at<TcpHeader>(frame, 0);
  const PartialSum pseudo = checksum_pseudo(path.local, path.remote, wire::kProtocolTcp, frame.frame_len);
  if (offload) {
    frame.flags = static_cast<std::uint16_t>(frame.flags | kTxL4Checksum);
    h.checksum.set_raw(checksum_fold(pseudo));
    return;
  }
  h.checksum.set_raw(0);
  h.checksum.set_raw(checksum_finish(pseudo + checksum_frame(frame, 0, frame.frame_len)));
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

std::size_t connection_options(Env& env, Tcb& tcb, std::span<std::byte> room) {
  std::size_t used = 0;
  if (tcb.has(kTimestamps)) {
    write_timestamps(room.data(), timestamp_clock(env.now()) + tcb.ts_offset, tcb.ts_recent);
    used = kTimestampsBytes;
  }
  if (!tcb.reassembly.has_sack()) return used;
  if (!tcb.has(kSackPermitted)) {
    tcb.reassembly.forget_duplicate();
    return used;
  }
  SackBlock blocks[kMaxSackBlocks];
  const std::size_t count = tcb.reassembly.take_sack_blocks({blocks, max_sack_blocks(used != 0)});
  return used + write_sack(room.subspan(used), {blocks, count});
}

// What a segment that left tells the peer is no longer owed.
void note_sent(Tcb& tcb, std::uint8_t flags) {
  tcb.segments_out++;
  if ((flags & kAck) == 0) return;
  tcb.last_ack_sent = tcb.rcv_nxt;
  tcb.clear(kAckNow | kAckDelayed);
  disarm(tcb, Timer::kDelayedAck);
}

bool send_frame(Env& env, Tcb& tcb, Packet* frame, bool checksum_offload, SeqNum seq, std::uint8_t flags) {
  std::byte options[kMaxOptionBytes];
  const std::size_t options_len = connection_options(env, tcb, options);
  std::memcpy(push_header(*frame, options_len), options, options_len);
  write_header(
      *frame, {tcb.flow.local_port, tcb.flow.remote_port, seq, tcb.rcv_nxt, flags, advertise_window(tcb), options_len});
  write_checksum(*frame, tcb.path, checksum_offload);
  if (!launch(env, tcb.path, frame)) return false;
  note_sent(tcb, flags);
  return true;
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

std::optional<std::uint32_t> send_data(Env& env, Tcb& tcb, std::uint64_t position, std::uint32_t length,
                                       std::uint8_t flags) {
  Packet* frame = new_frame(env, tcb.path);
  if (frame == nullptr) return std::nullopt;
  const Network::Offloads offloads = offloads_of(env, tcb.path);
  const std::uint32_t room = segment_room(tcb);
  if (may_refer(offloads, tcb.path, length)) {
    refer_to_payload(*frame, tcb.ring.spans(position, length));
    pin(env, tcb);
  } else if (length != 0 && !copy_payload(env, *frame, {tcb.ring.spans(position, length)})) {
    env.ctx.release(frame);
    if (length <= room) return std::nullopt;
    return send_data(env, tcb, position, room, kAck);  // a frame of one segment needs fewer buffers
  }
  if (length > room) {
    frame->flags = static_cast<std::uint16_t>(frame->flags | kTxTso);
    frame->tso_mss = static_cast<std::uint16_t>(room);
  }
  if (!send_frame(env, tcb, frame, offloads.l4_checksum, tcb.seq_of(position), flags)) return std::nullopt;
  tcb.last_sent = env.now();
  return length;
}

bool send_empty(Env& env, Tcb& tcb, SeqNum seq, std::uint8_t flags) {
  Packet* frame = new_frame(env, tcb.path);
  return frame != nullptr && send_frame(env, tcb, frame, offloads_of(env, tcb.path).l4_checksum, seq, flags);
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

void send_reset(Env& env, Tcb& tcb) {
  if (send_empty(env, tcb, tcb.seq_of(tcb.snd_nxt), kRst | kAck)) env.count().tcp_resets_out++;
}

void block(Env& env, Tcb& tcb) {
  if (tcb.has(kBlocked)) return;
  tcb.set(kBlocked);
  tcb.blocked_next = nullptr;
  TcbList& list = env.core.blocked[tcb.path.port];
  env.core.blocked_ports |= 1U << tcb.path.port;
  (list.tail != nullptr ? list.tail->blocked_next : list.head) = &tcb;
  list.tail = &tcb;
}

void send_detached(Env& env, const Detached& s) {
  Path path;
  if (!env.core.network.resolve(s.key.local, s.key.remote, path).ok()) return;
  path.tos = s.tos;
  path.ttl = s.ttl;
  Packet* frame = new_frame(env, path);
  if (frame == nullptr) return;
  const std::size_t options_len = s.timestamps ? kTimestampsBytes : 0;
  std::byte* options = push_header(*frame, options_len);
  if (s.timestamps) write_timestamps(options, s.ts_value, s.ts_echo);
  write_header(*frame, {s.key.local_port, s.key.remote_port, s.seq, s.ack, s.flags, s.window, options_len});
  write_checksum(*frame, path, offloads_of(env, path).l4_checksum);
  if (launch(env, path, frame) && (s.flags & kRst) != 0) env.count().tcp_resets_out++;
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
