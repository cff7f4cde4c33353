// Wires: which process of a family serves the shard's ports, and what the others leave for it.
//
// A port belongs to the process that opened it: the owner. Only the owner polls; it delivers what it receives into the
// arena for every process. The others have a RelayPort in the port's place. That leaves outgoing frames in a ring of
// the arena. The owner copies them to the device when it next polls, and is woken if it sleeps.
//
// Wires lies in the arena (all zero: no owner). The holder of the shard's lock may use it; the atomic fields need no
// lock.
// Tests: tests/socket/kin_test.cc, tests/system/families.py.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "socket/family/family.h"
#include "stack/context.h"
#include "stack/frame/port.h"
#include "stack/memory/memory.h"
#include "stack/time.h"

namespace bypass::socket {

/// How a thread that sleeps is woken: in its own process by its eventfd, from another process by a datagram to its
/// doorbell or to its process's doorbell.
struct WakeTarget {
  std::uint32_t slot = kNoSlot;
  std::int32_t event_fd = -1;
  Doorbell doorbell;

  /// The thread that hears a process's doorbell: its progress thread.
  [[nodiscard]] static WakeTarget process(std::uint32_t slot) { return {slot, -1, {}}; }
};

/// A thread that sleeps on the wires and the timers.
struct WireSleeper {
  bool asleep = false;
  Instant until{};  // when it gets up by itself
  WakeTarget target;
};

/// Frames for one port that other processes of the family have left: packets of the arena, oldest first.
struct FrameRing {
  static constexpr std::uint32_t kPlaces = 256;
  std::array<Packet*, kPlaces> frames;
  std::uint32_t head, tail;  // how many were taken and put, ever

  [[nodiscard]] std::uint32_t size() const { return tail - head; }
};

/// A process that has no slot, because it has no arena.
struct Maker {
  std::atomic<std::uint32_t> pid;         // 0: there is none
  std::atomic<std::uint64_t> start_time;  // 0: not known

  /// Sets the process, as seen by a process to which /proc shows it (os::start_time_of).
  void set(std::uint32_t its_pid, std::uint64_t its_start_time);
  /// Whether the process lives. It works also where /proc does not show it (proc(5), hidepid). Some system calls.
  [[nodiscard]] bool lives() const;
};

struct Wires {
  std::atomic<std::uint64_t> owner;     // slot + 1 and incarnation; 0: no owner
  std::atomic<std::uint32_t> openings;  // a futex: counts the changes of `owner` and `open`
  std::atomic<bool> open;               // the owner's ports are open, and `caps` and `macs` are theirs
  std::atomic<bool> leaving;            // the owner ends, and delivers nothing that is written from here on
  std::atomic<std::uint32_t> members;   // processes beside the first, and one more where a driver lets others in by
                                        // themselves; above 0 payload must lie in the arena
  std::atomic<std::int64_t> polled;     // when the owner polled last
  std::atomic<bool> frames_left;        // some ring holds a frame, or flows are noted that no device was told of
  std::atomic<std::uint32_t> told;  // a futex: changes when devices were told of flows; bit 0: a thread sleeps on it
  std::atomic<std::uint32_t> guarded_by;  // the Handovers' id with which the owner keeps its flows; 0: none
  std::uint32_t handovers;                // how many were made
  std::atomic<bool>
      lent;  // to a family of fewer rights (runtime/family/rights/spare.h): nobody opens the ports here meanwhile
  // For a family to which ports are lent: the processes that make a driver for it (runtime/family/rights/driver.h),
  // while one of them lives
  Maker keeper, heir;
  Maker family_keeper;                  // ends what the family's last process leaves (runtime/family/keeper/keeper.h)
  std::atomic<bool> has_family_keeper;  // … it was made, or is being made
  std::atomic<std::uint32_t> driver_calls;   // … a futex: changes when the driver has something to look at
  std::atomic<std::uint32_t> driver_looked;  // … a futex: the value of `driver_calls` before the driver's last look
  std::atomic<std::uint64_t> driver;         // … the driver that looks, named as in `owner`; 0: none has yet
  bool rung;                                 // the owner's progress thread has been called, and has not polled since
  WireSleeper watcher;                       // the owner's thread that watches in a call of the program's …
  WireSleeper progress;                      // … and its progress thread
  bool known;                                // `caps` and `macs` have been set once, and the stack has its interfaces
  std::uint32_t opened;                      // bit i: port i of the configuration is open
  std::array<PortCaps, Context::kMaxPorts> caps;
  std::array<MacAddress, Context::kMaxPorts> macs;
  std::array<FrameRing*, Context::kMaxPorts>
      rings;  // a block of Memory each, made by the one that leaves the first frame

  /// The thread that serves wires and timers in the owner: the watcher, or the progress thread while no thread watches.
  /// The thread may be awake.
  [[nodiscard]] WireSleeper& sleeper() { return watcher.asleep ? watcher : progress; }

  [[nodiscard]] static std::uint64_t name(std::uint32_t slot, std::uint32_t incarnation) {
    return std::uint64_t{slot + 1} << 32 | incarnation;
  }
  /// The slot in such a name; kNoSlot for 0.
  [[nodiscard]] static std::uint32_t slot_in(std::uint64_t name) { return static_cast<std::uint32_t>(name >> 32) - 1; }
  [[nodiscard]] std::uint32_t owner_slot() const { return slot_in(owner.load(std::memory_order_relaxed)); }
};

/// Stands for a port of the owner's in another process of the family.
class RelayPort final : public Port {
 public:
  RelayPort(Wires& wires, Memory& memory, std::uint16_t index) : wires_(wires), memory_(memory), index_(index) {}

  [[nodiscard]] const PortCaps& caps() const override { return wires_.caps[index_]; }
  [[nodiscard]] MacAddress mac() const override { return wires_.macs[index_]; }
  /// Only the owner knows the link's state.
  [[nodiscard]] LinkState link() const override { return LinkState::kUp; }
  std::size_t receive(std::uint16_t, std::span<Packet*>) override { return 0; }
  std::size_t send(std::uint16_t queue, std::span<Packet* const> frames) override;
  [[nodiscard]] std::size_t tx_room(std::uint16_t queue) override;
  std::size_t alloc(std::uint16_t queue, std::span<Packet*> out) override;
  void free(std::span<Packet* const> frames) override;
  [[nodiscard]] int wait_descriptor(std::uint16_t) const override { return -1; }
  [[nodiscard]] std::uint32_t wait_generation() const override { return 0; }
  bool arm(std::uint16_t) override { return true; }
  void disarm(std::uint16_t) override {}
  [[nodiscard]] PortStats stats() const override { return {}; }

 private:
  /// Null: there is no memory for it.
  FrameRing* ring();

  Wires& wires_;
  Memory& memory_;
  std::uint16_t index_;
};

/// The owner's part: queues the frames that the others have left, as far as the port takes them and has room. Lock
/// held.
void take_left_frames(Wires& wires, Context& context);
/// Called after a death inside the lock: marks the packets that the rings hold, for Memory's rebuild.
void mark_left_frames(Wires& wires, Memory& memory);

}  // namespace bypass::socket
