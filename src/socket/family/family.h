// Family: the processes that share an arena: a process, what it forked, what those forked.
//
// Each has a slot in the arena: pid, start time, pid namespace, incarnation. By the slot the shard's lock names its
// owner, and objects count their references. So what a dead process held can be given back. A slot's incarnation
// changes whenever another process takes the slot, or the same one after exec.
//
// FamilyTable lies in the arena. Family is a process's own half. Its identity lies in a page that the kernel wipes in
// every forked child. So a child never takes itself for its parent, however it was made.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "stack/memory/memory.h"

namespace bypass::socket {

inline constexpr std::uint32_t kMaxProcesses = 1024;
inline constexpr std::uint32_t kNoSlot = 0xffffffff;
/// The pid of a slot whose process counts as dead: above every pid (PID_MAX_LIMIT).
inline constexpr std::uint32_t kNobody = 1U << 30;

/// How other processes of the family reach a sleeper (doorbell.h).
struct Doorbell {
  std::array<char, 8> name{};  // of an abstract Unix socket, as autobind gives it: five characters; empty: no doorbell
  std::array<std::byte, 16> token{};  // what a datagram must hold for the kernel to deliver it
};

/// A slot is free while `pid` is 0. A compare-and-swap of `pid` takes it and gives it back. The slot's holder writes
/// the other fields.
struct alignas(64) ProcessSlot {
  std::atomic<std::uint32_t> pid{0};
  std::atomic<std::uint32_t> incarnation{0};
  std::atomic<std::uint64_t> start_time{0};  // 0: /proc could not be read
  std::atomic<std::uint64_t> pid_namespace{0};
  Doorbell doorbell;                    // its progress thread's; with the shard's lock
  std::atomic<bool> cannot_own{false};  // the ports did not open in that process: it may be another user's
  std::atomic<bool> executing{false};   // inside exec: the only thread that still runs holds the shard's lock
  std::atomic<bool> takes_nothing{
      false};  // a filter of system calls forbids what it would take by a ticket (tickets.h)
};

/// As fresh memory of the arena (all zero) it is an empty table.
struct FamilyTable {
  std::atomic<std::uint32_t> high{0};     // slots ever used: a walk ends here
  std::atomic<std::uint32_t> changes{0};  // forks and execs of its processes: others may have their descriptors since
  std::array<ProcessSlot, kMaxProcesses> slots;
};

class Family {
 public:
  Family() = default;
  Family(const Family&) = delete;
  Family& operator=(const Family&) = delete;

  /// Takes a slot; after exec, the one that this process had, with a new incarnation. False: there is no page for the
  /// identity, or the table is full of living processes.
  [[nodiscard]] bool attach(FamilyTable& table);
  /// Gives the slot back. The process must have dropped its references before.
  void detach();
  /// Called before fork: reserves a slot that stands for the child until the child has one of its own. So it can hold
  /// references meanwhile. kNoSlot: no slot is free.
  [[nodiscard]] std::uint32_t reserve();
  /// Called after fork, in a parent that knows its child's pid: the reserved slot then lives as long as the child,
  /// unless the child has given it back.
  void bind_reserved(std::uint32_t slot, std::uint32_t incarnation, std::uint32_t pid);
  /// The child has its own slot, or there is no child: the reserved slot is free again.
  void end_reserved(std::uint32_t slot) { free_slot(table_->slots[slot]); }
  [[nodiscard]] std::uint32_t incarnation_of(std::uint32_t slot) const {
    return table_->slots[slot].incarnation.load();
  }
  /// Called in a forked child: takes a slot of its own. False: no slot is free, and the child must not use the arena.
  [[nodiscard]] bool on_fork_child();

  /// This process's slot; kNoSlot in a child that has not called on_fork_child() yet.
  [[nodiscard]] std::uint32_t slot() const { return self_ == nullptr ? kNoSlot : self_->slot_plus_1 - 1; }
  [[nodiscard]] std::uint32_t incarnation() const { return self_ == nullptr ? 0 : self_->incarnation; }
  /// A number for this identity, for caches. Each forked child has another one. 0: no identity, or inside exec.
  [[nodiscard]] std::uint32_t generation() const { return self_ == nullptr ? 0 : self_->generation; }
  [[nodiscard]] FamilyTable& table() { return *table_; }
  /// The slot of this process, which must have one.
  [[nodiscard]] ProcessSlot& own() { return table_->slots[slot()]; }

  /// Whether the process that held the slot in that incarnation can still run. If that is not known, it counts as
  /// alive; so does a process in another pid namespace. Some system calls, about 10 us.
  [[nodiscard]] bool alive(std::uint32_t slot, std::uint32_t incarnation) const;
  [[nodiscard]] bool thread_alive(std::uint32_t slot, std::uint32_t tid) const;
  [[nodiscard]] std::uint32_t count() const;
  /// Whether another process that can still run has a slot. Some system calls for each.
  [[nodiscard]] bool has_living_kin() const;
  /// Whether a process of this pid namespace has a slot, and may take what is passed to it by a ticket (tickets.h).
  [[nodiscard]] bool takes_passed(std::uint32_t pid) const;
  /// A process is about to fork, or to execute another program.
  void note_change() { table_->changes.fetch_add(1, std::memory_order_acq_rel); }
  /// Whether the ports may still open in some other process.
  [[nodiscard]] bool somebody_may_own() const;

  /// Calls gone(slot) for each dead process's slot, then frees it. With the shard's lock held: nobody else sweeps.
  template <typename F>
  std::size_t sweep(F&& gone) {
    std::size_t swept = 0;
    for (std::uint32_t i = 0; i < table_->high.load(std::memory_order_acquire); i++) {
      ProcessSlot& s = table_->slots[i];
      const std::uint32_t incarnation = s.incarnation.load(std::memory_order_acquire);
      if (i == slot() || s.pid.load(std::memory_order_acquire) == 0 || alive(i, incarnation)) continue;
      if (s.incarnation.load(std::memory_order_acquire) != incarnation) continue;  // another process is taking the slot
      gone(i);
      free_slot(s);
      swept++;
    }
    return swept;
  }

  /// From here on, other processes take this one for dead, and give up what it referred to. It goes on with a table of
  /// its own, a copy that was made before.
  void die_to_others() { own().pid.store(kNobody, std::memory_order_release); }
  /// In such a copy: calls gone(slot) for each other process's slot, then frees it.
  template <typename F>
  void forget_others(F&& gone) {
    for (std::uint32_t i = 0; i < table_->high.load(std::memory_order_acquire); i++) {
      ProcessSlot& s = table_->slots[i];
      if (i == slot() || s.pid.load(std::memory_order_acquire) == 0) continue;
      gone(i);
      free_slot(s);
    }
  }

  /// Called around exec, with the shard's lock held (ShardLock::hold_for_exec).
  void set_executing(bool executing);
  /// The same, but only for the threads of this process. To others it lives, and holds the lock.
  void keep_threads_out(bool out);
  [[nodiscard]] bool executing() const { return self_ != nullptr && self_->executing; }

 private:
  /// Lies in a page that fork wipes
  struct Self {
    std::uint32_t slot_plus_1;
    std::uint32_t incarnation;
    std::uint32_t generation;
    bool executing;
  };
  bool make_page();
  bool take_slot();
  std::uint32_t claim(std::uint32_t pid);
  std::uint32_t claim_free(std::uint32_t pid);
  static std::uint32_t move_in(ProcessSlot& slot, std::uint64_t start_time);
  static void free_slot(ProcessSlot& slot);

  FamilyTable* table_ = nullptr;
  Self* self_ = nullptr;
};

/// How many references each process holds to one object. Few processes hold one: two fit in place, more in a block of
/// Memory. It lies in the object, and is used with the lock held.
class SlotRefs {
 public:
  /// False: there is no memory for one more process. Nothing has changed then.
  [[nodiscard]] bool add(Memory& memory, std::uint32_t slot, std::uint32_t count = 1);
  /// Removes one reference of the process; true when that was the last reference of all.
  bool remove(Memory& memory, std::uint32_t slot);
  /// Removes all references of a process; true when no references are left.
  bool drop(Memory& memory, std::uint32_t slot);

  [[nodiscard]] std::uint32_t of(std::uint32_t slot) const;
  [[nodiscard]] std::uint32_t total() const { return total_; }
  [[nodiscard]] bool empty() const { return total_ == 0; }
  /// For Memory's rebuild: the block owned, null if none.
  [[nodiscard]] const void* block() const { return more_; }
  /// Recounts from the entries, after a death that may have come in the middle of a change.
  void recount();

 private:
  struct Entry {
    std::uint32_t slot;
    std::uint32_t count;
  };
  static constexpr std::uint32_t kInline = 2;
  [[nodiscard]] Entry& at(std::uint32_t i) { return i < kInline ? few_[i] : more_[i - kInline]; }
  [[nodiscard]] const Entry& at(std::uint32_t i) const { return i < kInline ? few_[i] : more_[i - kInline]; }
  [[nodiscard]] std::uint32_t find(std::uint32_t slot) const;
  bool make_room(Memory& memory);
  void erase(Memory& memory, std::uint32_t i);

  std::uint32_t total_ = 0;
  std::uint16_t entries_ = 0;
  std::uint16_t room_ = kInline;
  Entry few_[kInline] = {};
  Entry* more_ = nullptr;
};

}  // namespace bypass::socket
