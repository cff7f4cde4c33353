// LocalLink: what this process alone has of a connection within the host. First it is the attempt to find the other
// end (`pairing`), and later the mapping (`segment`) and the channel. The stages are in local.h. The table is indexed
// by the sockets' slots. The shard's lock is held.
// Tests: tests/socket/local_pairing_test.cc, tests/system/local_meetings.py.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <new>
#include <span>

#include "fastpath/shm/rendezvous/pairing.h"
#include "os/chunk_table.h"

namespace bypass::socket {

struct KernelHalf;
struct Socket;

struct LocalLink {
  std::uint32_t generation = 0;  // the socket slot's
  bool used = false;
  bool active = false;            // among the links that each poll looks at (ActiveLinks)
  bool watched = false;           // `watched_fd` is in the process's watch set
  bool channel_readable = false;  // a sleeper has found `watched_fd` readable and has not read it
  bool armed_in = false;          // the peer wakes this end when it has written bytes
  bool armed_out = false;         // the peer wakes this end when it has read bytes, so that there is room
  int tcp = -1;                   // the number of the kernel's connection when the attempt began
  int watched_fd = -1;
  std::uint32_t peers_buffer = 0;  // the peer's SO_RCVBUF, by which the ring is bounded (local_bound.cc)
  Socket* socket = nullptr;
  const KernelHalf* half = nullptr;  // the socket's kernel half
  fastpath::shm::Pairing pairing;
  fastpath::shm::Segment segment;
  fastpath::shm::Channel channel;
  fastpath::shm::RingView out, in;
  Instant stuck_since = kNever;  // since when a writer has found the ring full and its reader at the same place
  std::uint64_t stuck_at = 0;    // … that place
  // Bytes at the end of the ring may be held back, as Nagle's algorithm and TCP_CORK do (local_held.cc).
  Instant held_until = kNever;                         // when they are sent
  bool awaits_answer = false;                          // they are also sent when the peer's next bytes come
  std::uint64_t held_at = 0;                           // the peer's index when the bytes were held
  std::uint64_t seen_produced = 0, seen_consumed = 0;  // the peer's indices at the last look
  std::uint64_t noted_sent = 0, noted_received = 0;    // for TCP_INFO: bytes at the last look
  Instant sent_by{}, received_by{};                    // for TCP_INFO: when these were found to have grown
};

/// Null: this process has no link for this socket.
[[nodiscard]] LocalLink* local_link(const Socket& socket);
/// Makes a link; null: no memory.
LocalLink* make_local_link(Socket& socket);
/// Closes and unmaps everything of the link.
void drop_local_link(LocalLink& link);
/// The same, but the memory stays mapped, because the process ends.
void forget_local_link(LocalLink& link);
[[nodiscard]] std::uint32_t local_link_count();
/// Closes the channel: from now on this end neither hears the peer nor wakes it.
void close_channel(LocalLink& link);
/// Called in a forked child: counts the links again. Another thread of the parent may have been changing the count.
void recount_local_links();

/// Waits until no thread of this process is about to wake a peer. Lock held.
void await_wakes();
/// Wakes the peer after the lock is released: waking is a system call, during which others would wait. Lock held.
void wake_peer(const LocalLink& link);
/// Called without the lock: makes the wake-ups that this thread has asked for. wake_collected() also does it.
void wake_peers();

/// Each poll looks at the kMostActive links that were used last. The others are armed: their peers wake this end.
inline constexpr std::size_t kMostActive = 64;
struct ActiveLinks {
  std::array<LocalLink*, kMostActive> links{};
  std::atomic<std::size_t> count{0};  // changed with the lock held, like everything here; also read without it

  [[nodiscard]] std::span<LocalLink* const> all() const {
    return {links.data(), count.load(std::memory_order_relaxed)};
  }
  void remove(LocalLink& link);
  /// Makes the link the one that was used last. Returns the link that must leave the list for it, or null.
  LocalLink* add(LocalLink& link);
};
extern constinit ActiveLinks active_links;

/// Calls `each` for every link of the process.
template <typename Each>
void for_each_local_link(Each&& each);
/// The table of for_each_local_link().
ChunkTable<LocalLink>& local_links();

template <typename Each>
void for_each_local_link(Each&& each) {
  local_links().for_each([&](LocalLink& link) {
    if (link.used) each(link);
  });
}

}  // namespace bypass::socket
