// The window that we offer: how much of the buffer is promised, when the promise grows (RFC 9293 §3.8.6.2.2 against
// silly windows), and how the buffer's size follows the reader (receive autotuning).
#pragma once

#include <cstdint>

#include "stack/tcp/core.h"

namespace bypass::tcp {

/// The window scale that we offer in a SYN: the smallest that can show the largest window.
[[nodiscard]] std::uint8_t window_scale_for(std::uint32_t largest_window);
/// The largest window of a connection with such options. first_window(): the window that it begins with.
[[nodiscard]] std::uint32_t largest_window(const EngineConfig& config, const Options& options);
[[nodiscard]] std::uint32_t first_window(const EngineConfig& config, const Options& options);
/// The largest buffer this connection may have.
[[nodiscard]] std::uint32_t receive_limit(const Env& env, const Tcb& tcb);
/// The buffer with which the connection begins.
[[nodiscard]] std::uint32_t initial_receive_limit(const Env& env, const Tcb& tcb);

/// The right edge that the whole room of the buffer allows. It is not before a promised edge, unless SO_RCVBUF was
/// lowered.
[[nodiscard]] SeqNum furthest_edge(const Tcb& tcb);
/// There is memory for what comes: everything before that edge is accepted from now on, and the peer is told.
void end_need(Env& env, Tcb& tcb);
/// Does that for a connection at low memory (kLowMemory), if there is memory for a flight of segments.
void end_low_memory_if_over(Env& env, Tcb& tcb);
/// The window field of the next segment. Moves the promised edge if that is worth it.
[[nodiscard]] std::uint16_t advertise_window(Tcb& tcb);
/// Whether the reader has made so much room that the peer should be told at once.
[[nodiscard]] bool update_due(const Tcb& tcb);
/// The reader took `bytes`. A reader that empties more than half a window in a round trip gets a larger buffer.
void tune_receive_limit(Env& env, Tcb& tcb, std::uint32_t bytes);

}  // namespace bypass::tcp
