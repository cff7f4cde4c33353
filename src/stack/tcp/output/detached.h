// Segments that belong to no connection: answers to what nobody expects, ACKs of TIME_WAIT, SYN cookies, RSTs that are
// sent again. One that finds no room is lost like any segment.
#pragma once

#include <cstdint>

#include "stack/tcp/core.h"
#include "stack/tcp/input/segment.h"

namespace bypass::tcp {

/// A segment that belongs to no connection.
struct Detached {
  FlowKey key;
  SeqNum seq{}, ack{};
  std::uint16_t window = 0;
  std::uint8_t flags = 0, tos = 0, ttl = 64;
  bool timestamps = false;
  std::uint32_t ts_value = 0, ts_echo = 0;
};
/// False: the device has no room, or there is no frame.
bool send_detached(Env& env, const Detached& segment);
/// Sends the SYN-ACK of a listener that remembers nothing: `cookie` is its number, and the SYN's options lie in its
/// timestamp. It carries no options of hooks.
bool send_cookie_syn_ack(Env& env, const FlowKey& key, SeqNum cookie, const Segment& syn, const Options& options);
/// Sends a connection's RST again; false as send_detached().
bool send_farewell(Env& env, const RecentReset& recent_reset);
/// Sends it again, with the question that a peer with other numbers answers with its own numbers. False: the RST was
/// not sent, as send_detached().
bool repeat_farewell(Env& env, const RecentReset& recent_reset);
/// RFC 9293 §3.10.7.1: sends the RST that answers an unexpected segment; no answer to an RST or a broadcast.
void answer_with_reset(Env& env, const Segment& segment);

}  // namespace bypass::tcp
