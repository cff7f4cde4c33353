// TimeWait: what is left of a connection for 2 MSL after both FINs (RFC 9293 §3.10.7.4, RFC 6191): its
// endpoints, its numbers and its last timestamp, not a whole Tcb.
//
// All entries last equally long, so a list in order of expiry is their timer. If there are more than the engine wants,
// the oldest goes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "stack/address.h"
#include "stack/memory/memory.h"
#include "stack/memory/slab.h"
#include "stack/tcp/flow_table.h"
#include "stack/tcp/seq.h"
#include "stack/time.h"

namespace bypass::tcp {

struct Env;
struct Segment;
struct Tcb;

struct TimeWait {
  FlowNode flow;
  IpAddress local, remote;
  TimeWait* older = nullptr;
  TimeWait* newer = nullptr;
  Instant expires{};
  Instant last_seen{};  // when ts_recent was taken
  SeqNum snd_nxt{}, rcv_nxt{};
  std::uint32_t rcv_wnd = 0;
  std::uint32_t ts_recent = 0, ts_offset = 0;
  std::uint16_t window = 0;  // as the wire shows it
  std::uint8_t tos = 0, ttl = 64;
  std::uint8_t sharing = 0;  // Options'
  bool timestamps = false;
  bool steered = false;  // has a steering rule of its own
  bool asked = false;    // a SYN was answered with the old connection's numbers
};
static_assert(sizeof(TimeWait) <= 128, "two cache lines a connection");

struct TimeWaits {
  explicit TimeWaits(Memory& memory) : slab(memory) {}

  Slab<TimeWait> slab;
  TimeWait* oldest = nullptr;
  TimeWait* newest = nullptr;
  std::size_t count = 0;
};

/// The connection has received both FINs: a TimeWait takes its Tcb's place in the flow table.
void enter_time_wait(Env& env, Tcb& tcb);
void end_time_wait(Env& env, TimeWait& tw);
void expire_time_waits(Env& env);

enum class TimeWaitVerdict : std::uint8_t {
  kDone,      // answered or dropped
  kReusable,  // a SYN for a new incarnation: the TimeWait is gone, the segment goes to the listener
};
TimeWaitVerdict on_time_wait_segment(Env& env, TimeWait& tw, const Segment& segment);

/// Whether our own connect() may reuse the endpoints (RFC 6191 §2: timestamps, and a second has passed).
[[nodiscard]] bool may_reuse(const TimeWait& tw, Instant now);

}  // namespace bypass::tcp
