// DpdkPort: frames that arrive.
#include <rte_ethdev.h>

#include <algorithm>

#include "backends/dpdk/dpdk_port.h"

namespace bypass::dpdk {
namespace {

std::uint16_t flags_of(const rte_mbuf* m) {
  unsigned flags = 0;
  const std::uint64_t l4 = m->ol_flags & RTE_MBUF_F_RX_L4_CKSUM_MASK;
  const std::uint64_t ip = m->ol_flags & RTE_MBUF_F_RX_IP_CKSUM_MASK;
  // NONE: the checksum in the frame is not filled, and the data is good all the same (a peer on this machine).
  if (l4 == RTE_MBUF_F_RX_L4_CKSUM_GOOD || l4 == RTE_MBUF_F_RX_L4_CKSUM_NONE) flags |= kRxL4ChecksumGood;
  if (ip == RTE_MBUF_F_RX_IP_CKSUM_GOOD) flags |= kRxIpChecksumGood;
  if (l4 == RTE_MBUF_F_RX_L4_CKSUM_BAD || ip == RTE_MBUF_F_RX_IP_CKSUM_BAD) flags |= kRxChecksumBad;
  if ((m->ol_flags & RTE_MBUF_F_RX_LRO) != 0) flags |= kRxLro;
  return static_cast<std::uint16_t>(flags);
}

void view_segment(rte_mbuf* m) {
  Packet* p = packet_of(m);
  p->data = p->buffer + m->data_off;
  p->len = m->data_len;
  p->next_segment = m->next != nullptr ? packet_of(m->next) : nullptr;
  p->queue_next = nullptr;
}

Packet* view_frame(rte_mbuf* m) {
  for (rte_mbuf* s = m->next; s != nullptr; s = s->next) view_segment(s);
  view_segment(m);
  Packet* p = packet_of(m);
  p->frame_len = m->pkt_len;
  p->flags = m->ol_flags == 0 ? std::uint16_t{0} : flags_of(m);
  p->tso_mss = (p->flags & kRxLro) != 0 ? m->tso_segsz : std::uint16_t{0};
  p->external_len[0] = p->external_len[1] = 0;
  p->offset = 0;
  return p;
}

}  // namespace

std::size_t DpdkPort::receive(std::uint16_t, std::span<Packet*> out) {
  if (state_.load(std::memory_order_acquire) != State::kRunning && !settle()) [[unlikely]]
    return 0;
  rte_mbuf* frames[kBurst];
  const auto room = static_cast<std::uint16_t>(std::min(out.size(), kBurst));
  const std::uint16_t n = rte_eth_rx_burst(device_, 0, frames, room);
  // Also when nothing arrives: the buffers may be missing, because the program holds them.
  mind_pool();
  if (look_ != Look::kNone) [[unlikely]]
    note_look(n != 0);
  if (n == 0) return 0;
  std::uint64_t bytes = 0;
  for (std::uint16_t i = 0; i < n; i++) {
    if (i + 1 < n) {
      __builtin_prefetch(packet_of(frames[i + 1]), 1);
      __builtin_prefetch(static_cast<std::byte*>(frames[i + 1]->buf_addr) + frames[i + 1]->data_off);
    }
    out[i] = view_frame(frames[i]);
    bytes += out[i]->frame_len;
  }
  rx_frames_.add(n);
  rx_bytes_.add(bytes);
  return n;
}

}  // namespace bypass::dpdk
