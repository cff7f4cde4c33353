#include "preload/uses.h"

#include <errno.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <array>
#include <atomic>

#include "os/os.h"
#include "os/own/in_handler.h"
#include "os/own/let_others_run.h"
#include "preload/pumped.h"
#include "preload/straight.h"

namespace bypass::preload {

thread_local constinit Marks* my_marks = nullptr;
std::atomic<bool> fence_each_call{false};
std::atomic<int> deferred_count{0};

namespace {

struct Chunk {
  std::array<Marks, 64> marks;
  std::atomic<Chunk*> next;
};

constinit Chunk first_chunk{};
std::atomic<int> threads{0};  // threads that have marks
pthread_key_t exit_key;
/// For a later key libc allocates. Then the marks of a thread whose first call is a handler's stay taken.
constexpr pthread_key_t kKeysWithoutMemory = 32;

// Objects whose number is gone while a call still uses them.
constinit std::array<std::atomic<std::uintptr_t>, 1024> deferred{};

long membarrier(int command) {
  return os::call(SYS_membarrier, command, 0, 0);
}

// The call's part: its mark is stored before the table is read again (see fence_for_closer()).
void fence_for_call() {
  if (fence_each_call.load(std::memory_order_relaxed)) [[unlikely]] {
    std::atomic_thread_fence(std::memory_order_seq_cst);
  } else {
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
}

// The closer's part: the table is written before the marks are read, on every processor.
void fence_for_closer() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!fence_each_call.load(std::memory_order_relaxed)) membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
}

// As seen from `frame`.
void drop_stale(Marks& marks, std::uintptr_t frame) {
  while (marks.depth > 0 && socket::is_abandoned(marks.frame[marks.depth - 1], frame)) {
    marks.depth--;
    marks.word[marks.depth].store(0, std::memory_order_relaxed);
  }
  if (marks.many_frame != 0 && socket::is_abandoned(marks.many_frame, frame)) {
    marks.many_frame = 0;
    marks.many.store(nullptr, std::memory_order_relaxed);
  }
}

Chunk* more_marks(Chunk& last) {
  long made = os::call(SYS_mmap, 0, sizeof(Chunk), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (made < 0) return nullptr;
  Chunk* expected = nullptr;
  if (last.next.compare_exchange_strong(expected, reinterpret_cast<Chunk*>(made))) return last.next.load();
  os::call(SYS_munmap, made, sizeof(Chunk));
  return expected;
}

[[gnu::noinline, gnu::cold]] Marks* take_marks() {
  for (Chunk* chunk = &first_chunk; chunk != nullptr;) {
    for (Marks& marks : chunk->marks) {
      if (marks.taken.load(std::memory_order_relaxed) || marks.taken.exchange(true)) continue;
      marks.depth = 0;
      threads.fetch_add(1);  // sequentially consistent: a closer that counts one thread has not missed us
      my_marks = &marks;
      if (exit_key < kKeysWithoutMemory || !socket::is_in_handler()) pthread_setspecific(exit_key, &marks);
      return &marks;
    }
    Chunk* next = chunk->next.load(std::memory_order_acquire);
    chunk = next != nullptr ? next : more_marks(*chunk);
  }
  return nullptr;
}

void give_marks_back(void* argument) {
  auto* marks = static_cast<Marks*>(argument);
  drop_stale(*marks, UINTPTR_MAX);
  my_marks = nullptr;
  threads.fetch_sub(1);
  marks->taken.store(false, std::memory_order_release);
}

bool is_among_many(Marks& marks, const File* file) {
  if (marks.many.load(std::memory_order_relaxed) == nullptr) return false;
  marks.readers.fetch_add(1);
  const socket::PollItem* items = marks.many.load();
  bool found = false;
  for (std::size_t i = 0; items != nullptr && !found && i < marks.many_count.load(); i++) {
    found = items[i].file == file;
  }
  marks.readers.fetch_sub(1);
  return found;
}

bool is_marked(Marks& marks, Entry entry) {
  for (auto& word : marks.word) {
    if (word.load(std::memory_order_relaxed) == entry.word()) return true;
  }
  return is_among_many(marks, entry.file());
}

bool is_in_use(Entry entry) {
  int mine = my_marks != nullptr ? 1 : 0;
  if (mine != 0 && is_marked(*my_marks, entry)) return true;
  if (threads.load() == mine) return false;
  fence_for_closer();
  for (Chunk* chunk = &first_chunk; chunk != nullptr; chunk = chunk->next.load(std::memory_order_acquire)) {
    for (Marks& marks : chunk->marks) {
      if (marks.taken.load(std::memory_order_relaxed) && is_marked(marks, entry)) return true;
    }
  }
  return false;
}

bool defer(std::uintptr_t word) {
  for (auto& place : deferred) {
    std::uintptr_t expected = 0;
    if (place.compare_exchange_strong(expected, word)) return true;
  }
  return false;
}

}  // namespace

// The number was closed long ago: -1.
[[gnu::noinline, gnu::cold]] void release_deferred() {
  int saved = errno;
  for (auto& place : deferred) {
    Entry entry(place.load(std::memory_order_relaxed));
    if (entry.empty() || is_in_use(entry)) continue;
    std::uintptr_t expected = entry.word();
    if (!place.compare_exchange_strong(expected, 0)) continue;
    deferred_count.fetch_sub(1);
    socket::release(*entry.file(), -1);
  }
  errno = saved;
}

namespace {

// Drops what abandoned calls have left, as seen from a call that begins at `frame`: first the marks below it, then
// everything that a handler interrupted which did not return.
void drop_gone(Marks& marks, std::uintptr_t frame) {
  drop_stale(marks, frame);
  if (!socket::has_left_handler(frame)) [[likely]]
    return;
  const int saved = errno;
  const std::uintptr_t bound = socket::forget_left_handlers(frame);
  drop_stale(marks, bound);
  socket::drop_left(bound);
  if (deferred_count.load(std::memory_order_relaxed) != 0) release_deferred();
  errno = saved;
}

}  // namespace

void Use::enter(int fd, Kinds kinds, std::uintptr_t stale_below) {
  if (goes_straight()) return;
  Marks* marks = my_marks != nullptr ? my_marks : take_marks();
  if (marks == nullptr) return;
  if (stale_below != 0) drop_gone(*marks, stale_below);
  int place = marks->depth < Marks::kDepth ? marks->depth : Marks::kDepth - 1;
  marks->frame[place] = reinterpret_cast<std::uintptr_t>(this);
  saved_errno_ = errno;
  marks->depth = place + 1;  // before the mark: a handler's calls take the places above
  std::atomic_signal_fence(std::memory_order_seq_cst);
  marks->frame[place] = reinterpret_cast<std::uintptr_t>(this);  // a call of an interrupting handler has had this place
  for (Entry seen = fd_table.load(fd); !seen.empty();) {
    marks->word[place].store(seen.word(), std::memory_order_relaxed);
    fence_for_call();
    Entry again = fd_table.load(fd);
    if (again == seen) {
      const bool taken = is_pumped(seen) && exchange_pumped_number(fd, seen);
      if (!taken && (kinds & (seen.is_epoll() ? kEpoll : kSocket)) != 0) entry_ = seen;
      break;
    }
    seen = again;
  }
  place_ = place;
}

UseMany::UseMany(std::span<socket::PollItem> items) {
  if (goes_straight()) return;
  Marks* marks = my_marks != nullptr ? my_marks : take_marks();
  if (marks == nullptr) return;
  drop_gone(*marks, reinterpret_cast<std::uintptr_t>(this));
  saved_errno_ = errno;
  for (socket::PollItem& item : items) {
    (void)exchange_called_number(item.fd);
    item.file = fd_table.load(item.fd).file();
    any_ |= item.file != nullptr;
  }
  // A handler's poll that interrupts a poll stays unmarked: it is short, and its set is rarely closed meanwhile.
  if (!any_ || marks->many_frame != 0) return;
  marks->many_frame = reinterpret_cast<std::uintptr_t>(this);
  marks->many_count.store(items.size(), std::memory_order_relaxed);
  marks->many.store(items.data(), std::memory_order_release);
  fence_for_call();
  for (socket::PollItem& item : items) {
    if (item.file != fd_table.load(item.fd).file()) item.file = nullptr;  // closed meanwhile: the kernel must answer
  }
}

UseMany::~UseMany() {
  if (!any_ || my_marks->many_frame != reinterpret_cast<std::uintptr_t>(this)) return;
  my_marks->many_frame = 0;
  my_marks->many.store(nullptr);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // before `readers` is read; closers add first, then load `many`
  while (my_marks->readers.load() != 0) socket::let_others_run();
  if (deferred_count.load(std::memory_order_relaxed) != 0) [[unlikely]]
    release_deferred();
}

void release_entry(Entry entry, int fd) {
  const auto frame = reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
  if (my_marks != nullptr) drop_gone(*my_marks, frame);
  if (!is_in_use(entry)) {
    socket::release(*entry.file(), fd);
    return;
  }
  if (fd >= 0) socket::number_closes(*entry.file(), fd);
  // If the list is full, the object is kept for good: a call may still use it.
  if (!defer(entry.word())) return;
  deferred_count.fetch_add(1);
  fence_for_closer();  // a call that leaves from now on sees the count; calls that left before are found now
  release_deferred();
}

void prepare_uses() {
  pthread_key_create(&exit_key, give_marks_back);
  fence_each_call = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) < 0;
}

void forget_uses_after_fork() {
  for (Chunk* chunk = &first_chunk; chunk != nullptr; chunk = chunk->next.load()) {
    for (Marks& marks : chunk->marks) {
      marks.readers = 0;
      if (&marks == my_marks || !marks.taken.load()) continue;
      drop_stale(marks, UINTPTR_MAX);
      marks.taken = false;
    }
  }
  threads = my_marks != nullptr ? 1 : 0;
  for (auto& place : deferred) place = 0;  // these are the parent's references
  deferred_count = 0;
  fence_each_call = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) < 0;
}

}  // namespace bypass::preload
