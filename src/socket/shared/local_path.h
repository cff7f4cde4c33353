// What the files of local connections share: how an end reads its peer's messages and moves between the kernel's
// connection and the rings. The caller of every function holds the shard's lock.
// Tests: tests/socket/path_calls_test.cc, tests/system/local.py.
#pragma once

#include "socket/shared/local.h"
#include "socket/shared/local_link.h"
#include "socket/socket.h"
#include "socket/wait/readiness.h"

namespace bypass::socket {

/// Whether the socket's bytes may go through memory that the other end shares.
[[nodiscard]] inline bool is_local(const File& file) {
  return file.kind == FileKind::kStream && socket_of(file).path == Path::kLocal;
}
/// This process's link; null: it has none, or the file is something else.
[[nodiscard]] inline LocalLink* local_link_of(File& file) {
  return is_local(file) ? local_link(socket_of(file)) : nullptr;
}
/// For a socket whose path is or was kLocal.
[[nodiscard]] inline LocalEnd& end_of(const Socket& socket) {
  return *socket.details->local;
}
/// Whether memory is shared, and nobody has broken the rules.
[[nodiscard]] inline bool is_paired(const Socket& socket) {
  return end_of(socket).stage == LocalEnd::Stage::kPaired;
}
/// This process's link if memory is shared; null: it is not, or no longer.
[[nodiscard]] inline LocalLink* paired_link(const Socket& socket) {
  return is_paired(socket) ? local_link(socket) : nullptr;
}
/// Whether ring bytes are on their way back to the kernel.
[[nodiscard]] inline bool is_returning(const Socket& socket) {
  return is_paired(socket) && end_of(socket).paths.tx() == fastpath::shm::CarrierSwitch::Tx::kReturning;
}

/// Counts one more call on a connection that is not paired yet; begins an attempt when it is time.
void local_count_call(Guard& guard, Socket& socket, int fd);
/// Changes the path to kKernel once the local phase is over and no thread is inside. True: done.
bool local_give_up(Guard& guard, Socket& socket);
/// To be called after local_leave(), which may have released the lock. Gives the socket to the kernel if possible, and
/// ends it if it was closed meanwhile.
void end_leaving(Guard& guard, Socket& socket);
void step_pairing(Socket& socket, LocalLink& link, Instant now);
/// From now on a sleeper hears `fd`, the descriptor by which the peer calls. A number below 0: there is no descriptor.
void watch_link(Socket& socket, LocalLink& link, int fd);
/// Each connection of this process goes back to the kernel, and no other one moves to shared memory.
void ask_all_to_leave();
/// Reads the options that a socket has in the kernel, if it never went through our calls.
void take_timeouts(Socket& socket, int fd);
/// FIONREAD; nullopt: the kernel's answer is the right one.
[[nodiscard]] std::optional<long> local_unread(Socket& socket, int fd);
/// True if SO_PEEK_OFF is set: only the kernel knows where a peek begins.
[[nodiscard]] bool has_peek_offset(int fd);

/// The number of the socket's kernel half.
[[nodiscard]] int kernel_number(const Socket& socket);
/// Sends a message on the channel. False: it could not be sent.
[[nodiscard]] bool say(LocalLink& link, fastpath::shm::SwitchKind kind, std::uint64_t count = 0);
/// To be called before this end's FIN or reset goes through the kernel. The peer's process gets the event some time
/// later; until then a peer that reads this word asks the kernel, and sees the end at once.
inline void say_shut(LocalLink& link, fastpath::shm::Shut how = fastpath::shm::Shut::kEnd) {
  link.out.own->shut.store(how, std::memory_order_seq_cst);
}
/// The word for the half or halves that the program has shut.
[[nodiscard]] inline fastpath::shm::Shut shut_word(const Socket& socket) {
  return socket.has(kShutReceive) ? fastpath::shm::Shut::kBoth : fastpath::shm::Shut::kEnd;
}
/// With both halves shut the kernel answers later bytes with RST. So these must go over the kernel.
void leave_if_shut(Socket& socket, LocalLink& link);
[[nodiscard]] inline bool is_peer_shut(const LocalLink& link) {
  return link.in.peer->shut.load(std::memory_order_relaxed) != fastpath::shm::Shut::kNo;
}
/// Whether the peer has ended the connection in this way.
[[nodiscard]] inline bool has_peer_shut(const LocalLink& link, fastpath::shm::Shut how) {
  return link.in.peer->shut.load(std::memory_order_relaxed) == how;
}
/// Whether bytes of ours lie in a ring and would stay unread if the reader died.
[[nodiscard]] bool is_unread_by_peer(const Socket& socket, const LocalLink& link);
/// Whether the process has a descriptor number for another channel.
[[nodiscard]] bool has_numbers_for_link(Instant now);
/// kToWake: stops after a wake-up; the rest is left to the next look, which the wake-up causes.
enum class Hears : std::uint8_t { kAll, kToWake };
/// Reads the channel. True: there was more than a wake-up.
bool hear_channel(Socket& socket, LocalLink& link, Hears hears = Hears::kAll);
/// Acts on messages that could not be acted on at once.
void settle(Socket& socket, LocalLink& link);
/// Whether the ring was read up to where the kernel's connection goes on. Tells the peer when it may CUT again.
bool end_of_ring_read(Socket& socket, LocalLink& link);
/// Notes that `bytes` more were read from the kernel's connection. Tells the peer as above.
void note_read_from_kernel(Socket& socket, std::uint64_t bytes);
/// Moves a direction from the kernel to its ring, if it may. True: it lies in the ring. `more`: for bytes that will be
/// held back.
bool try_cut(Socket& socket, LocalLink& link, bool more);
/// Sends ring bytes that must go over the kernel, as far as there is room.
void pump_return(Socket& socket, LocalLink& link);
/// Sends RESUME before the kernel is told that nothing more is written. The holder of the other end then finds all
/// bytes in the kernel. If the kernel has no room for them, the peer's process must read the ring, and cannot hand its
/// end to another process.
void return_ring_before_end(Socket& socket, LocalLink& link);
/// While a thread copies to or from it without the lock, the memory stays; it is then freed with the socket.
void end_local_link(Socket& socket, LocalLink& link);
/// Sends RST to the peer, whose kernel has what came before. Our program reads that first, and gets the error
/// afterwards.
void reset_behind_bytes(Socket& socket);
/// The peer has broken the rules: ends the connection like a reset one. `what`: what it did, for `bypass why`.
void break_link(Socket& socket, const char* what);

// --- Bytes that are held back for more (local_held.cc)

/// So many bytes were written into the ring's room. Publishes them for the peer, unless `more` is announced (MSG_MORE)
/// or TCP_CORK is on. `ticks`: see Producer::publish().
void publish_or_hold(Socket& socket, LocalLink& link, std::size_t bytes, bool more, std::uint64_t ticks);
/// Sends what is held back. The next functions do so under a condition:
void release_held(Socket& socket, LocalLink& link);
/// … when it has been held long enough.
void release_when_due(Socket& socket, LocalLink& link, Instant now);
/// Whether local_tick() is needed for that, now or soon.
[[nodiscard]] bool may_hold_back(const Socket& socket, Instant now);
/// … if the peer's bytes have acknowledged earlier ones, as in the kernel. Not under TCP_CORK.
void release_if_answered(Socket& socket, LocalLink& link);
/// … if the peer's FIN has come. Not under TCP_CORK.
void release_if_ended(Socket& socket, LocalLink& link);
/// … if any bytes of the peer may have released it, as it is lost otherwise.
void release_before_reset(Socket& socket, LocalLink& link);
/// The direction is about to leave the ring, by STOP or by RESUME: from now on the kernel holds the bytes back.
void hand_held_over(Socket& socket, LocalLink& link);
/// Nobody reads the ring any more: held bytes go over the kernel, like later ones.
void abandon_ring(Socket& socket, LocalLink& link);
/// The peer has ended by the kernel's report: publishes what it held back when it died. True: there are such bytes.
bool take_held_of_dead(Socket& socket, LocalLink& link);
/// The same if its channel has gone, as its end comes in the same moment. To be called before anything is sent, which
/// would cause a reset.
void await_held_of_dead(Socket& socket, LocalLink& link);
/// The pair is complete: takes over TCP_CORK as it was set before.
void begin_holding(Socket& socket, int fd);

// --- What a writer may have unread (local_bound.cc)

/// The pair is complete, or a direction is about to move to its ring: reads the buffer sizes set in the kernel.
void take_buffers(Socket& socket, LocalLink& link, int fd);
/// Bounds the ring by what take_buffers() found, and by the peer's value.
void bound_ring(Socket& socket, LocalLink& link);
/// Whether the peer's SO_RCVBUF was changed since.
[[nodiscard]] inline bool has_other_buffer(const LocalLink& link) {
  return link.peers_buffer != link.out.peer->receive_buffer.load(std::memory_order_relaxed);
}
/// Bounds the ring by the current settings of both ends. False: a ring cannot have so small a bound.
[[nodiscard]] bool bound_anew(Socket& socket, LocalLink& link, int fd);
/// Whether the kernel would take less from `fd` than the least bound of a ring. `peers_buffer`: the peer's SO_RCVBUF;
/// 0: not known.
[[nodiscard]] bool is_bound_below_ring(int fd, std::uint32_t peers_buffer = 0);

/// Notes when bytes were sent and received last, for TCP_INFO, with the accuracy of the looks.
void note_ring_traffic(const LocalEnd& end, LocalLink& link, Instant now);
/// A writer waits for a reader that does not read: it goes on over the kernel.
void relieve_full_ring(Socket& socket, LocalLink& link, Instant now);

/// Signals what has changed since the last look. True: something has.
bool look_at_rings(Socket& socket, LocalLink& link);
/// To be called before a wake-up of this link is handled. Rings that are not armed, and were written to earlier, must
/// be reported first.
void hear_earlier_rings(const LocalLink& link);
/// Whether the peer must wake this end: a thread sleeps for the socket, or other processes have it or a set that
/// contains it. A sleeper in another process arms no link of ours.
[[nodiscard]] bool is_to_be_armed(const Socket& socket);
/// From now on the peer wakes this end.
void ask_for_wakes(Socket& socket, LocalLink& link);
/// The same. True: something has come meanwhile.
bool arm_link(Socket& socket, LocalLink& link);
/// arm_link() for a socket with a sleeper, or one that no poll looks at.
void arm_where_needed(Socket& socket, LocalLink& link);
/// A call has used the rings: polls look at them from now on.
void touch_link(Socket& socket, LocalLink& link);

/// A writer has found no room: the peer reports room from now on, if a thread sleeps for it already.
void want_room(Socket& socket, LocalLink& link);
[[nodiscard]] bool has_ring_room(const Socket& socket, LocalLink& link);

}  // namespace bypass::socket
