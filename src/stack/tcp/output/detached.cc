#include "stack/tcp/output/detached.h"

#include <algorithm>
#include <cstring>

#include "stack/tcp/open/open.h"
#include "stack/tcp/open/syn_cookie.h"
#include "stack/tcp/output/segment_frame.h"
#include "stack/tcp/output/transmit.h"

namespace bypass::tcp {

using namespace segment;

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
