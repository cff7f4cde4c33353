#include "socket/family/family.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "os/os.h"

namespace bypass::socket {
namespace {

/// Counts for all families of this process and of its ancestors. So what a thread caches never fits another family.
std::atomic<std::uint32_t> generations{0};

}  // namespace

bool Family::make_page() {
  constexpr long kPage = 4096;
  const long page = os::call(SYS_mmap, 0, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page < 0 && page > -kPage) return false;
  os::call(SYS_madvise, page, kPage, MADV_WIPEONFORK);  // without it (before Linux 4.14) on_fork_child() must wipe it
  self_ = reinterpret_cast<Self*>(page);
  return true;
}

bool Family::attach(FamilyTable& table) {
  table_ = &table;
  if (self_ == nullptr && !make_page()) return false;
  return take_slot();
}

bool Family::on_fork_child() {
  if (table_ == nullptr) return false;
  *self_ = {};
  return take_slot();
}

std::uint32_t Family::reserve() {
  const std::uint32_t pid = os::getpid();
  const std::uint32_t index = claim_free(pid);
  if (index == kNoSlot) return kNoSlot;
  move_in(table_->slots[index], 0);  // without a start time, it is never taken for a slot of the parent's after an exec
  return index;
}

void Family::bind_reserved(std::uint32_t slot, std::uint32_t incarnation, std::uint32_t pid) {
  std::uint32_t expected = os::getpid();
  if (incarnation_of(slot) != incarnation) return;
  table_->slots[slot].pid.compare_exchange_strong(expected, pid, std::memory_order_acq_rel);
}

// From here on a slot whose pid is set belongs to a new process, under the incarnation that this returns.
std::uint32_t Family::move_in(ProcessSlot& slot, std::uint64_t start_time) {
  slot.executing.store(false, std::memory_order_relaxed);
  slot.doorbell = {};
  slot.cannot_own.store(false, std::memory_order_relaxed);
  slot.takes_nothing.store(false, std::memory_order_relaxed);
  slot.pid_namespace.store(os::pid_namespace(), std::memory_order_relaxed);
  slot.start_time.store(start_time, std::memory_order_relaxed);
  return slot.incarnation.fetch_add(1, std::memory_order_acq_rel) + 1;
}

bool Family::take_slot() {
  const std::uint32_t pid = os::getpid();
  const std::uint32_t index = claim(pid);
  if (index == kNoSlot) return false;
  const std::uint32_t incarnation = move_in(table_->slots[index], os::start_time_of(pid));
  *self_ = {index + 1, incarnation, ++generations, false};
  return true;
}

// A slot can have our pid only after an exec, or if an earlier process with that pid died and was not swept yet. Then
// its slot becomes ours, and we have to drop its references, so it must not be taken over silently.
std::uint32_t Family::claim(std::uint32_t pid) {
  const std::uint64_t start = os::start_time_of(pid);
  for (std::uint32_t i = 0; i < table_->high.load(std::memory_order_acquire); i++) {
    ProcessSlot& slot = table_->slots[i];
    if (slot.pid.load(std::memory_order_acquire) == pid && start != 0 && slot.start_time.load() == start) return i;
  }
  return claim_free(pid);
}

std::uint32_t Family::claim_free(std::uint32_t pid) {
  for (std::uint32_t i = 0; i < kMaxProcesses; i++) {
    std::uint32_t expected = 0;
    if (!table_->slots[i].pid.compare_exchange_strong(expected, pid, std::memory_order_acq_rel)) continue;
    std::uint32_t high = table_->high.load(std::memory_order_relaxed);
    while (high < i + 1 && !table_->high.compare_exchange_weak(high, i + 1, std::memory_order_acq_rel)) {
    }
    return i;
  }
  return kNoSlot;
}

void Family::free_slot(ProcessSlot& slot) {
  slot.start_time.store(0, std::memory_order_relaxed);
  slot.incarnation.fetch_add(1, std::memory_order_relaxed);
  slot.pid.store(0, std::memory_order_release);
}

void Family::detach() {
  if (slot() == kNoSlot) return;
  ProcessSlot& left = own();
  *self_ = {};
  free_slot(left);
}

// A pidfd tells a zombie from a living process. That includes a process whose first thread has ended before the others,
// which /proc shows as a zombie. The start time tells a process from a later one with the same pid.
bool Family::alive(std::uint32_t index, std::uint32_t incarnation) const {
  if (index >= kMaxProcesses) return false;
  const ProcessSlot& slot = table_->slots[index];
  const std::uint32_t pid = slot.pid.load(std::memory_order_acquire);
  if (pid == 0 || slot.incarnation.load(std::memory_order_acquire) != incarnation) return false;
  const std::uint64_t start = slot.start_time.load(std::memory_order_relaxed);
  if (index == this->slot()) return true;
  const std::uint64_t theirs = slot.pid_namespace.load(std::memory_order_relaxed);
  const std::uint64_t ours = os::pid_namespace();
  if (theirs != ours && theirs != 0 && ours != 0) return true;

  const long fd = os::pidfd_open(pid);
  if (fd < 0) return fd != -ESRCH && os::kill(pid, 0) != -ESRCH;
  const bool ended = os::readable(static_cast<int>(fd));
  os::close(static_cast<int>(fd));
  if (ended) return false;
  const std::uint64_t now = os::start_time_of(pid);
  return start == 0 || now == 0 || now == start;
}

bool Family::thread_alive(std::uint32_t index, std::uint32_t tid) const {
  const ProcessSlot& slot = table_->slots[index];
  const std::uint64_t theirs = slot.pid_namespace.load(std::memory_order_relaxed);
  const std::uint64_t ours = os::pid_namespace();
  if (theirs != ours && theirs != 0 && ours != 0) return true;
  const std::uint32_t pid = slot.pid.load(std::memory_order_relaxed);
  if (os::tgkill(pid, tid, 0) == -ESRCH) return false;
  return tid != pid || !os::has_first_thread_ended(pid);
}

std::uint32_t Family::count() const {
  std::uint32_t n = 0;
  const std::uint32_t high = table_->high.load(std::memory_order_acquire);
  for (std::uint32_t i = 0; i < high; i++) n += table_->slots[i].pid.load(std::memory_order_relaxed) != 0 ? 1 : 0;
  return n;
}

bool Family::has_living_kin() const {
  const std::uint32_t high = table_->high.load(std::memory_order_acquire);
  for (std::uint32_t i = 0; i < high; i++)
    if (i != slot() && alive(i, table_->slots[i].incarnation.load(std::memory_order_acquire))) return true;
  return false;
}

bool Family::takes_passed(std::uint32_t pid) const {
  const std::uint64_t here = os::pid_namespace();
  const std::uint32_t high = table_->high.load(std::memory_order_acquire);
  for (std::uint32_t i = 0; i < high; i++) {
    const ProcessSlot& slot = table_->slots[i];
    if (slot.pid.load(std::memory_order_acquire) == pid && slot.pid_namespace.load(std::memory_order_relaxed) == here)
      return here != 0 && !slot.takes_nothing.load(std::memory_order_acquire);
  }
  return false;
}

bool Family::somebody_may_own() const {
  const std::uint32_t high = table_->high.load(std::memory_order_acquire);
  for (std::uint32_t i = 0; i < high; i++) {
    const ProcessSlot& other = table_->slots[i];
    const bool reserved = other.start_time.load(std::memory_order_relaxed) == 0;
    if (i == slot() || reserved || other.cannot_own.load()) continue;
    // a dead process that is not swept yet may not
    if (alive(i, other.incarnation.load(std::memory_order_acquire))) return true;
  }
  return false;
}

// Without a generation no other thread of ours takes the lock.
void Family::keep_threads_out(bool out) {
  self_->generation = out ? 0 : ++generations;
  self_->executing = out;
}

void Family::set_executing(bool executing) {
  keep_threads_out(executing);
  own().executing.store(executing, std::memory_order_release);
}

std::uint32_t SlotRefs::find(std::uint32_t slot) const {
  for (std::uint32_t i = 0; i < entries_; i++) {
    if (at(i).slot == slot) return i;
  }
  return kNoSlot;
}

bool SlotRefs::make_room(Memory& memory) {
  if (entries_ < room_) return true;
  const std::size_t had = room_ - kInline;
  const std::size_t bytes = std::max(kMinBlock, 2 * had * sizeof(Entry));
  auto* larger = static_cast<Entry*>(memory.allocate(bytes));
  if (larger == nullptr) return false;
  Entry* const old = more_;
  if (old != nullptr) std::memcpy(larger, old, had * sizeof(Entry));
  more_ = larger;
  room_ = static_cast<std::uint16_t>(kInline + bytes / sizeof(Entry));
  memory.release(old);
  return true;
}

bool SlotRefs::add(Memory& memory, std::uint32_t slot, std::uint32_t count) {
  std::uint32_t i = find(slot);
  if (i == kNoSlot) {
    if (!make_room(memory)) return false;
    i = entries_;
    at(i) = {slot, 0};
    entries_++;
  }
  at(i).count += count;
  total_ += count;
  return true;
}

void SlotRefs::erase(Memory& memory, std::uint32_t i) {
  at(i) = at(entries_ - 1U);
  entries_--;
  if (entries_ > kInline || more_ == nullptr) return;
  Entry* const old = more_;
  more_ = nullptr;
  room_ = kInline;
  memory.release(old);
}

bool SlotRefs::remove(Memory& memory, std::uint32_t slot) {
  const std::uint32_t i = find(slot);
  if (i == kNoSlot) return empty();
  total_--;
  if (--at(i).count == 0) erase(memory, i);
  return empty();
}

bool SlotRefs::drop(Memory& memory, std::uint32_t slot) {
  const std::uint32_t i = find(slot);
  if (i == kNoSlot) return empty();
  total_ -= at(i).count;
  erase(memory, i);
  return empty();
}

// add(), remove() and erase() may have been cut short anywhere. That can leave an entry without references, an entry
// that is there twice, or a wrong sum.
void SlotRefs::recount() {
  if (more_ == nullptr) room_ = kInline;
  std::uint16_t kept = 0;
  total_ = 0;
  for (std::uint32_t i = 0; i < std::min(entries_, room_); i++) {
    const Entry entry = at(i);
    bool known = false;
    for (std::uint32_t j = 0; j < kept; j++) known = known || at(j).slot == entry.slot;
    if (known || entry.count == 0) continue;
    at(kept++) = entry;
    total_ += entry.count;
  }
  entries_ = kept;
}

std::uint32_t SlotRefs::of(std::uint32_t slot) const {
  const std::uint32_t i = find(slot);
  return i == kNoSlot ? 0 : at(i).count;
}

}  // namespace bypass::socket
