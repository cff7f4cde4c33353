// DpdkPort: how a sleeping program wakes, and whether the interrupt comes (interrupt_trust.h).
#include <rte_ethdev.h>
#include <time.h>

#include <chrono>
#include <utility>

#include "backends/dpdk/dpdk_port.h"
#include "backends/dpdk/eal/libc.h"

namespace bypass::dpdk {

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

}  // namespace bypass::dpdk
