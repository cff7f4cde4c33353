// LocalLink: this process's hold on a paired connection: the mapping, the channel, and while they look for each other
// the attempt. By the sockets' slots, with the shard's lock.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <new>
#include <span>

#include "fastpath/shm/pairing.h"
#include "os/chunk_table.h"

namespace bypass::socket {

struct KernelHalf;
struct Socket;

struct LocalLink {
  std::uint32_t generation = 0;  // of the socket's slot
  bool used = false;
  bool active = false;            // among those that a poll looks at
  bool watched = false;           // `watched_fd` is in the process's watch set
  bool channel_readable = false;  // a sleeper has found `watched_fd` so, and has not read it
  bool armed_in = false;          // the peer wakes us for bytes
  bool armed_out = false;         // … for room
  int tcp = -1;                   // the number under which the attempt was begun
  int watched_fd = -1;
  std::uint32_t peers_buffer = 0;  // its SO_RCVBUF by which the ring is bounded (local_bound.cc)
  Socket* socket = nullptr;
  const KernelHalf* half = nullptr;  // of the socket
  fastpath::shm::Pairing pairing;
  fastpath::shm::Segment segment;
  fastpath::shm::Channel channel;
  fastpath::shm::RingView out, in;
  Instant stuck_since = kNever;  // a writer has found the ring full, and its reader at the same place
  std::uint64_t stuck_at = 0;
  Instant held_until = kNever;                         // then what the ring holds back goes
  bool awaits_answer = false;                          // … with the peer's next bytes, too
  std::uint64_t held_at = 0;                           // the peer's index when that began
  std::uint64_t seen_produced = 0, seen_consumed = 0;  // the peer's indices at the last look
  std::uint64_t noted_sent = 0, noted_received = 0;    // for TCP_INFO: bytes, when somebody looked last
  Instant sent_by{}, received_by{};                    // … and when they were found to have grown
};

/// Null: this process has none of this socket.
[[nodiscard]] LocalLink* local_link(const Socket& socket);
/// A new one; null: no memory.
LocalLink* make_local_link(Socket& socket);
/// Closes and unmaps what it has.
void drop_local_link(LocalLink& link);
/// The same, but for the memory, which stays mapped: the process ends.
void forget_local_link(LocalLink& link);
[[nodiscard]] std::uint32_t local_link_count();
/// Nobody hears the peer any more, nor wakes it.
void close_channel(LocalLink& link);
/// In a forked child: another thread of the parent's may have been about to count one.
void recount_local_links();

/// No thread of this process is about to wake a peer any more. Lock held.
void await_wakes();
/// Wakes the peer once the lock is let go of: it is a system call, for which others would wait. Lock held.
void wake_peer(const LocalLink& link);
/// Without the lock: what this thread has asked for. wake_collected() does so, too.
void wake_peers();

/// Looked at by every poll, the latest kMostActive of them; the others are armed.
inline constexpr std::size_t kMostActive = 64;
struct ActiveLinks {
  std::array<LocalLink*, kMostActive> links{};
  std::atomic<std::size_t> count{0};  // changed with the lock held, as all of it; read also without

  [[nodiscard]] std::span<LocalLink* const> all() const {
    return {links.data(), count.load(std::memory_order_relaxed)};
  }
  void remove(LocalLink& link);
  /// Puts it last. The one that has to go, or null.
  LocalLink* add(LocalLink& link);
};
extern constinit ActiveLinks active_links;

/// Calls `each` for every link of the process.
template <typename Each>
void for_each_local_link(Each&& each);
/// The table itself, for that.
ChunkTable<LocalLink>& local_links();

template <typename Each>
void for_each_local_link(Each&& each) {
  local_links().for_each([&](LocalLink& link) {
    if (link.used) each(link);
  });
}

}  // namespace bypass::socket
