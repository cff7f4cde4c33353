#include "socket/family/tickets.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

#include "socket/family/kin.h"
#include "socket/family/pumped.h"
#include "socket/objects.h"
#include "socket/wait/kernel_half.h"

namespace bypass::socket {

namespace {

void count_tickets() {
  objects->tickets_out.store(
      static_cast<std::uint32_t>(objects->tickets.size()));  // in order with Progress::watches_tickets_
}

Ticket* find(const os::UnixSocketId& id) {
  const Ticket* found = nullptr;
  (void)objects->tickets.any_of([&](const Ticket& ticket) {
    found = ticket.id == id ? &ticket : nullptr;
    return found != nullptr;
  });
  return const_cast<Ticket*>(found);
}

/// As by the close() of a number.
void end_ticket(Guard& guard, Ticket& ticket) {
  File& file = *ticket.file;
  objects->tickets.free(&ticket);
  count_tickets();
  if (!file.alive || file.references.of(kTicketSlot) == 0) return;
  if (!file.references.remove(objects->memory, kTicketSlot)) {
    tell_pump(file);
    if (file.kind == FileKind::kListener) call_driver();
    return;
  }
  file.ending = true;
  end_if_unused(guard, file);
}

bool is_steered(const File& file) {
  return file.kind == FileKind::kListener || file.kind == FileKind::kDatagram;
}

/// What a look asks the kernel for at once.
struct Batch {
  struct One {
    SlotId place;
    os::UnixSocketId id;
  };
  std::array<One, 64> tickets;
  std::size_t count = 0;
};

/// The tickets of the network from the `from`th on, as many as there is room for.
Batch next_batch(std::uint64_t network, std::size_t from) {
  Batch batch;
  std::size_t seen = 0;
  const Guard guard(shard());
  objects->tickets.for_each([&](const Ticket& ticket) {
    if (ticket.id.network != network || seen++ < from || batch.count == batch.tickets.size()) return;
    batch.tickets[batch.count++] = {objects->tickets.id_of(&ticket), ticket.id};
  });
  return batch;
}

}  // namespace

bool make_ticket(File& file, const os::UnixSocketId& id) {
  Guard guard(shard());
  if (!file.alive || file.ending || !file.references.add(objects->memory, kTicketSlot)) return false;
  if (objects->tickets.allocate(file, id) == nullptr) {
    file.references.remove(objects->memory, kTicketSlot);
    return false;
  }
  count_tickets();
  return true;
}

File* take_by_ticket(const os::UnixSocketId& id) {
  if (tickets_out() == 0) return nullptr;
  const Guard guard(shard());
  Ticket* const ticket = find(id);
  if (ticket == nullptr || !ticket->file->alive || ticket->file->ending) return nullptr;
  if (!ticket->file->references.add(objects->memory, shard().family().slot())) return nullptr;
  ticket->taken = true;
  return ticket->file;
}

void adopt_taken(File& file, int fd) {
  Guard guard(shard());
  if (!file.alive || file.ending) return;
  if (file.kind == FileKind::kEpoll) note_set_number(file, fd);
  if (file.dual) watch_kernel_half(file, fd);
  if (file.kind != FileKind::kEpoll) calls_of(file).adopt(socket_of(file));
}

std::uint32_t tickets_out() {
  return objects == nullptr ? 0 : objects->tickets_out.load();
}

void settle_tickets() {
  os::UnixDiag diag;
  const std::uint64_t network = diag.network();
  bool steered = false;
  for (std::size_t from = 0; network != 0 && tickets_out() != 0;) {
    Batch batch = next_batch(network, from);
    if (batch.count == 0) break;
    const std::span<Batch::One> tickets = std::span(batch.tickets).first(batch.count);
    const auto is_there = [&](const Batch::One& one) { return !diag.is_gone(one.id); };
    const auto kept =
        static_cast<std::size_t>(std::partition(tickets.begin(), tickets.end(), is_there) - tickets.begin());
    from += kept;
    if (kept == batch.count) continue;
    Guard guard(shard());
    for (const Batch::One& one : tickets.subspan(kept)) {
      Ticket* const ticket = objects->tickets.get(one.place);
      if (ticket == nullptr) continue;
      steered = steered || is_steered(*ticket->file);
      end_ticket(guard, *ticket);
    }
  }
  if (steered) shard().await_steering();
}

void settle_ticket(const os::UnixSocketId& id) {
  os::UnixDiag diag;
  if (tickets_out() == 0 || diag.network() != id.network || !diag.is_gone(id)) return;
  bool steered = false;
  {
    Guard guard(shard());
    Ticket* const ticket = find(id);
    if (ticket == nullptr) return;
    steered = is_steered(*ticket->file);
    end_ticket(guard, *ticket);
  }
  if (steered) shard().await_steering();
}

void settle_if_taken(const os::UnixSocketId& id) {
  {
    const Guard guard(shard());
    const Ticket* const ticket = find(id);
    if (ticket == nullptr || !ticket->taken) return;
  }
  settle_ticket(id);
}

void forget_tickets(Guard& guard) {
  if (objects == nullptr) return;
  objects->tickets.for_each([&](Ticket& ticket) { end_ticket(guard, ticket); });
}

// A ticket may have been made without its reference, or the other way round.
void recount_tickets() {
  const auto recount = [](File& file) {
    std::uint32_t wanted = 0;
    objects->tickets.for_each([&](const Ticket& ticket) { wanted += ticket.file == &file ? 1U : 0U; });
    while (file.references.of(kTicketSlot) > wanted) file.references.remove(objects->memory, kTicketSlot);
    if (const std::uint32_t has = file.references.of(kTicketSlot); has < wanted)
      (void)file.references.add(objects->memory, kTicketSlot, wanted - has);
  };
  objects->tickets.for_each([](Ticket& ticket) {
    if (!objects->sockets.lives(ticket.file) && !objects->epolls.lives(ticket.file)) objects->tickets.free(&ticket);
  });
  count_tickets();
  objects->sockets.for_each(recount);
  objects->epolls.for_each(recount);
}

}  // namespace bypass::socket
