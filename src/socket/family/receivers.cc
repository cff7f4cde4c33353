#include "socket/family/receivers.h"

#include "socket/objects.h"

namespace bypass::socket {

namespace {

constexpr unsigned kSlotBits = 11;
constexpr std::uint32_t kSlotMask = (1U << kSlotBits) - 1;
static_assert(kMaxProcesses <= kSlotMask);

/// Names a process in 32 bits, with the low bits of its slot's incarnation.
std::uint32_t name_of(std::uint32_t slot, std::uint32_t incarnation) {
  return incarnation << kSlotBits | (slot + 1);
}

std::uint32_t slot_in(std::uint32_t name) {
  return (name & kSlotMask) - 1;
}

bool has_it(const Socket& socket, std::uint32_t user) {
  const std::uint32_t slot = slot_in(user);
  return user != 0 && socket.references.of(slot) != 0 && user == name_of(slot, shard().family().incarnation_of(slot));
}

void note(const Socket& socket, std::uint32_t Details::*user) {
  const Family& family = shard().family();
  if (socket.details == nullptr || has_it(socket, socket.details->*user)) return;
  socket.details->*user = name_of(family.slot(), family.incarnation());
}

bool is_another(const Socket& socket, std::uint32_t user) {
  const Family& family = shard().family();
  const std::uint32_t slot = slot_in(user);
  return has_it(socket, user) && slot != family.slot() && family.alive(slot, family.incarnation_of(slot));
}

}  // namespace

void note_receiver(Socket& socket) {
  note(socket, &Details::receiver);
}

void note_poller(Socket& socket) {
  note(socket, &Details::poller);
}

bool has_other_receiver(const Socket& socket) {
  return socket.details != nullptr && is_another(socket, socket.details->receiver);
}

bool has_other_poller(const Socket& socket) {
  return socket.details != nullptr && is_another(socket, socket.details->poller);
}

bool has_use_of_wire() {
  const Guard guard(shard());
  if (objects == nullptr) return false;
  const std::uint32_t slot = shard().family().slot();
  return objects->sockets.any_of([slot](const Socket& socket) {
    if (!is_on_wire(socket) || socket.references.of(slot) == 0) return false;
    return !has_other_receiver(socket);
  });
}

bool has_source_on_wire() {
  const Guard guard(shard());
  if (objects == nullptr) return false;
  const std::uint32_t slot = shard().family().slot();
  return objects->sockets.any_of([slot](const Socket& socket) {
    const bool is_source = socket.kind == FileKind::kListener || socket.kind == FileKind::kDatagram;
    return is_source && is_on_wire(socket) && socket.references.of(slot) != 0;
  });
}

void forget_receivers() {
  if (objects != nullptr) objects->details.for_each([](Details& details) { details.receiver = details.poller = 0; });
}

bool is_any_used(const Guard& /*guard*/) {
  return objects != nullptr && objects->sockets.any_of([](const Socket& socket) {
    if (!is_on_wire(socket)) return false;
    if (socket.details == nullptr) return true;  // it is a connection that was accepted
    return socket.items != nullptr || socket.details->receiver != 0 || socket.details->poller != 0;
  });
}

void reset_waiting(Guard& guard) {
  if (objects == nullptr) return;
  objects->sockets.for_each([&](Socket& socket) {
    tcp::Listener* const listener = socket.alive ? listener_of(socket) : nullptr;
    while (listener != nullptr && tcp_engine().accept_queue_length(*listener) != 0) {
      const auto waiting = tcp_engine().accept(guard.context(), *listener, nullptr);
      if (!waiting.ok()) break;
      tcp_engine().abort(guard.context(), **waiting);
    }
  });
}

}  // namespace bypass::socket
