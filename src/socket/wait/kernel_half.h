// KernelHalf: the kernel's side of a dual object (a wildcard listener's queue, a datagram socket's, a nested epoll
// set's kernel part), and the process's watch over all of them.
//
// One kernel epoll set, edge-triggered, holds the kernel halves: one system call every `kernel_poll` reports all. Its
// edges are kept as flags in the objects and added to their readiness, so that no other code needs to know. A flag is
// cleared *before* the kernel is asked, and set again if the answer was "there was something". So an edge that comes in
// between is never lost. While such a request is under way (`taking`), the flags are not valid, and other threads ask
// the kernel.
#pragma once

#include <cstdint>

#include "socket/file.h"
#include "stack/time.h"

namespace bypass::socket {

struct KernelHalf {
  std::uint32_t generation = 0;  // generation of the object's slot
  bool in = false, out = true, error = false, hung_up = false;
  bool unsure = false;  // `in` is a guess: something was just taken, and there may be more. `error` always is a guess
  bool had_error = false;  // `error` was cleared by a request that does not report errors: it may still hold
  bool watched = false;
  bool owned = false;        // `number` is a duplicate of ours
  std::uint16_t taking = 0;  // requests to the kernel under way, without the lock
  int number = -1;           // the number under which the kernel watches it
  int set_number = -1;       // of an epoll set: a number of this process for it, as last seen
};

/// True if news was heard.
[[nodiscard]] inline bool has_news(const KernelHalf& half) {
  return half.in || half.error || half.hung_up;
}

/// This process's view of the kernel half of a file; null if it can have none. Descriptors belong to a process. So the
/// arena only knows whether there is a kernel half (File::dual).
[[nodiscard]] KernelHalf* kernel_half(File& file);
[[nodiscard]] inline const KernelHalf* kernel_half(const File& file) {
  return kernel_half(const_cast<File&>(file));
}
/// The same for reading; an empty state if there is none.
[[nodiscard]] const KernelHalf& kernel_half_state(const File& file);
/// Whether the kernel's side must be looked at.
[[nodiscard]] inline bool has_kernel_half(const File& file) {
  return file.dual;
}

/// kIn, kError and the ends (POLLRDHUP, POLLHUP) as they are on the kernel's side. A guess is verified by a system
/// call. An end that another process has made is seen then. Lock held.
[[nodiscard]] std::uint32_t kernel_half_bits(const File& file);
/// Something may have been taken there: from now on `in` is a guess. Lock held.
void doubt_kernel_half(KernelHalf& half);
/// To be called before the kernel is asked: clears the flags, so that later edges set them again. A read that finds
/// nothing leaves IP_RECVERR's queue as it is. Lock held.
void take_back_news(KernelHalf& half);

/// Lock held. False: the kernel gives the process no means to watch (EMFILE, or EPERM from a filter of system calls).
[[nodiscard]] bool can_watch_kernel_halves();
/// Lock held. `fd` is a number of the kernel's object. Its present readiness is heard at the next look.
void watch_kernel_half(File& file, int fd);
void unwatch_kernel_half(File& file);
/// This process has no number of the object any more; other processes of the family have.
void forget_kernel_half(File& file);
/// In a forked child: nothing is watched now. Everything that was is watched again under the child's numbers.
void forget_kernel_halves();
/// `fd` is about to be closed while the object stays: a duplicate is watched instead.
void number_goes(File& file, int fd);
/// Stores a number of this process for an epoll set. Lock held.
void note_set_number(File& set, int number);
/// The kernel refused a write for lack of room: asks for an event when there is room.
void want_kernel_out(File& file);

/// Adds the channel of a local connection to the same watch: local_on_channel() is called while it is readable. A
/// channel that is watched already stays watched.
bool watch_channel(File& file, int fd);
void unwatch_channel(int fd);

/// Called without the lock. Looks at most every `kernel_poll`, unless `always` is set or the kernel's side is busy:
/// what this process itself does there must be seen at the next call.
void look_at_kernel_halves(Instant now, bool always);
/// Looks at once, with the lock held.
void hear_kernel_halves();
/// Whether the last look of any thread is so long ago (about 50 µs) that a call which makes none must make one: a peer
/// may have died meanwhile. `ticks`: Clock::ticks() now.
[[nodiscard]] bool is_kernel_look_due(std::uint64_t ticks);
void note_kernel_activity();
/// A sleeper has found the watch set readable, and has not looked there.
void note_watch_set_readable();
[[nodiscard]] bool is_watch_set_readable();
/// Closes a descriptor that was given to policy.own_descriptor(). No cancellation point.
void close_own(int fd);
/// The descriptor for a sleeper's poll set; -1 while nothing was ever watched.
[[nodiscard]] int kernel_halves_descriptor();

}  // namespace bypass::socket
