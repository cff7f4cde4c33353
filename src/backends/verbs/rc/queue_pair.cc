#include "backends/verbs/rc/queue_pair.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>

#include "backends/packet/libc.h"
#include "backends/verbs/fork.h"
#include "os/own/cancellation.h"

namespace bypass::verbs {
namespace {

using packet::host;
using packet::libc;

constexpr std::array<std::uint32_t, 3> kInline = {220, 64, RcQueuePair::kLeastInline};
constexpr std::uint8_t kHops = 64;
constexpr std::uint8_t kRnrTimer = 1;    // 10 µs; 0 would be 655 ms
constexpr std::uint8_t kRnrRetries = 6;  // 7 would mean for ever

// Chooses the address by which the device's key names the memory, so that nobody can guess it. It keeps its place
// within a huge page, by which a card builds its tables. Its upper bits are a user-space address's.
std::uint64_t choose_address(const void* at, std::uint64_t random) {
  constexpr std::uint64_t kHugePage = std::uint64_t{2} << 20;
  constexpr std::uint64_t kUser = (std::uint64_t{1} << 46) - kHugePage;
  return (random & kUser) | (reinterpret_cast<std::uintptr_t>(at) & (kHugePage - 1));
}

int errno_or(int fallback) {
  return errno != 0 ? errno : fallback;
}

}  // namespace

int RcQueuePair::make(std::span<std::byte> memory, std::uint32_t receives, std::uint64_t random, void* user) {
  int error = register_memory(memory, random);
  if (error == 0) error = make_completions(context_.depth + receives + 1, user);
  if (error == 0) error = make_pair(receives);
  return error == 0 ? initialise() : error;
}

int RcQueuePair::register_memory(std::span<std::byte> memory, std::uint64_t random) {
  constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
  const Verbs& verbs = *context_.verbs;
  address_ = choose_address(memory.data(), random);
  if (verbs.reg_mr_iova != nullptr)
    memory_ = verbs.reg_mr_iova(context_.domain, memory.data(), memory.size(), address_, kAccess);
  if (memory_ == nullptr) {
    address_ = reinterpret_cast<std::uintptr_t>(memory.data());
    memory_ = verbs.reg_mr(context_.domain, memory.data(), memory.size(), kAccess);
  }
  if (memory_ == nullptr) return errno_or(ENOMEM);
  if (!context_.soft) keep_in_children(memory);
  return 0;
}

int RcQueuePair::make_completions(std::uint32_t count, void* user) {
  const Verbs& verbs = *context_.verbs;
  channel_ = verbs.create_comp_channel(context_.device);
  if (channel_ == nullptr) return errno_or(ENOMEM);
  host->own_descriptor(channel_->fd, true);
  const int flags = libc.fcntl(channel_->fd, F_GETFL);
  if (flags < 0 || libc.fcntl(channel_->fd, F_SETFL, flags | O_NONBLOCK) != 0) return errno_or(EIO);
  completions_ = verbs.create_cq(context_.device, static_cast<int>(count), user, channel_, 0);
  return completions_ != nullptr ? 0 : errno_or(ENOMEM);
}

// A device shows how many bytes it takes inside a request only by refusing more.
int RcQueuePair::make_pair(std::uint32_t receives) {
  for (const std::uint32_t inline_bytes : kInline) {
    ibv_qp_init_attr wanted{};
    wanted.qp_type = IBV_QPT_RC;
    wanted.send_cq = wanted.recv_cq = completions_;
    wanted.cap = {context_.depth + 1, receives, kMostPieces, 1, inline_bytes};  // one more for the link's last request
    pair_ = context_.verbs->create_qp(context_.domain, &wanted);
    inline_bytes_ = std::min(inline_bytes, wanted.cap.max_inline_data);
    if (pair_ != nullptr) return inline_bytes_ >= kLeastInline ? 0 : EOPNOTSUPP;
    if (errno != EINVAL) break;
  }
  return errno_or(EINVAL);
}

int RcQueuePair::initialise() {
  ibv_qp_attr to{};
  to.qp_state = IBV_QPS_INIT;
  to.port_num = context_.port;
  to.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  return context_.verbs->modify_qp(pair_, &to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

int RcQueuePair::connect(const fastpath::RcEnd& peer, std::uint32_t psn) {
  ibv_qp_attr to{};
  to.qp_state = IBV_QPS_RTR;
  to.path_mtu = mtu_ = std::min(context_.mtu, static_cast<ibv_mtu>(peer.mtu));
  to.dest_qp_num = peer.qpn;
  to.rq_psn = peer.psn;
  to.min_rnr_timer = kRnrTimer;
  to.ah_attr.is_global = 1;
  to.ah_attr.port_num = context_.port;
  to.ah_attr.grh.dgid = std::bit_cast<ibv_gid>(peer.gid.bytes);
  to.ah_attr.grh.sgid_index = context_.gid_index;
  to.ah_attr.grh.hop_limit = kHops;
  to.ah_attr.grh.traffic_class = context_.traffic_class;
  constexpr int kToRtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                         IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  if (const int error = context_.verbs->modify_qp(pair_, &to, kToRtr); error != 0) return error;
  to.qp_state = IBV_QPS_RTS;
  to.sq_psn = psn;
  to.timeout = context_.timeout;
  to.retry_cnt = context_.retries;
  to.rnr_retry = kRnrRetries;
  constexpr int kToRts =
      IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
  return context_.verbs->modify_qp(pair_, &to, kToRts);
}

// Older kernels are asked by write(2), a cancellation point. The thread that ends the queue pair holds the shard's
// lock.
int RcQueuePair::end() {
  const socket::CancellationOff off;
  if (pair_ == nullptr) return EINVAL;
  ibv_qp_attr to{};
  to.qp_state = IBV_QPS_ERR;
  return context_.verbs->modify_qp(pair_, &to, IBV_QP_STATE);
}

void RcQueuePair::fetch() {
  ibv_cq* told = nullptr;
  void* user = nullptr;
  unsigned events = 0;
  while (context_.verbs->get_cq_event(channel_, &told, &user) == 0) events++;
  if (events != 0) context_.verbs->ack_cq_events(completions_, events);
}

void RcQueuePair::destroy_pair() {
  const socket::CancellationOff off;
  if (pair_ != nullptr) (void)context_.verbs->destroy_qp(pair_);
  pair_ = nullptr;
}

void RcQueuePair::destroy() {
  const Verbs& verbs = *context_.verbs;
  destroy_pair();
  if (completions_ != nullptr) {
    fetch();
    (void)verbs.destroy_cq(completions_);
  }
  if (channel_ != nullptr) {
    host->own_descriptor(channel_->fd, false);
    (void)verbs.destroy_comp_channel(channel_);
  }
  if (memory_ != nullptr) (void)verbs.dereg_mr(memory_);
  completions_ = nullptr;
  channel_ = nullptr;
  memory_ = nullptr;
}

}  // namespace bypass::verbs
