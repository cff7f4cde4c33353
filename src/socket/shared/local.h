// Local: connections of the kernel's between two processes of this host, whose bytes may move to memory that both
// share (src/fastpath/shm), while the kernel's connection stays beneath.
//
//   kLooking   a plain kernel socket whose calls are counted: the other end may be libbypass's
//   kPairing   the ends are looking for each other; bytes go over the kernel
//   kPaired    there is memory; each direction is where its Switch says
//   kOver      the kernel's alone from here on; given to it once nobody is inside
//
// The client's side begins after some calls: a connection of one question and one answer does not pay for it. What only
// the kernel can do (urgent data, kernel TLS, exec, a descriptor that is passed on) takes the connection back to it for
// good: local_leave().
//
// LocalEnd lies in the arena beside its Socket's Details. The mapping and the channel are a process's own: LocalLink.
#pragma once

#include <cstdint>
#include <optional>

#include "fastpath/shm/directory.h"
#include "fastpath/shm/switch.h"
#include "socket/api.h"
#include "stack/memory/memory.h"

namespace bypass::socket {

class Guard;
struct Socket;
struct File;
class Shard;

struct LocalEnd {
  enum class Stage : std::uint8_t { kNone, kLooking, kPairing, kPaired, kOver };

  Stage stage = Stage::kNone;
  bool client = false;
  bool may_cut = false;         // the other end is paired, too: what lies in the ring will be read
  bool cut_heard = false;       // cut_at waits for reads that are under way
  bool stop_heard = false;      // stop_at waits for a write that is under way
  bool resume_heard = false;    // resume_at waits for a read that is under way
  bool wants_room = false;      // a writer found the ring full
  bool peer_gone = false;       // nobody writes or reads at the other end of the ring
  bool fin_waits = false;       // shutdown() waits for what the peer wants back
  bool more_in_kernel = false;  // the last send there was one of MSG_MORE
  std::uint8_t attempts = 0;
  fastpath::shm::Refusal refusal = fastpath::shm::Refusal::kNone;  // of the last attempt
  std::uint16_t reads_in_kernel = 0, sends_in_kernel = 0;          // calls that may wait there without us
  std::uint32_t calls = 0;
  std::uint32_t segment = 0;      // bytes of one that is full, by the kernel
  std::uint32_t most_unsent = 0;  // that the kernel would take, by SO_SNDBUF and TCP_NOTSENT_LOWAT; 0: no bound
  std::uint32_t window = 0;       // the peer's then, by its kernel
  SlotId id{};                    // of the socket, once paired
  std::uint64_t cut_at = 0, stop_at = 0, resume_at = 0;
  std::uint64_t seen_at_send = 0;  // what was known of the peer's index when bytes went last
  fastpath::shm::Switch paths;
  fastpath::shm::Producer producer;
  fastpath::shm::Consumer consumer;
};

/// What connections within the host ask the process. No function is ever null.
struct LocalPolicy {
  /// Null: nothing is local in this process.
  const fastpath::shm::Directory* directory = nullptr;
  /// Whether rules leave a connection with this peer the choice. `remote`: of the side that connected.
  bool (*may_be_local)(const sockaddr* address) = [](const sockaddr*) { return true; };
  /// As many connections as the process has numbers for, beside the program's.
  std::uint32_t (*most_links)() = [] { return UINT32_MAX; };
  /// There is something that wants the progress thread. False: none can be had.
  bool (*need_progress)() = [] { return true; };
  /// It has something to do at once, if there is one. For vfork children, too.
  void (*call_progress)() = [] {};
};
extern LocalPolicy local_policy;

/// What became of this process's connections within the host; written with the shard's lock, read without.
struct LocalCounts {
  std::uint64_t shared = 0;   // both ends had the memory
  std::uint64_t refused = 0;  // not, and no further attempt is made
};
extern LocalCounts local_counts;

// --- Where connections begin

/// A stream is about to listen in the kernel, or does: libbypass clients may know.
void local_note_listener(int fd);
/// Before the kernel connects `socket`: whether it becomes local (path kLocal, kLooking). Lock not held.
bool local_before_connect(Socket& socket, int fd, const sockaddr* address, socklen_t length);
/// After that: who has watched it since before it was anybody's hears of the kernel's side from here on. Lock held.
void local_after_connect(Socket& socket, int fd);

// --- The calls on a socket whose path is kLocal
long local_receive(Socket& socket, int fd, Message& message, int flags);
long local_send(Socket& socket, int fd, const Message& message, int flags, bool& sigpipe);
long local_send_file(Socket& socket, int fd, int in_fd, off_t* offset, std::size_t count, bool& sigpipe);
long local_shutdown(Socket& socket, int fd, int how);
[[nodiscard]] std::uint32_t local_bits(const Socket& socket);
/// Whether both directions lie in rings, and nothing has come that the program has not read: by the rings, which are
/// asked, and by what was heard of the kernel, which is not. Lock held.
[[nodiscard]] bool local_is_quiet(const Socket& socket);
/// FIONREAD, SIOCATMARK and SIOCOUTQ; nothing: the kernel's answer is the right one.
std::optional<long> local_number(Socket& socket, int fd, unsigned long request);
/// The program has been told `error`, an errno that was kept here: the kernel, where the same end may be known, too,
/// tells of it no more. Lock held.
void local_told_error(Socket& socket, int error);
/// TCP_CORK or TCP_NODELAY was set; `pushes`: so that what is held back goes (tcp(7)). Lock held.
void local_note_cork(Socket& socket, bool pushes);
/// An option was set that bounds what the kernel takes, or holds for a reader. Lock held; may let go of it.
void local_note_buffers(Guard& guard, Socket& socket, int fd);
/// Its last number is about to be closed, or its process ends. Lock held.
void local_end(Guard& guard, Socket& socket);
/// Back to the kernel for good, bytes in order and all of them. Lock held; may let go of it.
void local_leave(Guard& guard, Socket& socket);

// --- The process's part

/// Before the shard's ports are polled: what has moved in the rings. Lock held. True: something has.
bool poll_local();
/// Before a sleep, when what it waits for has been linked: from here on the peers wake the one that sleeps. Lock held.
/// True: something has come meanwhile, and was signalled.
bool arm_local();
/// Somebody who sleeps waits for it from now on, too. Lock held.
void local_is_waited_for(Socket& socket);
/// Whether this process has rings to look at.
[[nodiscard]] bool has_active_local();
/// Whether the progress thread has something to watch: pairings, channels.
[[nodiscard]] bool has_local_links();
/// Does what a vfork child has asked for. Lock held.
void local_answer(Guard& guard, Socket& socket);
/// In a forked child that has adopted its numbers: what it has of connections that are not among them. Lock held.
void drop_unadopted_links();
/// Whether local_tick() is to be called soon, in this process. Lock held: a link that ends names no socket any more.
[[nodiscard]] bool local_wants_tick(const Guard& guard);
/// Attempts whose time is over end; writers that wait in vain go on over the kernel. Lock held.
void local_tick(Guard& guard);
/// The channel of a link has something to say; the kernel's half of a socket has. Lock held.
void local_on_channel(Socket& socket);
void local_on_kernel(Socket& socket);
/// Around a fork, in the child: before our descriptors are closed there, and after.
void local_save_channels();
void local_restore_channels();
/// In a forked child: what the parent had paired is used by both from now on.
void local_adopt(Socket& socket);
/// This process has no number of it any more; others have. Lock held.
void local_forget(Socket& socket);
/// `fd`, under which an attempt works, is about to be closed.
void local_number_goes(Socket& socket, int fd);

}  // namespace bypass::socket
