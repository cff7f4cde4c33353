// RcQueuePair: a link's RC queue pair and what is its own: completion queue, channel, and the registration of the
// memory that the peer writes. The calls that change it may take long (the kernel's, a look for the peer's address):
// they are for the device's own thread, end() and destroy() after a failure apart.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "backends/verbs/verbs.h"
#include "fastpath/setup/rc_record.h"

namespace bypass::verbs {

/// Of the device, and the same for all of its links.
struct RcContext {
  const Verbs* verbs = nullptr;
  ibv_context* device = nullptr;
  ibv_pd* domain = nullptr;
  bool soft = false;  // of the software library
  std::uint8_t port = 1;
  std::uint8_t gid_index = 0;
  std::uint8_t timeout = 13, retries = 3, traffic_class = 0;
  std::uint32_t depth = 512;  // of the send queue
  ibv_mtu mtu = IBV_MTU_1024;
  IpAddress gid;
};

class RcQueuePair {
 public:
  /// Pieces of one write: each of its two parts may lie in two registrations.
  static constexpr std::uint32_t kMostPieces = 4;
  /// Bytes that a device must be able to take inside a request: what LinkEnd writes itself lies nowhere else.
  static constexpr std::uint32_t kLeastInline = 16;
  /// Messages that were polled and whose receives are not posted again yet.
  static constexpr std::uint32_t kRefill = 32;

  explicit RcQueuePair(const RcContext& context) : context_(context) {}
  RcQueuePair(const RcQueuePair&) = delete;
  RcQueuePair& operator=(const RcQueuePair&) = delete;
  ~RcQueuePair() { destroy(); }

  /// Everything up to INIT. The peer may write `memory`, under a key and address that are this link's alone; `random`
  /// chooses the address where the library lets it. 0 or an errno.
  int make(std::span<std::byte> memory, std::uint32_t receives, std::uint64_t random, void* user);
  /// To RTS. `psn`: our first packet's number.
  int connect(const fastpath::RcEnd& peer, std::uint32_t psn);
  /// To the error state: what is posted comes back flushed. 0 or an errno.
  int end();
  /// Without the queue pair nothing is written into the memory any more.
  void destroy_pair();
  void destroy();

  [[nodiscard]] ibv_qp* pair() const { return pair_; }
  [[nodiscard]] ibv_cq* completions() const { return completions_; }
  [[nodiscard]] std::uint32_t inline_bytes() const { return inline_bytes_; }
  [[nodiscard]] std::uint32_t key() const { return memory_->rkey; }
  /// Of the same memory, for our own requests.
  [[nodiscard]] std::uint32_t own_key() const { return memory_->lkey; }
  [[nodiscard]] std::uint64_t address() const { return address_; }
  /// What a packet carries at most, once connect() was called.
  [[nodiscard]] std::uint32_t packet_bytes() const { return 128U << mtu_; }
  [[nodiscard]] int channel() const { return channel_ != nullptr ? channel_->fd : -1; }

  // --- Notification
  /// 0 or an errno.
  int arm(bool messages_only) { return ibv_req_notify_cq(completions_, messages_only ? 1 : 0); }
  /// Takes what lies in the channel.
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
