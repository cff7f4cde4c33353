// DpdkPort: frames to send.
#include <rte_ethdev.h>

#include <algorithm>

#include "backends/dpdk/card/card_rules.h"
#include "backends/dpdk/dpdk_port.h"

namespace bypass::dpdk {
namespace {

std::uint64_t offloads_of(const Packet* p) {
  if ((p->flags & (kTxIpChecksum | kTxL4Checksum | kTxTso)) == 0) return 0;
  constexpr std::uint16_t kUdpHeader = 8;
  const bool v4 = (std::to_integer<unsigned>(p->data[p->l2_len]) >> 4) == 4;
  std::uint64_t flags = v4 ? RTE_MBUF_F_TX_IPV4 : RTE_MBUF_F_TX_IPV6;
  if ((p->flags & kTxIpChecksum) != 0 && v4) flags |= RTE_MBUF_F_TX_IP_CKSUM;
  if ((p->flags & kTxTso) != 0)
    flags |= RTE_MBUF_F_TX_TCP_SEG | RTE_MBUF_F_TX_TCP_CKSUM;
  else if ((p->flags & kTxL4Checksum) != 0)
    flags |= p->l4_len == kUdpHeader ? RTE_MBUF_F_TX_UDP_CKSUM : RTE_MBUF_F_TX_TCP_CKSUM;
  return flags;
}

void point_at(rte_mbuf* m, const std::byte* bytes, std::uint32_t length) {
  m->buf_addr = const_cast<std::byte*>(bytes);
  m->buf_len = m->data_len = static_cast<std::uint16_t>(length);
  m->data_off = 0;
}

}  // namespace

void DpdkPort::fill_mbuf(Packet* head) {
  rte_mbuf* first = mbuf_of(head);
  rte_mbuf* last = nullptr;
  std::uint16_t segments = 0;
  for (Packet* p = head; p != nullptr; p = p->next_segment) {
    rte_mbuf* m = mbuf_of(p);
    m->data_off = static_cast<std::uint16_t>(p->headroom());
    m->data_len = static_cast<std::uint16_t>(p->len);
    if (last != nullptr) last->next = m;
    last = m;
    segments++;
  }
  last->next = nullptr;
  first->nb_segs = segments;
  first->pkt_len = head->frame_len;
  first->ol_flags = offloads_of(head);
  first->l2_len = head->l2_len;
  first->l3_len = head->l3_len;
  first->l4_len = head->l4_len;
  first->tso_segsz = head->tso_mss;
}

// Appends the bytes outside of the buffer to the head, as segments that point at them. These mbufs own no memory. The
// driver copies the bytes and returns the mbufs within the burst.
bool DpdkPort::append_external(Packet* head) {
  Packet* extra[2];
  const std::size_t wanted = head->external_len[1] != 0 ? 2 : 1;
  if (gather_ == nullptr || gather_->free_count() < wanted) return false;
  gather_->alloc({extra, wanted});
  rte_mbuf* first = mbuf_of(head);
  rte_mbuf* last = first;
  for (std::size_t i = 0; i < wanted; i++) {
    rte_mbuf* m = mbuf_of(extra[i]);
    point_at(m, head->external[i], head->external_len[i]);
    last->next = m;
    last = m;
  }
  last->next = nullptr;
  first->nb_segs = static_cast<std::uint16_t>(1 + wanted);
  return true;
}

void DpdkPort::take_back_external(Packet* head) {
  rte_mbuf* first = mbuf_of(head);
  for (rte_mbuf* m = first->next; m != nullptr;) {
    rte_mbuf* next = m->next;
    Packet* p = packet_of(m);
    p->next_segment = nullptr;
    gather_->free_frame(p);
    m = next;
  }
  first->next = nullptr;
  first->nb_segs = 1;
}

std::size_t DpdkPort::burst(std::span<Packet* const> frames) {
  rte_mbuf* mbufs[kBurst];
  std::uint64_t bytes[kBurst];
  bool gathered[kBurst];
  std::uint16_t n = 0;
  for (Packet* p : frames) {
    fill_mbuf(p);
    gathered[n] = p->external_len[0] != 0;
    if (gathered[n] && !append_external(p)) break;
    mbufs[n] = mbuf_of(p);
    bytes[n++] = p->frame_len;
  }
  const std::uint16_t ready = prepare_ ? rte_eth_tx_prepare(device_, 0, mbufs, n) : n;
  const std::uint16_t sent = rte_eth_tx_burst(device_, 0, mbufs, ready);
  std::uint64_t total = 0;
  for (std::uint16_t i = 0; i < sent; i++) total += bytes[i];
  for (std::uint16_t i = sent; i < n; i++)
    if (gathered[i]) take_back_external(frames[i]);
  tx_frames_.add(sent);
  tx_bytes_.add(total);
  return ready < n && sent == ready ? sent + refuse(frames[ready]) : sent;
}

// The driver would not take this frame at the next try, either. It is lost, as on a wire, and TCP sends it again in
// shorter frames.
std::size_t DpdkPort::refuse(Packet* frame) {
  const std::uint32_t headers = std::uint32_t{frame->l2_len} + frame->l3_len + frame->l4_len;
  if ((frame->flags & kTxTso) != 0) shorten_tso(caps_, frame->frame_len - headers);
  return drop({&frame, 1});
}

std::size_t DpdkPort::drop(std::span<Packet* const> frames) {
  free(frames);
  tx_dropped_.add(frames.size());
  return frames.size();
}

std::size_t DpdkPort::send(std::uint16_t, std::span<Packet* const> frames) {
  if (state_.load(std::memory_order_acquire) != State::kRunning && !settle()) [[unlikely]]
    return drop(frames);
  std::size_t sent = 0;
  while (sent < frames.size()) {
    const auto part = frames.subspan(sent, std::min(frames.size() - sent, kBurst));
    const std::size_t n = burst(part);
    sent += n;
    if (n == 0 || (n != part.size() && !prepare_)) break;  // with prepare_ the driver may have refused one frame
  }
  if (sent == frames.size()) return sent;
  // The link's state is looked at only when the device refuses a frame. A peer may ask a vhost end for an answer before
  // the link counts as up.
  if (!link_.load(std::memory_order_relaxed)) return sent + drop(frames.subspan(sent));
  tx_full_.add(1);
  return sent;
}

}  // namespace bypass::dpdk
