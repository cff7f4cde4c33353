// Readiness: the one place that turns what happened to an object into epoll events and wake-ups.
//
// signal() is Linux's wait-queue wake-up: it says that something of this kind may have changed. It puts the
// epoll items that ask for it on their sets' ready lists and calls the threads that sleep on the object.
// What is true now is told by poll_bits(), asked when somebody looks.
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
/// A change of state wakes everybody, whatever they wait for (the kernel's key 0).
inline constexpr std::uint32_t kEverything = kIn | kOut | kError | kHangUp | kPeerShut | EPOLLPRI | EPOLLRDBAND;
/// Reported whether asked for or not.
inline constexpr std::uint32_t kAlways = EPOLLERR | EPOLLHUP;

/// Lock held. Wake-ups are collected and made after the unlock.
void signal(File& file, std::uint32_t bits);
/// Wakes those that sleep in a call or a poll set with it, and says nothing to epoll sets: another thread's long copy
/// has ended, or a number under which the kernel is listened to (DirectSet) has become another one.
void signal_idle(File& file);
/// Whether a thread sleeps, in whichever process, that a change of the object may wake. Lock held.
[[nodiscard]] bool is_waited_for(const File& file);

/// An exclusive waiter leaves: if `bits` are still there, the next one is called. Lock held.
void pass_on(File& file, std::uint32_t bits);

/// What poll() would report now. Lock held.
[[nodiscard]] std::uint32_t poll_bits(File& file);

/// Remembers a sleeper to be woken after the unlock. Its eventfd is one of ours, never closed: a late write wakes a
/// thread in vain but never touches a stranger's file.
void collect_wake(const WakeTarget& target);

}  // namespace bypass::socket
