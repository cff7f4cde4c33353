// Readiness: the one place that turns changes of an object into epoll events and wake-ups.
//
// signal() is Linux's wait-queue wake-up: it says that something of this kind may have changed. It puts the epoll items
// that ask for it on their sets' ready lists, and calls the threads that sleep on the object. poll_bits() says what is
// true at the time of a look.
// Tests: tests/socket/epoll_test.cc, tests/socket/kin_test.cc.
#pragma once

#include <sys/epoll.h>

#include <cstdint>

#include "socket/family/wires.h"
#include "socket/file.h"

namespace bypass::socket {

inline constexpr std::uint32_t kIn = EPOLLIN | EPOLLRDNORM;
inline constexpr std::uint32_t kOut = EPOLLOUT | EPOLLWRNORM;
inline constexpr std::uint32_t kError = EPOLLERR;
inline constexpr std::uint32_t kHangUp = EPOLLHUP;
inline constexpr std::uint32_t kPeerShut = EPOLLRDHUP;
/// A change of state wakes every waiter, whatever it waits for (the kernel's key 0).
inline constexpr std::uint32_t kEverything = kIn | kOut | kError | kHangUp | kPeerShut | EPOLLPRI | EPOLLRDBAND;
/// Reported even if not asked for.
inline constexpr std::uint32_t kAlways = EPOLLERR | EPOLLHUP;

/// Lock held. Wake-ups are collected and made after the lock is released.
void signal(File& file, std::uint32_t bits);
/// Wakes the threads that sleep in a call or a poll set with the object; epoll sets get no event. It is called when
/// another thread's long copy has ended, or when a number under which the kernel is listened to (DirectSet) has
/// changed.
void signal_idle(File& file);
/// Whether a thread in any process sleeps that a change of the object may wake. Lock held.
[[nodiscard]] bool is_waited_for(const File& file);

/// An exclusive waiter leaves: if `bits` still hold, the next waiter is called. Lock held.
void pass_on(File& file, std::uint32_t bits);

/// What poll() would report now. Lock held.
[[nodiscard]] std::uint32_t poll_bits(File& file);

/// Remembers a sleeper that must be woken after the lock is released. Its eventfd is one of ours and is never closed.
/// So a late write may wake a thread in vain, but never reaches another file.
void collect_wake(const WakeTarget& target);

}  // namespace bypass::socket
