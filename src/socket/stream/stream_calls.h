// A connection's calls. If the connection is framed (the peer is accelerated, too), FramedTcp answers them; otherwise
// tcp::Engine does, with the same meaning. Lock held.
// Tests: tests/socket/stream_test.cc, tests/socket/path_calls_test.cc.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "fastpath/link/peer_links.h"
#include "socket/socket.h"
#include "stack/tcp/output/overlay.h"

namespace bypass::socket::stream {

/// A process that has framed connections has links, even if only to read those of its parent.
inline fastpath::FramedTcp* framed(const tcp::Tcb& tcb) {
  if (!fastpath::FramedTcp::has(tcb)) [[likely]]
    return nullptr;
  return &shard().links()->framed();
}

/// The room that tcp::is_writeable() checks.
[[nodiscard]] inline std::size_t send_room(tcp::Tcb& tcb) {
  auto* const f = framed(tcb);
  return f != nullptr ? f->send_room(tcb) : tcp_engine().writable_room(tcb);
}
/// How many of `bytes` to reserve at a time. On a lane a piece leaves while the next one is copied; TCP makes larger
/// frames from all of them.
[[nodiscard]] inline std::size_t piece_of(const tcp::Tcb& tcb, std::size_t bytes) {
  constexpr std::size_t kLanePiece = std::size_t{64} << 10;
  return framed(tcb) != nullptr ? std::min(bytes, kLanePiece) : bytes;
}
inline Result<tcp::Room> reserve(Context& ctx, tcp::Tcb& tcb, std::size_t want) {
  auto* const f = framed(tcb);
  return f != nullptr ? f->reserve(ctx, tcb, want) : tcp_engine().reserve(tcb, want);
}
inline void commit(Context& ctx, tcp::Tcb& tcb, std::size_t bytes, bool more) {
  auto* const f = framed(tcb);
  f != nullptr ? f->commit(ctx, tcb, bytes, more) : tcp_engine().commit(ctx, tcb, bytes, more);
}
inline void set_options(Context& ctx, tcp::Tcb& tcb, const tcp::Options& options) {
  auto* const f = framed(tcb);
  f != nullptr ? f->set_options(ctx, tcb, options) : tcp_engine().set_options(ctx, tcb, options);
}
inline void push(Context& ctx, tcp::Tcb& tcb) {
  auto* const f = framed(tcb);
  f != nullptr ? f->push(ctx, tcb) : tcp_engine().push(ctx, tcb);
}
[[nodiscard]] inline std::size_t unacknowledged(Context& ctx, tcp::Tcb& tcb) {
  auto* const f = framed(tcb);
  return f != nullptr ? f->unacknowledged(ctx, tcb) : tcp_engine().unacknowledged(tcb);
}

[[nodiscard]] inline std::size_t readable(const tcp::Tcb& tcb) {
  auto* const f = framed(tcb);
  return f != nullptr ? f->readable(tcb) : tcp_engine().readable(tcb);
}
/// Whether a waiter for so many bytes can go on: either they are there, or no more can come before it reads
/// (tcp_epollin_ready() of Linux).
[[nodiscard]] inline bool has_low_water(const tcp::Tcb& tcb, std::size_t bytes, std::size_t low_water) {
  if (bytes >= low_water) return true;
  if (tcb.has(tcp::kLowMemory)) return bytes != 0;  // no more is taken before these are read
  return fastpath::FramedTcp::has(tcb) && fastpath::FramedTcp::is_full(tcb);
}
inline std::size_t peek(const tcp::Tcb& tcb, std::span<std::span<const std::byte>> out, std::size_t bytes) {
  auto* const f = framed(tcb);
  return f != nullptr ? f->peek(tcb, out, bytes) : tcp_engine().peek(tcb, out, bytes);
}
/// The same after the first `skip` bytes (SO_PEEK_OFF). On a lane, at most as many as the spans of all have room for.
inline std::size_t peek_behind(const tcp::Tcb& tcb, std::span<std::span<const std::byte>> out, std::size_t bytes,
                               std::size_t skip) {
  if (framed(tcb) == nullptr) return tcp::peek_from(tcb, skip, out, bytes);
  const std::size_t all = peek(tcb, out, skip + bytes);
  std::size_t kept = 0;
  for (std::size_t i = 0; i < all; i++) {
    const std::size_t cut = std::min(skip, out[i].size());
    skip -= cut;
    if (cut != out[i].size()) out[kept++] = out[i].subspan(cut);
  }
  return kept;
}
inline void consume(Context& ctx, tcp::Tcb& tcb, std::size_t bytes) {
  auto* const f = framed(tcb);
  f != nullptr ? f->consume(ctx, tcb, bytes) : tcp_engine().consume(ctx, tcb, bytes);
}
[[nodiscard]] inline bool at_eof(const tcp::Tcb& tcb) {
  auto* const f = framed(tcb);
  return f != nullptr ? f->at_eof(tcb) : tcp_engine().at_eof(tcb);
}

/// As Linux's sk_state, as if there were no records.
[[nodiscard]] inline tcp::State state(const tcp::Tcb& tcb) {
  auto* const f = framed(tcb);
  return f != nullptr ? f->state(tcb) : tcp_engine().state(tcb);
}
/// From TIME-WAIT on Linux's socket is closed, and the connection is over.
[[nodiscard]] inline bool is_over(const tcp::Tcb& tcb) {
  const tcp::State now = state(tcb);
  return now == tcp::State::kClosed || now == tcp::State::kTimeWait;
}
[[nodiscard]] inline bool peer_has_ended(const tcp::Tcb& tcb) {
  if (auto* const f = framed(tcb)) return f->peer_has_ended(tcb);
  const tcp::State state = tcp_engine().state(tcb);
  return state == tcp::State::kCloseWait || state == tcp::State::kClosing || state == tcp::State::kLastAck ||
         state == tcp::State::kTimeWait;
}
/// True if our direction is shut, and the peer lacks bytes or has not acknowledged the end.
[[nodiscard]] inline bool delivering(const tcp::Tcb& tcb) {
  const tcp::State state = tcp_engine().state(tcb);
  if (auto* const f = framed(tcb)) return state != tcp::State::kClosed && !f->delivered(tcb);
  return state == tcp::State::kFinWait1 || state == tcp::State::kClosing || state == tcp::State::kLastAck;
}

inline void shutdown_send(Context& ctx, tcp::Tcb& tcb) {
  auto* const f = framed(tcb);
  f != nullptr ? f->shutdown_send(ctx, tcb) : tcp_engine().shutdown_send(ctx, tcb);
}
inline void shutdown_receive(Context& ctx, tcp::Tcb& tcb) {
  auto* const f = framed(tcb);
  f != nullptr ? f->shutdown_receive(ctx, tcb) : tcp_engine().shutdown_receive(ctx, tcb);
}
inline void close(Context& ctx, tcp::Tcb& tcb) {
  auto* const f = framed(tcb);
  f != nullptr ? f->close(ctx, tcb) : tcp_engine().close(ctx, tcb);
}
inline void abort(Context& ctx, tcp::Tcb& tcb) {
  auto* const f = framed(tcb);
  f != nullptr ? f->abort(ctx, tcb) : tcp_engine().abort(ctx, tcb);
}

}  // namespace bypass::socket::stream
