#include "backends/dpdk/dpdk_port.h"

#include <fcntl.h>

#include "backends/dpdk/eal/descriptors.h"
#include "backends/dpdk/eal/libc.h"

namespace bypass::dpdk {

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

// --- Buffers

std::size_t DpdkPort::alloc(std::uint16_t, std::span<Packet*> out) {
  const std::size_t n = pool_.alloc(out);
  mind_pool();
  return n;
}

// Called once for each shortage, and once for each chunk: the control thread makes a chunk, and the next look adds it.
void DpdkPort::mind_shortage() {
  const bool low = pool_.free_count() < pool_.low_mark();
  if (low) pool_.take_in();
  const bool still = pool_.free_count() < pool_.low_mark();
  set_scarce(still);
  if (still && asked_at_total_ != pool_.total()) poke_(poke_argument_);
  asked_at_total_ = still ? pool_.total() : 0;
}

void DpdkPort::free(std::span<Packet* const> frames) {
  for (Packet* p : frames) pool_.free_frame(p);
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
