// Epoll: one epoll set. Bypass objects are EpollItems of ours. Kernel descriptors are in the kernel's own set, under
// the program's number. A wait looks at both. Only the kernel's set knows what is in it, as others fill it, too (an
// io_uring, another process). Without bypass objects a wait is the program's own call: KernelSleep.
//
// As in Linux, an item gets on its set's ready list when its target is signalled. A wait takes the list and asks each
// target what is true now: O(ready). A level-triggered item that was reported is put on the list again.
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

/// A descriptor in a set. Its key is (fd, target), as in the kernel, so that dup'd numbers are two items.
struct EpollItem {
  Epoll* set = nullptr;
  File* target = nullptr;
  EpollItem* target_next = nullptr;  // File::items
  EpollItem* ready_next = nullptr;   // Epoll::ready
  epoll_data_t data{};
  std::uint32_t events = 0;
  int fd = -1;
  // The state of Readiness when the item was last put on the list: a rebuild then sees edges that nobody has taken.
  std::uint16_t seen_in = 0, seen_out = 0, seen_hup = 0, seen_err = 0;
  bool ready = false;  // it is on the ready list
  bool gone = false;   // it was removed while on the list; the thread that takes it off frees it
};
static_assert(sizeof(EpollItem) <= 72, "an idle connection in a set costs one of these");

struct Epoll : File {
  EpollItem* ready_head = nullptr;
  EpollItem* ready_tail = nullptr;
  // A waiting thread reads these without the lock, as hints. A change also increases the set's version.
  std::atomic<std::uint32_t> bypass_items{0};
  std::atomic<std::uint32_t> dual_items{0};  // those of them that have a kernel half
  std::atomic<bool> kernel_items{false};     // the kernel's set was filled, or may have been without our seeing it
  std::atomic<bool> ours_first{false};       // which side comes first if there is no room for all
  // kernel_sleep.cc: the process that has put its descriptor there (slot + 1; 0: none), and whether any ever has.
  std::atomic<std::uint32_t> caller{0};
  std::atomic<bool> has_called{false};
  std::atomic<std::int64_t> kernel_looked{0};  // when the kernel's set was last looked at, in ns
};

/// The part of signal() for sets: puts the item on its set's ready list. True: a thread was woken for it.
bool item_signalled(EpollItem& item);
/// The object ends: removes it from every set. Lock held.
void forget_target(File& target);
/// The socket was given to the kernel: moves its items to the sets' kernel halves, with data and flags kept. `another`
/// number of the socket replaces a closed one: while a duplicate lives, it stays in the set, as in the kernel.
void move_items_to_kernel(File& target, int another);
/// Whether this process has a number of a set that watches the target.
[[nodiscard]] bool is_watched_here(const File& target);
/// Whether this process can move all items so. It cannot if it has no number of a set, or if the event of EPOLLONESHOT
/// has been reported: the kernel's sets report errors and hang-ups of each item that is added.
[[nodiscard]] bool can_move_items(const File& target);
/// This process is about to close `fd`, its last number of the target, and other processes have the target. Its sets
/// then hear the kernel's side from the kernel, as for any file that stays open elsewhere.
void keep_items_in_kernel(File& target, int fd);
/// The target has got or lost a kernel half: adjusts the counts of its sets, which must look at it.
void count_dual(File& target, int change);
void end_epoll(Epoll& epoll);

/// Takes what is ready, up to the room in `out`. `out` belongs to the program, and ends where it is not writable. Lock
/// held.
std::size_t harvest(Epoll& set, std::span<epoll_event> out);
[[nodiscard]] std::uint32_t epoll_bits(Epoll& epoll);

}  // namespace bypass::socket
