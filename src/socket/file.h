// File: the object that a descriptor number stands for: a socket or an epoll set. It lies in the arena.
//
// Everything here belongs to the holder of the shard's lock; only Readiness::version is read without it. A File's slot
// is never unmapped, and its fields stay readable after its end. So a call that races with close() finds `alive` false
// instead of freed memory.
// Tests: tests/socket/shard_test.cc, tests/socket/steering_test.cc.
#pragma once

#include <atomic>
#include <cstdint>

#include "socket/api.h"
#include "socket/family/family.h"

namespace bypass::socket {

struct EpollItem;  // epoll.h
struct WaitLink;   // wait.h

/// How often each kind of readiness has occurred. A watcher compares the counts with those that it saw last: an epoll
/// item for its edges, a rebuild for the ready lists. `version` counts all of them; a spinning thread reads it without
/// the lock.
struct Readiness {
  std::atomic<std::uint32_t> version{0};
  std::uint16_t in = 0, out = 0, hup = 0, err = 0;
};

struct File {
  std::atomic<FileKind> kind{FileKind::kStream};  // listen() makes a listener of a stream; read without the lock
  bool alive = true;
  bool ending = false;  // no number is left; the last call that uses it ends it
  /// A vfork child has given the number to the program that it will exec: the first thread that comes here calls
  /// leave_shared_memory(). If the socket is not connected yet, other processes have it, and it never uses shared
  /// memory.
  std::atomic<bool> leave_asked{false};
  bool dual = false;             // its kernel half is watched, by each process that has a number of it
  std::uint8_t disconnects = 0;  // number of connect(AF_UNSPEC) calls on a stream, for threads that slept meanwhile
  std::uint16_t users = 0;       // calls that use the object and have released the lock
  std::uint16_t status = 0;      // O_NONBLOCK, O_ASYNC, of the open file description
  /// The number is to name a socket of the kernel's instead (pumped.h). Read without the lock.
  std::atomic<bool> pumped{false};
  Readiness readiness;
  SlotRefs references;                   // numbers that name it, by process
  EpollItem* items = nullptr;            // items of the sets that watch it, through EpollItem::target_next
  WaitLink* waiters = nullptr;           // of the threads that sleep for it
  std::atomic<std::int32_t> number{-1};  // one of its numbers, for people to read; stored without the lock
};

class Guard;

/// A call will use the object and release the lock meanwhile. `flag`: a bit of Socket::flags that shows this to others,
/// or 0. Lock held, as for hold_end().
void hold(File& file, std::uint32_t flag = 0);
void hold_end(File& file, std::uint32_t flag = 0);

/// Releases, without the lock, a place in File::users that was taken with it: an object stays while a call that uses it
/// releases the lock.
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
/// Ends an object that no number names any more, once no call uses it. Lock held.
void end_if_unused(Guard& guard, File& file);

}  // namespace bypass::socket
