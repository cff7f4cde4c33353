// Local: kernel connections between two processes of this host, whose bytes may move to memory that both share
// (src/fastpath/shm). The kernel's connection stays beneath.
//
//   kLooking   a plain kernel socket whose calls are counted. The other end may also be a libbypass process.
//   kPairing   the two ends are looking for each other. All bytes go over the kernel.
//   kPaired    the memory is shared. Each direction has its carrier, the kernel or the ring (CarrierSwitch).
//   kOver      the connection is the kernel's for good. Its number goes back to the kernel once no thread is inside.
//
// The client's side begins after some calls, so that a connection of one question and one answer does not pay for it.
// Some things only the kernel can do: urgent data, kernel TLS, exec, passing a descriptor. They take the connection
// back to the kernel for good: local_leave().
//
// LocalEnd lies in the arena beside its Socket's Details. The mapping and the channel belong to one process: LocalLink.
// Tests: tests/system/local.py, tests/system/local_meetings.py.
#pragma once

#include <cstdint>
#include <optional>

#include "fastpath/shm/carrier_switch.h"
#include "fastpath/shm/rendezvous/directory.h"
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
  bool may_cut = false;         // the other end is paired, too: bytes in the ring will be read
  bool cut_heard = false;       // CUT has come; it waits for reads that are under way
  bool stop_heard = false;      // STOP has come; it waits for a write that is under way
  bool resume_heard = false;    // RESUME has come; it waits for a read that is under way
  bool wants_room = false;      // a writer found the ring full
  bool peer_gone = false;       // no process writes or reads at the other end of the ring
  bool fin_waits = false;       // shutdown() waits until the bytes that the peer wants back are sent
  bool more_in_kernel = false;  // the last send over the kernel had MSG_MORE
  std::uint8_t attempts = 0;
  fastpath::shm::Refusal refusal = fastpath::shm::Refusal::kNone;  // reason of the last attempt
  std::uint16_t reads_in_kernel = 0, sends_in_kernel = 0;          // calls that may be waiting in the kernel
  std::uint32_t calls = 0;
  std::uint32_t segment = 0;      // bytes of a full segment, as the kernel reports them
  std::uint32_t most_unsent = 0;  // how much the kernel would take, by SO_SNDBUF and TCP_NOTSENT_LOWAT; 0: no bound
  std::uint32_t window = 0;       // the peer's window at that time, by its kernel
  SlotId id{};                    // the socket's, once paired
  std::uint64_t cut_at = 0, stop_at = 0, resume_at = 0;
  std::uint64_t seen_at_send = 0;  // the known value of the peer's index when bytes were sent last
  fastpath::shm::CarrierSwitch paths;
  fastpath::shm::Producer producer;
  fastpath::shm::Consumer consumer;
};

/// What connections within the host need from the process. No function is ever null.
struct LocalPolicy {
  /// Null: this process shares no memory for connections.
  const fastpath::shm::Directory* directory = nullptr;
  /// Whether the rules allow shared memory with this peer. `address`: the peer's, seen from the side that connected.
  bool (*may_be_local)(const sockaddr* address) = [](const sockaddr*) { return true; };
  /// How many connections may be paired, beside the descriptors that the program needs.
  std::uint32_t (*most_links)() = [] { return UINT32_MAX; };
  /// The progress thread is needed. False: it cannot be started.
  bool (*need_progress)() = [] { return true; };
  /// Wakes the progress thread, if there is one. A vfork child may call it, too.
  void (*call_progress)() = [] {};
};
extern LocalPolicy local_policy;

/// Results of this process's connections within the host; written with the shard's lock, read without.
struct LocalCounts {
  std::uint64_t shared = 0;   // both ends share the memory
  std::uint64_t refused = 0;  // refused for good: no further attempt is made
};
extern LocalCounts local_counts;

// --- Where connections begin

/// A stream is about to listen in the kernel, or listens: libbypass clients may know.
void local_note_listener(int fd);
/// Called before the kernel connects `socket`. Returns whether it becomes local (path kLocal, kLooking). Lock not held.
bool local_before_connect(Socket& socket, int fd, const sockaddr* address, socklen_t length);
/// Called after that: threads and sets that watched the socket before are told of the kernel's side from now on. Lock
/// held.
void local_after_connect(Socket& socket, int fd);

// --- The calls on a socket whose path is kLocal
long local_receive(Socket& socket, int fd, Message& message, int flags);
long local_send(Socket& socket, int fd, const Message& message, int flags, bool& sigpipe);
long local_send_file(Socket& socket, int fd, int in_fd, off_t* offset, std::size_t count, bool& sigpipe);
long local_shutdown(Socket& socket, int fd, int how);
[[nodiscard]] std::uint32_t local_bits(const Socket& socket);
/// Whether both directions lie in rings, and nothing has come that the program has not read. The rings are read for
/// this; of the kernel only what was heard already counts. Lock held.
[[nodiscard]] bool local_is_quiet(const Socket& socket);
/// FIONREAD, SIOCATMARK and SIOCOUTQ; nullopt: the kernel's answer is the right one.
std::optional<long> local_number(Socket& socket, int fd, unsigned long request);
/// The program was given `error`, an errno that was kept here. If the kernel knows the same error, it must not report
/// it again. Lock held.
void local_told_error(Socket& socket, int error);
/// TCP_CORK or TCP_NODELAY was set. `pushes`: bytes that are held back must be sent (tcp(7)). Lock held.
void local_note_cork(Socket& socket, bool pushes);
/// An option was set that limits what the kernel takes, or holds for a reader. Lock held; may release it for a time.
void local_note_buffers(Guard& guard, Socket& socket, int fd);
/// The socket's last number is about to be closed, or its process ends. Lock held.
void local_end(Guard& guard, Socket& socket);
/// Takes the connection back to the kernel for good, with all bytes in order. Lock held; may release it for a time.
void local_leave(Guard& guard, Socket& socket);

// --- The process's part

/// Called before the shard's ports are polled: looks for changes in the rings. Lock held. True: something has changed.
bool poll_local();
/// Called before a sleep, after the waiter is linked: from now on the peers wake a sleeper. Lock held. True: something
/// has come meanwhile, and was signalled.
bool arm_local();
/// A sleeping thread now waits for the socket, too. Lock held.
void local_is_waited_for(Socket& socket);
/// Whether this process has rings that polls look at.
[[nodiscard]] bool has_active_local();
/// Whether the progress thread has pairings or channels to watch.
[[nodiscard]] bool has_local_links();
/// Does what a vfork child has asked for. Lock held.
void local_answer(Guard& guard, Socket& socket);
/// In a forked child that has adopted its numbers: drops its links of connections that are not among them. Lock held.
void drop_unadopted_links();
/// Whether local_tick() must be called soon in this process. Lock held, because a link that has ended names no socket.
[[nodiscard]] bool local_wants_tick(const Guard& guard);
/// Ends attempts whose time is over. Writers that have waited in vain go on over the kernel. Lock held.
void local_tick(Guard& guard);
/// A link's channel has a message; local_on_kernel(): the kernel's half of a socket has news. Lock held.
void local_on_channel(Socket& socket);
void local_on_kernel(Socket& socket);
/// Around a fork, in the child: to be called before our descriptors are closed there, and after.
void local_save_channels();
void local_restore_channels();
/// In a forked child: from now on parent and child both use what the parent had paired.
void local_adopt(Socket& socket);
/// This process has no number of the socket any more; other processes have. Lock held.
void local_forget(Socket& socket);
/// `fd`, which an attempt uses, is about to be closed.
void local_number_goes(Socket& socket, int fd);

}  // namespace bypass::socket
