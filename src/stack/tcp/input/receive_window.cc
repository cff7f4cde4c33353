#include "stack/tcp/input/receive_window.h"

#include <algorithm>

#include "stack/tcp/input/input.h"
#include "stack/tcp/input/options.h"

namespace bypass::tcp {
namespace {

constexpr std::uint32_t kUnscaled = 0xffff;

// When memory is used up, only a connection with nothing to read gets more (keep_at_low_memory()): room for the largest
// segment that may come, in whole units of the window field.
[[gnu::noinline, gnu::cold]] SeqNum edge_at_low_memory(const Tcb& tcb) {
  if (tcb.rx_head != nullptr) return tcb.rcv_nxt;
  const std::uint32_t unit = 1U << tcb.rcv_scale;
  return tcb.rcv_nxt + std::min((tcb.own_mss + unit - 1) & ~(unit - 1), kUnscaled << tcb.rcv_scale);
}

// The furthest possible right edge: everything that unread bytes do not use.
SeqNum possible_edge(const Tcb& tcb) {
  return tcb.has(kLowMemory) ? edge_at_low_memory(tcb) : furthest_edge(tcb);
}

// The edge moves by whole segments, or by half of a buffer that is smaller than two segments. At low memory it stays a
// segment away, and every byte counts.
std::uint32_t worth_moving(const Tcb& tcb) {
  if (tcb.has(kLowMemory)) return 1;
  return std::min<std::uint32_t>(tcb.rcv_mss, tcb.rcv_limit / 2);
}

}  // namespace

std::uint8_t window_scale_for(std::uint32_t largest_window) {
  std::uint8_t scale = 0;
  while (scale < kMaxWindowScale && (kUnscaled << scale) < largest_window) scale++;
  return scale;
}

std::uint32_t largest_window(const EngineConfig& config, const Options& options) {
  return options.receive_buffer != 0 ? options.receive_buffer : config.receive_buffer;
}

std::uint32_t first_window(const EngineConfig& config, const Options& options) {
  return options.receive_buffer != 0 ? options.receive_buffer : std::min(config.receive_initial, config.receive_buffer);
}

std::uint32_t receive_limit(const Env& env, const Tcb& tcb) {
  return std::min(largest_window(env.core.config, tcb.options), kUnscaled << tcb.rcv_scale);
}

std::uint32_t initial_receive_limit(const Env& env, const Tcb& tcb) {
  return std::min(first_window(env.core.config, tcb.options), receive_limit(env, tcb));
}

SeqNum furthest_edge(const Tcb& tcb) {
  const std::uint32_t room = tcb.rcv_limit > tcb.rx_bytes ? tcb.rcv_limit - tcb.rx_bytes : 0;
  return tcb.rcv_nxt + std::min(room, kUnscaled << tcb.rcv_scale);
}

void end_need(Env& env, Tcb& tcb) {
  tcb.clear(kLowMemory);
  tcb.rcv_adv = furthest_edge(tcb);
  ack_soon(env, tcb);
}

void end_low_memory_if_over(Env& env, Tcb& tcb) {
  constexpr std::size_t kFlight = std::size_t{64} << 10;
  if (env.core.memory.has(kFlight)) end_need(env, tcb);
}

std::uint16_t advertise_window(Tcb& tcb) {
  const SeqNum edge = possible_edge(tcb);
  const std::int32_t gain = edge - tcb.rcv_adv;
  if (gain >= static_cast<std::int32_t>(worth_moving(tcb)) || (gain < 0 && tcb.has(kLowMemory))) tcb.rcv_adv = edge;
  return static_cast<std::uint16_t>(std::min(tcb.rcv_wnd() >> tcb.rcv_scale, kUnscaled));
}

bool update_due(const Tcb& tcb) {
  if (tcb.has(kFinSeen) && !tcb.has(kLowMemory)) return false;  // everything up to the FIN was promised long ago
  const std::int32_t gain = possible_edge(tcb) - tcb.rcv_adv;
  if (gain < static_cast<std::int32_t>(worth_moving(tcb)) || gain <= 0) return false;
  // A peer that still has room for segments learns of more room by the ACKs of these.
  const std::uint32_t wnd = tcb.rcv_wnd();
  return static_cast<std::uint32_t>(gain) >= wnd || wnd < 2U * std::max(tcb.mss, tcb.rcv_mss);
}

void tune_receive_limit(Env& env, Tcb& tcb, std::uint32_t bytes) {
  tcb.rcv_copied += bytes;
  const std::uint32_t now = microseconds_of(env.now());
  if (Duration{std::int64_t{now - tcb.rcv_round} << 10} < tcb.rtt.srtt()) return;
  const std::uint32_t most = receive_limit(env, tcb);
  if (tcb.rcv_copied > tcb.rcv_limit / 2 && tcb.rcv_limit < most)
    tcb.rcv_limit = std::min(most, std::max(tcb.rcv_limit, 2 * tcb.rcv_copied));
  tcb.rcv_copied = 0;
  tcb.rcv_round = now;
}

}  // namespace bypass::tcp
