// RcQueuePair: a link's RC queue pair with its completion queue, its channel, and the registration of the memory that
// the peer writes. The calls that change it may take long (in the kernel, or to find the peer's address). So only the
// device's own thread makes them, except end() and, after a failure, destroy().
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "backends/verbs/verbs.h"
#include "fastpath/setup/rc_record.h"

namespace bypass::verbs {

/// What belongs to the device and is the same for all of its links.
struct RcContext {
  const Verbs* verbs = nullptr;
  ibv_context* device = nullptr;
  ibv_pd* domain = nullptr;
  bool soft = false;  // the device is the software library's
  std::uint8_t port = 1;
  std::uint8_t gid_index = 0;
  std::uint8_t timeout = 13, retries = 3, traffic_class = 0;
  std::uint32_t depth = 512;  // the length of a send queue
  ibv_mtu mtu = IBV_MTU_1024;
  IpAddress gid;
};

class RcQueuePair {
 public:
  /// The most pieces of one write: each of its two parts may lie in two registrations.
  static constexpr std::uint32_t kMostPieces = 4;
  /// The fewest bytes that a device must take inside a request: what LinkEnd itself writes lies nowhere else.
  static constexpr std::uint32_t kLeastInline = 16;
  /// How many messages may be polled before their receives are posted again.
  static constexpr std::uint32_t kRefill = 32;

  explicit RcQueuePair(const RcContext& context) : context_(context) {}
  RcQueuePair(const RcQueuePair&) = delete;
  RcQueuePair& operator=(const RcQueuePair&) = delete;
  ~RcQueuePair() { destroy(); }

  /// Makes everything, up to the state INIT. The peer may write `memory`, under a key and an address that only this
  /// link has. `random` chooses the address where the library allows that. 0 or an errno.
  int make(std::span<std::byte> memory, std::uint32_t receives, std::uint64_t random, void* user);
  /// Goes to the state RTS. `psn`: the number of our first packet.
  int connect(const fastpath::RcEnd& peer, std::uint32_t psn);
  /// Goes to the error state: what is posted comes back flushed. 0 or an errno.
  int end();
  /// Destroys the queue pair. Nothing is written into the memory any more.
  void destroy_pair();
  void destroy();

  [[nodiscard]] ibv_qp* pair() const { return pair_; }
  [[nodiscard]] ibv_cq* completions() const { return completions_; }
  [[nodiscard]] std::uint32_t inline_bytes() const { return inline_bytes_; }
  [[nodiscard]] std::uint32_t key() const { return memory_->rkey; }
  /// The key to the same memory for our own requests.
  [[nodiscard]] std::uint32_t own_key() const { return memory_->lkey; }
  [[nodiscard]] std::uint64_t address() const { return address_; }
  /// The most bytes that a packet carries, once connect() was called.
  [[nodiscard]] std::uint32_t packet_bytes() const { return 128U << mtu_; }
  [[nodiscard]] int channel() const { return channel_ != nullptr ? channel_->fd : -1; }

  // --- Notification
  /// 0 or an errno.
  int arm(bool messages_only) { return ibv_req_notify_cq(completions_, messages_only ? 1 : 0); }
  /// Reads the events that lie in the channel.
  void fetch();

 private:
  int register_memory(std::span<std::byte> memory, std::uint64_t random);
  int make_completions(std::uint32_t count, void* user);
  int make_pair(std::uint32_t receives);
  int initialise();

  const RcContext& context_;
  ibv_mr* memory_ = nullptr;
  std::uint64_t address_ = 0;
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* completions_ = nullptr;
  ibv_qp* pair_ = nullptr;
  std::uint32_t inline_bytes_ = 0;
  ibv_mtu mtu_ = IBV_MTU_256;
};

}  // namespace bypass::verbs
