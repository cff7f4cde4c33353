#include "backends/dpdk/dpdk_port.h"

#include <fcntl.h>
#include <rte_ethdev.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "backends/dpdk/card/card_rules.h"
#include "backends/dpdk/eal/descriptors.h"
#include "backends/dpdk/eal/libc.h"

namespace bypass::dpdk {
namespace {

constexpr std::size_t kBurst = 64;

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

DpdkPort::DpdkPort(BufferPool& pool, BufferPool* gather, void (*poke)(void*), void* argument)
    : pool_(pool), gather_(gather), poke_(poke), poke_argument_(argument) {
  epoll_fd_ = raise_descriptor(libc.epoll_create1(EPOLL_CLOEXEC));
  wake_fd_ = raise_descriptor(libc.eventfd(0, EPOLL_CLOEXEC | O_NONBLOCK));
  watch(wake_fd_, kWoken);
}

DpdkPort::~DpdkPort() {
  close_descriptor(epoll_fd_);
  close_descriptor(wake_fd_);
  close_descriptor(timer_fd_);
}

void DpdkPort::watch(int fd, unsigned event) const {
  epoll_event member{};
  member.events = EPOLLIN | EPOLLET;
  member.data.u32 = event;
  libc.epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &member);
}

// --- The meeting with the control thread

void DpdkPort::announce(const PortCaps& caps, MacAddress mac) {
  caps_ = caps;
  mac_ = mac;
}

void DpdkPort::resume(const Opened& opened) {
  next_ = opened;
  if (opened.interrupt_fd >= 0) watch(opened.interrupt_fd, kInterrupt);
  if (opened.proves_interrupt && timer_fd_ < 0) {
    timer_fd_ = raise_descriptor(libc.timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
    if (timer_fd_ >= 0) watch(timer_fd_, kTimer);
  }
  state_.store(State::kResuming, std::memory_order_release);
  wake();
}

void DpdkPort::renew(const Opened& opened) {
  State expected = State::kResuming;
  state_.compare_exchange_strong(expected, State::kPaused, std::memory_order_acq_rel);
  next_ = opened;
  state_.store(State::kResuming, std::memory_order_release);
  wake();
}

void DpdkPort::request_pause() {
  // The queues were resumed, but never adopted: no thread has been inside them.
  State expected = State::kResuming;
  if (state_.compare_exchange_strong(expected, State::kPaused, std::memory_order_acq_rel)) return;
  expected = State::kRunning;
  state_.compare_exchange_strong(expected, State::kPausing, std::memory_order_acq_rel);
  wake();
}

void DpdkPort::set_link(bool up) {
  if (link_.exchange(up, std::memory_order_seq_cst) == up) return;
  if (up)
    count_link_up();
  else
    link_downs_.fetch_add(1, std::memory_order_relaxed);
  wake();
}

void DpdkPort::set_lost(std::uint64_t frames) {
  lost_.fetch_add(lost_by_device_.add(frames), std::memory_order_relaxed);
}

void DpdkPort::tell_forbidden(bool on) {
  if (on == forbidden()) return;
  set_forbidden(on);
  wake();
}

void DpdkPort::lose_link(bool peer_is_there) {
  set_expects_link(peer_is_there);
  link_generation_.fetch_add(1, std::memory_order_seq_cst);
  set_link(false);
}

void DpdkPort::wake() {
  const std::uint64_t one = 1;
  if (wake_fd_ >= 0 && libc.write(wake_fd_, &one, sizeof one) < 0) return;  // never full: the counter holds 2^64 - 2
}

[[gnu::noinline, gnu::cold]] bool DpdkPort::settle() {
  for (;;) {
    State state = state_.load(std::memory_order_acquire);
    if (state == State::kRunning) return true;
    if (state == State::kPaused) return false;
    if (state == State::kPausing) {
      pool_.set_shared(true);
      state_.store(State::kPaused, std::memory_order_release);
      poke_(poke_argument_);
      return false;
    }
    // A request_pause() may come in between. The thread that wins here has next_ and the queues for itself.
    if (!state_.compare_exchange_strong(state, State::kRunning, std::memory_order_acq_rel)) continue;
    adopt();
    return true;
  }
}

void DpdkPort::adopt() {
  device_ = next_.device;
  interrupt_switch_ = next_.interrupt_switch;
  proves_interrupt_ = next_.proves_interrupt && timer_fd_ >= 0;
  trust_ = InterruptTrust(next_.interrupt_fd >= 0);
  look_ = Look::kNone;
  tell_trust();
  prepare_ = next_.prepare;
  caps_ = next_.caps;
  mac_ = next_.mac;
  armed_ = false;
  pool_.set_shared(next_.foreign_threads);
  if (gather_ != nullptr) gather_->set_shared(false);
  // A lose_link() may come meanwhile. Either it comes after our set_link(true), or this thread sees its generation.
  set_link(next_.link_up);
  if (link_generation_.load(std::memory_order_seq_cst) != next_.link_generation) set_link(false);
}

// --- Receiving

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

// --- Sending

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

// --- Buffers

std::size_t DpdkPort::alloc(std::uint16_t, std::span<Packet*> out) {
  const std::size_t n = pool_.alloc(out);
  mind_pool();
  return n;
}

// Called once for each shortage, and once for each chunk: the control thread makes a chunk, and the next look adds it.
void DpdkPort::mind_pool() {
  const bool low = pool_.free_count() < pool_.low_mark();
  if (!low && asked_at_total_ == 0) [[likely]]
    return;
  if (low) pool_.take_in();
  const bool still = pool_.free_count() < pool_.low_mark();
  set_scarce(still);
  if (still && asked_at_total_ != pool_.total()) poke_(poke_argument_);
  asked_at_total_ = still ? pool_.total() : 0;
}

void DpdkPort::free(std::span<Packet* const> frames) {
  for (Packet* p : frames) pool_.free_frame(p);
}

// --- Sleeping

unsigned DpdkPort::fetch_events() {
  epoll_event events[4];
  unsigned all = 0;
  const int count = libc.epoll_wait(epoll_fd_, events, 4, 0);
  for (int i = 0; i < count; i++) all |= events[i].data.u32;
  if (interrupt_read_.load(std::memory_order_relaxed) && interrupt_read_.exchange(false, std::memory_order_acq_rel))
    all |= kInterrupt;
  return all;
}

void DpdkPort::on_interrupt_read() {
  interrupt_read_.store(true, std::memory_order_release);
  wake();
}

// --- Whether the interrupt comes

void DpdkPort::note_look(bool found) {
  if (look_ == Look::kArmed) {
    found_ = found_ || found;
    return;
  }
  look_ = Look::kNone;
  found ? trust_.on_missed() : trust_.on_idle();
  tell_trust();
}

// Called when a sleep has ended. If only the timer has woken the sleeper, frames that were found since it was armed, or
// are found now, came without an event.
void DpdkPort::note_events(unsigned events) {
  if (!proves_interrupt_) return;
  const bool slept = std::exchange(look_, Look::kNone) == Look::kArmed;
  if ((events & kInterrupt) != 0) {
    trust_.on_event();
    return tell_trust();
  }
  if (!slept || (events & kTimer) == 0) return;
  look_ = Look::kDue;
  if (found_) note_look(true);
}

// The control thread logs the change.
void DpdkPort::tell_trust() {
  const InterruptTrust::State state = proves_interrupt_ ? trust_.state() : InterruptTrust::State::kProven;
  if (told_trust_.exchange(state, std::memory_order_relaxed) != state) poke_(poke_argument_);
}

void DpdkPort::set_timer() {
  look_ = Look::kArmed;
  found_ = false;
  const std::int64_t ns = trust_.patience().count();
  const itimerspec after{{}, {ns / 1'000'000'000, ns % 1'000'000'000}};
  libc.timerfd_settime(timer_fd_, 0, &after, nullptr);
}

// When a peer goes, net_vhost keeps bursts out of the device, but not this call. So the call could look at memory that
// is freed next.
void DpdkPort::switch_interrupt(bool on) {
  switching_.store(true, std::memory_order_seq_cst);
  on ? rte_eth_dev_rx_intr_enable(device_, 0) : rte_eth_dev_rx_intr_disable(device_, 0);
  switching_.store(false, std::memory_order_release);
}

void DpdkPort::await_switch() const {
  // The wait is bounded: DPDK's thread may hold a lock that the other thread waits for.
  constexpr auto kPatience = std::chrono::seconds(1);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // the device has been taken from the queues before that
  const auto latest = std::chrono::steady_clock::now() + kPatience;
  // The other thread must get the processor, even if this one has a higher real-time priority.
  constexpr timespec kLook{0, 50'000};
  while (switching_.load(std::memory_order_acquire) && std::chrono::steady_clock::now() < latest)
    nanosleep(&kLook, nullptr);
}

bool DpdkPort::arm(std::uint16_t) {
  note_events(fetch_events());
  // The event by which the control thread called was just read. So receive() must look.
  const State state = state_.load(std::memory_order_acquire);
  if (state == State::kPausing || state == State::kResuming) return false;
  if (asked_at_total_ != 0 && pool_.may_grow())
    return false;  // the frames that wait at the device come in with the next chunk
  const bool up = link_.load(std::memory_order_acquire);
  if (up != armed_link_) {
    armed_link_ = up;
    return false;
  }
  if (state == State::kRunning && interrupt_switch_) switch_interrupt(true);
  armed_ = true;
  if (proves_interrupt_) set_timer();
  // Pairs with the peer's barrier between writing a frame and reading whether this end wants to be woken. Either the
  // peer sees that, or the caller's receive() after arm() sees the frame.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return true;
}

void DpdkPort::disarm(std::uint16_t) {
  if (!armed_) return;
  armed_ = false;
  if (state_.load(std::memory_order_acquire) == State::kRunning && interrupt_switch_) switch_interrupt(false);
  note_events(fetch_events());
}

PortStats DpdkPort::stats() const {
  PortStats s = counted();
  s.rx_dropped += lost_.load(std::memory_order_relaxed);
  s.rx_no_buffer = pool_.ran_dry();
  s.link_up = link_ups();
  s.buffers_total = pool_.total();
  s.buffers_free = pool_.free_count();
  s.gone = gone_.load(std::memory_order_relaxed);
  s.looked_at = !s.gone && interrupt() == InterruptTrust::State::kDead;
  return s;
}

}  // namespace bypass::dpdk
