// What the files of local connections share: how an end hears its peer and moves between the kernel's connection and
// the rings. All with the shard's lock held.
#pragma once

#include "socket/shared/local.h"
#include "socket/shared/local_link.h"
#include "socket/socket.h"
#include "socket/wait/readiness.h"

namespace bypass::socket {

/// Whether its bytes may go through memory that the other end shares.
[[nodiscard]] inline bool is_local(const File& file) {
  return file.kind == FileKind::kStream && socket_of(file).path == Path::kLocal;
}
/// This process's link of it; null: it has none here, or is another thing.
[[nodiscard]] inline LocalLink* local_link_of(File& file) {
  return is_local(file) ? local_link(socket_of(file)) : nullptr;
}
/// Of a socket of path kLocal, or one that was.
[[nodiscard]] inline LocalEnd& end_of(const Socket& socket) {
  return *socket.details->local;
}
/// Whether there is memory, and nobody has broken its rules.
[[nodiscard]] inline bool is_paired(const Socket& socket) {
  return end_of(socket).stage == LocalEnd::Stage::kPaired;
}
/// This process's link, where there is memory. Null: none, or none any more.
[[nodiscard]] inline LocalLink* paired_link(const Socket& socket) {
  return is_paired(socket) ? local_link(socket) : nullptr;
}
/// What goes back to the kernel from the ring is on its way there.
[[nodiscard]] inline bool is_returning(const Socket& socket) {
  return is_paired(socket) && end_of(socket).paths.tx() == fastpath::shm::Switch::Tx::kReturning;
}
/// Several processes have it, and the others would have none of what this one agrees on.
[[nodiscard]] inline bool is_shared(const File& file) {
  return file.references.total() != file.references.of(shard().family().slot());
}

/// One call more on a connection that is not paired yet; begins an attempt when it is time.
void local_count_call(Guard& guard, Socket& socket, int fd);
/// Once it is over and nobody is inside: path kKernel. True: done.
bool local_give_up(Guard& guard, Socket& socket);
/// After local_leave(), which may have let go of the lock: the kernel's from here on, if it can be; and ended, if it
/// was closed meanwhile.
void end_leaving(Guard& guard, Socket& socket);
void step_pairing(Socket& socket, LocalLink& link, Instant now);
/// What a socket that never went through our calls has set in the kernel.
void take_timeouts(Socket& socket, int fd);
/// SO_PEEK_OFF is set: where a peek begins, the kernel keeps.
[[nodiscard]] bool has_peek_offset(int fd);

/// Of its half in the kernel.
[[nodiscard]] int kernel_number(const Socket& socket);
/// A word on the channel. False: it could not be said.
[[nodiscard]] bool say(LocalLink& link, fastpath::shm::SwitchKind kind, std::uint64_t count = 0);
/// Before this end's FIN, or reset, goes through the kernel. Its edge comes to the peer's process some time later;
/// the one that asks there meanwhile asks the kernel, and sees it at once.
inline void say_shut(LocalLink& link, fastpath::shm::Shut how = fastpath::shm::Shut::kEnd) {
  link.out.own->shut.store(how, std::memory_order_seq_cst);
}
/// What it is then, once the program has shut one half or both.
[[nodiscard]] inline fastpath::shm::Shut shut_word(const Socket& socket) {
  return socket.has(kShutReceive) ? fastpath::shm::Shut::kBoth : fastpath::shm::Shut::kEnd;
}
/// With both halves shut the kernel answers what still comes with RST; so it has to come there.
void leave_if_shut(Socket& socket, LocalLink& link);
[[nodiscard]] inline bool is_peer_shut(const LocalLink& link) {
  return link.in.peer->shut.load(std::memory_order_relaxed) != fastpath::shm::Shut::kNo;
}
/// Whether the peer has ended it in this way.
[[nodiscard]] inline bool has_peer_shut(const LocalLink& link, fastpath::shm::Shut how) {
  return link.in.peer->shut.load(std::memory_order_relaxed) == how;
}
/// Whether bytes of ours lie in a ring whose reader, should it die, leaves them unread.
[[nodiscard]] bool is_unread_by_peer(const Socket& socket, const LocalLink& link);
/// Whether another connection may take a number for its channel.
[[nodiscard]] bool has_numbers_for_link(Instant now);
/// kToWake: what is behind a wake-up is left to the next look, which it brings about.
enum class Hears : std::uint8_t { kAll, kToWake };
/// Takes what has come on the channel. True: it was more than a wake-up.
bool hear_channel(Socket& socket, LocalLink& link, Hears hears = Hears::kAll);
/// Acts on what was heard and could not be acted on at once.
void settle(Socket& socket, LocalLink& link);
/// Whether the ring has been read to where the kernel's connection goes on. The peer hears when it may CUT again.
bool end_of_ring_read(Socket& socket, LocalLink& link);
/// So many bytes more were read from the kernel's connection. As above.
void note_read_from_kernel(Socket& socket, std::uint64_t bytes);
/// Moves a direction that lies with the kernel to its ring, if it may be. True: it lies there. `more`: for bytes that
/// are to be held back.
bool try_cut(Socket& socket, LocalLink& link, bool more);
/// What is to go over the kernel from the ring goes there, as far as there is room.
void pump_return(Socket& socket, LocalLink& link);
/// RESUME before the kernel is told that nothing more is written, so that the one that has the other end then finds all
/// in the kernel. Where that has no room for it the peer's process reads the ring, and hands the end to nobody.
void return_ring_before_end(Socket& socket, LocalLink& link);
/// The memory stays while a thread copies to or from it without the lock; it then goes with the socket.
void end_local_link(Socket& socket, LocalLink& link);
/// RST to the peer, whose kernel has what came before; our program reads that first, and is told then.
void reset_behind_bytes(Socket& socket);
/// The peer has broken the rules: as a connection that was reset. `what` it did, for `bypass why`.
void break_link(Socket& socket, const char* what);

// --- Bytes that are held back for more (local_held.cc)

/// So many bytes of the ring's room are written: the peer may take them, unless `more` are announced (MSG_MORE) or
/// TCP_CORK is on. `ticks`: as of Producer::publish().
void publish_or_hold(Socket& socket, LocalLink& link, std::size_t bytes, bool more, std::uint64_t ticks);
/// What is held back goes.
void release_held(Socket& socket, LocalLink& link);
/// … when it has been long enough.
void release_when_due(Socket& socket, LocalLink& link, Instant now);
/// Whether local_tick() is needed for that, now or soon.
[[nodiscard]] bool may_hold_back(const Socket& socket, Instant now);
/// … where the peer's bytes have acknowledged what was under way, as in the kernel. Not by TCP_CORK.
void release_if_answered(Socket& socket, LocalLink& link);
/// … where the peer's FIN has come. The same.
void release_if_ended(Socket& socket, LocalLink& link);
/// … where any of the peer's bytes may have let it go, for it is lost otherwise.
void release_before_reset(Socket& socket, LocalLink& link);
/// The ring is about to be left, with it or by returning it: the kernel holds it back from now on.
void hand_held_over(Socket& socket, LocalLink& link);
/// Nobody reads the ring any more: what is held back goes over the kernel, as what is written from now on.
void abandon_ring(Socket& socket, LocalLink& link);
/// At the peer's end, by the kernel: what it held back when it died is there to be read. True: there is some.
bool take_held_of_dead(Socket& socket, LocalLink& link);
/// The same where its channel has gone: its end comes in the same moment. Before anything is sent, which it would
/// reset.
void await_held_of_dead(Socket& socket, LocalLink& link);
/// The pair stands, with what was set before.
void begin_holding(Socket& socket, int fd);

// --- What a writer may have unread (local_bound.cc)

/// The pair stands, or a direction is about to move to its ring: by what is set in the kernel now.
void take_buffers(Socket& socket, LocalLink& link, int fd);
/// By what take_buffers() found, and the peer's.
void bound_ring(Socket& socket, LocalLink& link);
/// Whether the peer's SO_RCVBUF has been changed since.
[[nodiscard]] inline bool has_other_buffer(const LocalLink& link) {
  return link.peers_buffer != link.out.peer->receive_buffer.load(std::memory_order_relaxed);
}
/// By what is set at both ends now. False: a ring cannot be bounded to so little.
[[nodiscard]] bool bound_anew(Socket& socket, LocalLink& link, int fd);
/// Whether the kernel would take less of `fd` than a ring can be bounded to. `peers_buffer`: its SO_RCVBUF; 0: not
/// known.
[[nodiscard]] bool is_bound_below_ring(int fd, std::uint32_t peers_buffer = 0);

/// When bytes went last, as TCP_INFO has it; to the time between two looks.
void note_ring_traffic(const LocalEnd& end, LocalLink& link, Instant now);
/// A writer waits for a reader that does not read: it goes on over the kernel.
void relieve_full_ring(Socket& socket, LocalLink& link, Instant now);

/// Signals what has moved since the last look. True: something has.
bool look_at_rings(Socket& socket, LocalLink& link);
/// Before a wake-up of this link is acted on: rings that nobody has armed, and that were written to earlier, come
/// first.
void hear_earlier_rings(const LocalLink& link);
/// Whether somebody sleeps who waits for it, or other processes have it or a set that it is in: the one that sleeps
/// there arms no link of ours.
[[nodiscard]] bool is_to_be_armed(const Socket& socket);
/// The peer wakes us from here on.
void ask_for_wakes(Socket& socket, LocalLink& link);
/// The same. True: something has come meanwhile.
bool arm_link(Socket& socket, LocalLink& link);
/// arm_link() for who sleeps, or where no poll looks at it.
void arm_where_needed(Socket& socket, LocalLink& link);
/// A call has used the rings: they are among those that polls look at.
void touch_link(Socket& socket, LocalLink& link);

/// A writer has found no room: the peer tells of it from here on, where somebody sleeps for it already.
void want_room(Socket& socket, LocalLink& link);
[[nodiscard]] bool has_ring_room(const Socket& socket, LocalLink& link);

}  // namespace bypass::socket
