// Objects: the slabs of everything that the socket layer keeps in the arena. One for each shard; lock held.
// Tests: tests/socket/idle_memory_test.cc, tests/socket/kin_test.cc.
#pragma once

#include <atomic>
#include <cstdint>

#include "socket/family/tickets.h"
#include "socket/shared/local.h"
#include "socket/socket.h"
#include "socket/wait/epoll.h"
#include "socket/wait/wait.h"
#include "stack/memory/slab.h"

namespace bypass::socket {

struct Objects {
  explicit Objects(Memory& memory_in)
      : memory(memory_in),
        sockets(memory),
        details(memory),
        locals(memory),
        epolls(memory),
        items(memory),
        waiters(memory),
        tickets(memory) {}

  Memory& memory;
  Slab<Socket> sockets;
  Slab<Details> details;
  Slab<LocalEnd> locals;
  Slab<Epoll> epolls;
  Slab<EpollItem> items;
  Slab<Waiter> waiters;
  Slab<Ticket> tickets;
  Waiter* idle_waiters = nullptr;             // of threads that have ended; later threads use their eventfds again
  std::atomic<std::uint32_t> tickets_out{0};  // tickets.size(), read without the lock
};

/// Null until the first object was asked for (or if the arena has no room).
extern Objects* objects;
/// Lock held. False: no memory.
bool prepare_objects(Shard& shard);

}  // namespace bypass::socket
