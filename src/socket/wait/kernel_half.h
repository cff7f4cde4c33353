// KernelHalf: the kernel's side of a dual object (a wildcard listener's queue, a datagram socket's, a nested
// epoll set's kernel part), and the process's watch over all of them.
//
// One kernel epoll set, edge-triggered, holds the kernel halves: one system call every `kernel_poll` tells of
// all. Its edges are kept as flags in the objects and mixed into their readiness, so that nobody else needs to
// know. A flag is taken back *before* the kernel is asked and set again when the answer was "there was
// something": an edge that comes in between is then never lost. While such a question is under way (`taking`)
// the flags say nothing, and the one that wants to know asks the kernel.
#pragma once

#include <cstdint>

#include "socket/file.h"
#include "stack/time.h"

namespace bypass::socket {

struct KernelHalf {
  std::uint32_t generation = 0;  // of the object's slot that this is about
  bool in = false, out = true, error = false, hung_up = false;
  bool unsure = false;     // `in` is a guess: something was just taken, there may be more. `error` always is one
  bool had_error = false;  // `error` was taken back by a question that says nothing about it: it may have stayed
  bool watched = false;
  bool owned = false;        // `number` is a duplicate of ours
  std::uint16_t taking = 0;  // calls that ask the kernel now, without the lock
  int number = -1;           // under which the kernel watches it
  int set_number = -1;       // of an epoll set: a number of this process for it, as last seen
};

/// As far as it has been heard.
[[nodiscard]] inline bool has_news(const KernelHalf& half) {
  return half.in || half.error || half.hung_up;
}

/// This process's view of the kernel half of a file; null when it can have none. Descriptors are a process's own, so
/// nothing of it lies in the arena but that there is one (File::dual).
[[nodiscard]] KernelHalf* kernel_half(File& file);
[[nodiscard]] inline const KernelHalf* kernel_half(const File& file) {
  return kernel_half(const_cast<File&>(file));
}
/// The same to read; as new where there is none.
[[nodiscard]] const KernelHalf& kernel_half_state(const File& file);
/// Whether the kernel's side is to be looked at.
[[nodiscard]] inline bool has_kernel_half(const File& file) {
  return file.dual;
}

/// kIn and kError as they are on the kernel's side; a guess is made sure of (a system call). Lock held.
[[nodiscard]] std::uint32_t kernel_half_bits(const File& file);
/// Something may have been taken there: `in` is a guess from here on. Lock held.
void doubt_kernel_half(KernelHalf& half);
/// Before the kernel is asked: what is said meanwhile stays said. A read that finds nothing leaves IP_RECVERR's queue
/// as it is. Lock held.
void take_back_news(KernelHalf& half);

/// Lock held. False: the kernel gives the process nothing to watch with (EMFILE, EPERM of a filter of system calls).
[[nodiscard]] bool can_watch_kernel_halves();
/// Lock held. `fd` is a number of the kernel's object. Its present readiness is heard at the next look.
void watch_kernel_half(File& file, int fd);
void unwatch_kernel_half(File& file);
/// This process has no number of the object any more; others of the family have.
void forget_kernel_half(File& file);
/// In a forked child: nothing is watched, and what was is to be watched again under the child's numbers.
void forget_kernel_halves();
/// `fd` is about to be closed while the object stays: the watch moves to a duplicate.
void number_goes(File& file, int fd);
/// A number of this process for an epoll set. Lock held.
void note_set_number(File& set, int number);
/// The kernel refused a write for want of room: ask to be told.
void want_kernel_out(File& file);

/// The channel of a local connection in the same watch: local_on_channel() hears of it while it is readable. One that
/// is watched already stays so.
bool watch_channel(File& file, int fd);
void unwatch_channel(int fd);

/// Without the lock. At most every `kernel_poll` unless `always` or the kernel's side is busy: something
/// that this process itself does there must be seen at the next call.
void look_at_kernel_halves(Instant now, bool always);
/// The same at once, with the lock held.
void hear_kernel_halves();
/// Whether the last look, of any thread, is so long ago that a call which makes none is to make one: a peer may have
/// died meanwhile. Some 50 us, by Clock::ticks() as it is now.
[[nodiscard]] bool is_kernel_look_due(std::uint64_t ticks);
void note_kernel_activity();
/// A sleeper has found it readable, and has not looked there.
void note_watch_set_readable();
[[nodiscard]] bool is_watch_set_readable();
/// Closes a descriptor that was given to policy.own_descriptor(). No cancellation point.
void close_own(int fd);
/// For a sleeper's poll set; -1 while nothing has been watched.
[[nodiscard]] int kernel_halves_descriptor();

}  // namespace bypass::socket
