// File: what a descriptor number stands for: a socket or an epoll set, as it lies in the arena.
//
// Everything here belongs to the holder of the shard's lock; only Readiness::version is read without it.
// A File's slot is never unmapped and its fields stay readable after its end, so that a call that raced with
// close() finds `alive` false instead of freed memory.
// Tests: tests/socket/shard_test.cc, tests/socket/steering_test.cc.
#pragma once

#include <atomic>
#include <cstdint>

#include "socket/api.h"
#include "socket/family/family.h"

namespace bypass::socket {

struct EpollItem;  // epoll.h
struct WaitLink;   // wait.h

/// How often each kind of readiness has come up. A watcher compares them with what it has seen last: an
/// epoll item for its edges, a rebuild for the ready lists. `version` counts all of them and is what a
/// spinning thread reads without the lock.
struct Readiness {
  std::atomic<std::uint32_t> version{0};
  std::uint16_t in = 0, out = 0, hup = 0, err = 0;
};

struct File {
  std::atomic<FileKind> kind{FileKind::kStream};  // listen() makes a listener of a stream; read without the lock
  bool alive = true;
  bool ending = false;  // no number is left; the last call inside ends it
  /// A vfork child has given the number to what it will exec: leave_shared_memory() by the one that comes first.
  /// Of one that is no connection yet: other processes have it, and it never comes to shared memory.
  std::atomic<bool> leave_asked{false};
  bool dual = false;             // its kernel half is watched, by each process that has a number of it
  std::uint8_t disconnects = 0;  // a stream's, by connect(AF_UNSPEC): for who slept meanwhile
  std::uint16_t users = 0;       // calls inside that have let go of the lock
  std::uint16_t status = 0;      // O_NONBLOCK, O_ASYNC: the open file description's
  Readiness readiness;
  SlotRefs references;                   // numbers that name it, by process
  EpollItem* items = nullptr;            // of the sets that watch it, through EpollItem::target_next
  WaitLink* waiters = nullptr;           // of the threads that sleep on it
  std::atomic<std::int32_t> number{-1};  // one of them, for people to read; stored without the lock
};

class Guard;

/// A call goes inside and will let go of the lock there; `flag`: a bit of Socket::flags that says so to others, or 0.
/// Lock held, as for hold_end().
void hold(File& file, std::uint32_t flag = 0);
void hold_end(File& file, std::uint32_t flag = 0);

/// Gives back, without the lock, a place in File::users that was taken with it: an object stays while a call
/// inside it lets go of the lock.
class Pin {
 public:
  explicit Pin(File& taken) : file_(taken) {}
  ~Pin();
  Pin(const Pin&) = delete;
  Pin& operator=(const Pin&) = delete;

 private:
  File& file_;
};

/// A new object's first number, of this process. Lock held.
void own_first(File& file);
/// Ends an object that no number names any more, once nobody is inside. Lock held.
void end_if_unused(Guard& guard, File& file);

}  // namespace bypass::socket
