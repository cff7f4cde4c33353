// Epoll: one epoll set. Bypass objects are EpollItems of ours; kernel descriptors lie in the kernel's own set
// under the program's number. A wait looks at both. The kernel's set is the truth about what is in it: others fill it,
// too (an io_uring, another process). Without bypass objects a wait is the program's own call: KernelSleep.
//
// As in Linux an item gets on its set's ready list when its target is signalled, and a wait takes the list
// and asks each target what is true now: O(ready). A level-triggered item that was reported goes back on it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "socket/file.h"
#include "socket/wait/kernel_half.h"
#include "stack/time.h"

namespace bypass::socket {

struct Epoll;

/// A descriptor in a set: keyed by (fd, target), as the kernel's are, so that dup'd numbers are two items.
struct EpollItem {
  Epoll* set = nullptr;
  File* target = nullptr;
  EpollItem* target_next = nullptr;  // File::items
  EpollItem* ready_next = nullptr;   // Epoll::ready
  epoll_data_t data{};
  std::uint32_t events = 0;
  int fd = -1;
  // Of Readiness when it was last put on the list: a rebuild sees edges that nobody has taken.
  std::uint16_t seen_in = 0, seen_out = 0, seen_hup = 0, seen_err = 0;
  bool ready = false;  // on the list
  bool gone = false;   // removed while on the list: freed by the thread that takes it off
};
static_assert(sizeof(EpollItem) <= 72, "an idle connection in a set costs one of these");

struct Epoll : File {
  EpollItem* ready_head = nullptr;
  EpollItem* ready_tail = nullptr;
  // Read without the lock by a waiting thread, as hints: a change also bumps the set's version.
  std::atomic<std::uint32_t> bypass_items{0};
  std::atomic<std::uint32_t> dual_items{0};  // … of them those with a kernel half to look at
  std::atomic<bool> kernel_items{false};     // the kernel's set has been filled, or may have been where nobody saw it
  std::atomic<bool> ours_first{false};       // whose turn it is where there is no room for all
  // kernel_sleep.cc: who has its descriptor there (a process's slot and 1; 0: nobody), and whether anybody ever had.
  std::atomic<std::uint32_t> caller{0};
  std::atomic<bool> has_called{false};
  std::atomic<std::int64_t> kernel_looked{0};  // when, in ns
};

/// signal()'s part: puts the item on its set's ready list. True when a thread was woken for it.
bool item_signalled(EpollItem& item);
/// The object ends: out of every set. Lock held.
void forget_target(File& target);
/// The socket has been decided for the kernel: its items go to the sets' kernel halves, data and flags kept. `another`
/// number of it serves for one that was closed while a duplicate lives, which is watched on, as by the kernel.
void move_items_to_kernel(File& target, int another);
/// Whether a set is among them that this process has a number of.
[[nodiscard]] bool is_watched_here(const File& target);
/// This process is about to close `fd`, its last number of the target, which other processes have: its sets hear of
/// the kernel's side from the kernel, as of any file that stays open elsewhere.
void keep_items_in_kernel(File& target, int fd);
/// The target got (or lost) a kernel half: its sets have to look at it.
void count_dual(File& target, int change);
void end_epoll(Epoll& epoll);

/// Takes what is ready, up to the room there is: `out` is the program's, and ends where it cannot be written to. Lock
/// held.
std::size_t harvest(Epoll& set, std::span<epoll_event> out);
[[nodiscard]] std::uint32_t epoll_bits(Epoll& epoll);

}  // namespace bypass::socket
