// Rebuilds the state after a death inside the lock. What the arena's slabs hold is right; everything that links them is
// made anew.
// Tests: tests/socket/kin_death_test.cc, tests/family/lock_death_test.cc.
#include "fastpath/link/peer_links.h"
#include "socket/objects.h"
#include "socket/wait/readiness.h"

namespace bypass::socket {

namespace {

bool lives(const File* file) {
  return objects->sockets.lives(file) || objects->epolls.lives(file);
}

void forget_links(File& file) {
  file.items = nullptr;
  file.waiters = nullptr;
}

// Threads of living processes sleep on: their links name the objects.
void relink_waiters() {
  objects->waiters.for_each([](Waiter& waiter) {
    const auto relink = [](WaitLink& link) {
      if (link.file == nullptr || !lives(link.file)) return;
      link.next = link.file->waiters;
      link.file->waiters = &link;
    };
    relink(waiter.link);
    if (waiter.links == nullptr) return;
    (void)objects->memory.mark_in_use(waiter.links);
    for (std::uint32_t i = 0; i < waiter.linked; i++) relink(waiter.links[i]);
  });
}

void relink_items() {
  objects->items.for_each([](EpollItem& item) {
    item.ready = false;
    item.ready_next = nullptr;
    if (item.gone || !objects->epolls.lives(item.set) || !lives(item.target)) {
      objects->items.free(&item);
      return;
    }
    item.target_next = item.target->items;
    item.target->items = &item;
    item.set->bypass_items.fetch_add(1, std::memory_order_relaxed);
    if (has_kernel_half(*item.target)) item.set->dual_items.fetch_add(1, std::memory_order_relaxed);
  });
}

// Level-triggered items are asked when a thread looks. An edge that nobody has taken shows in the counters.
void refill_ready_lists() {
  objects->items.for_each([](EpollItem& item) {
    const Readiness& r = item.target->readiness;
    const bool missed =
        item.seen_in != r.in || item.seen_out != r.out || item.seen_hup != r.hup || item.seen_err != r.err;
    if (missed || (item.events & EPOLLET) == 0) item_signalled(item);
  });
}

// Marks the blocks that objects own beside their slots.
void mark_blocks(Objects& o) {
  const auto mark = [&o](const void* block) {
    if (block != nullptr) (void)o.memory.mark_in_use(block);
  };
  const auto mark_references = [&](File& file) {
    file.references.recount();
    mark(file.references.block());
  };
  o.sockets.for_each([&](Socket& socket) {
    mark_references(socket);
    if (socket.details != nullptr) mark(socket.details->corked);
  });
  o.epolls.for_each(mark_references);
}

bool claim(Socket& socket) {
  switch (socket.kind) {
    case FileKind::kStream:
      return tcp_engine().claim(socket.tcb, &socket);
    case FileKind::kListener:
      return tcp_engine().claim(socket.listener, &socket);
    case FileKind::kDatagram:
      return udp_engine().claim(socket.binding, &socket);
    case FileKind::kEpoll:
      break;
  }
  return false;
}

// A call changes the stack's half of a socket and the socket's own half one after the other, and the dead process may
// have done only the first. Then the pointer names something that is no longer there, is not there yet, or is of
// another kind.
void claim_what_it_stands_on(Socket& socket) {
  if (socket.tcb == nullptr || claim(socket)) return;
  socket.tcb = nullptr;
  if (socket.kind == FileKind::kListener) socket.kind = FileKind::kStream;
  if (socket.details != nullptr) socket.path = Path::kUndecided;
}

bool mark_objects() {
  Objects& o = *objects;
  return o.memory.mark_in_use(&o) && o.sockets.rebuild() && o.details.rebuild() && o.locals.rebuild() &&
         o.epolls.rebuild() && o.items.rebuild() && o.waiters.rebuild() && o.tickets.rebuild();
}

}  // namespace

void rebuild_after_death(Shard& shard) {
  Memory& memory = *shard.context().memory;
  shard.context().shared = true;  // what the dead process's device held must not be looked at
  shard.context().now = shard.clock().now();
  memory.begin_rebuild();
  const bool sound = objects == nullptr || mark_objects();
  if (objects != nullptr && sound) mark_blocks(*objects);
  shard.mark_wires();
  shard.renew_limits();
  if (objects != nullptr && sound) {
    objects->sockets.for_each([](Socket& socket) { forget_links(socket); });
    objects->epolls.for_each([](Epoll& epoll) {
      forget_links(epoll);
      epoll.ready_head = epoll.ready_tail = nullptr;
      epoll.bypass_items = epoll.dual_items = 0;
    });
    relink_waiters();
    relink_items();
    tcp_engine().forget_users();
    udp_engine().forget_users();
    objects->sockets.for_each(claim_what_it_stands_on);
  }
  shard.stack().rebuild(shard.context());
  if (shard.links() != nullptr) shard.links()->rebuild();
  memory.finish_rebuild();
  if (objects == nullptr || !sound) return;
  recount_tickets();
  tcp_engine().end_unclaimed(shard.context());
  udp_engine().end_unclaimed(shard.context());
  // What a thread fills without the lock still belongs to that thread. If its process dies, its death undoes it
  // (drop_waiters).
  objects->sockets.for_each([&](Socket& socket) {
    const bool stream = connection_of(socket) != nullptr;
    if (stream && !socket.has(kWriting) && socket.tcb->ring.reserved()) socket.tcb->ring.commit(memory, 0);
  });
  refill_ready_lists();
}

}  // namespace bypass::socket
