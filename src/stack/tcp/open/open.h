// How a connection begins: its Tcb, its numbers, and the step to ESTABLISHED.
#pragma once

#include "stack/tcp/core.h"
#include "stack/tcp/input/segment.h"

namespace bypass::tcp {

inline constexpr std::uint16_t kDefaultMss = 536;  // RFC 9293 §3.7.1
/// A peer that asks for less costs more headers than payload (as Linux's tcp_min_snd_mss).
inline constexpr std::uint16_t kLeastMss = 48;

/// Makes a Tcb for these endpoints, in the flow table, CLOSED, offering what the engine's settings allow. Null without
/// memory.
Tcb* make_connection(Env& env, const Path& path, std::uint16_t local_port, std::uint16_t remote_port,
                     const Options& options);
/// The same endpoints were used before, up to number `last` (exclusive): the new numbers begin above (TIME-WAIT in RFC
/// 9293 §3.10.7.4, RFC 6191). To be called before the SYN is sent.
void begin_above(Tcb& tcb, SeqNum last);
/// The MSS option in our SYN.
[[nodiscard]] std::uint16_t own_mss(std::uint32_t mtu, const Options& options);
/// Sets the segment size that both sides, the path and the options in each header allow.
void update_mss(Tcb& tcb);
/// A port's MTU has changed: its connections' segments become as large as it and their peers allow.
void follow_mtu(Env& env, std::uint16_t port, std::uint32_t before, std::uint32_t mtu);
/// The handshake is done; `segment` acknowledged our SYN.
void establish(Env& env, Tcb& tcb, const Segment& segment);
/// Options that act at once: TOS, TTL, keep-alive, buffers.
void apply_options(Env& env, Tcb& tcb);

Result<Endpoint> choose_endpoint(Env& env, const IpAddress& local, const Endpoint& remote);
Result<Tcb*> connect(Env& env, const Endpoint& local, const Endpoint& remote, const Options& options, void* user);

}  // namespace bypass::tcp
