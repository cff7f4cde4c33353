#include "socket/path_calls.h"

#include "os/errno_map.h"
#include "socket/family/pumped.h"
#include "socket/options/options.h"
#include "socket/shared/local_path.h"
#include "socket/stream/path_streams.h"
#include "socket/stream/stream_calls.h"

namespace bypass::socket {

namespace {

void push(Guard& guard, Socket& socket, bool pushes) {
  if (pushes && connection_of(socket) != nullptr) stream::push(guard.context(), *socket.tcb);
}

std::optional<long> ask_kernel(Socket&, int, unsigned long) {
  return std::nullopt;
}

bool has_nothing(File& file) {
  return !has_kernel_half(file) && (poll_bits(file) & kIn) == 0;
}

/// The row of the stack's connections. Other paths use its entries where they have none of their own.
constexpr PathCalls kWire{
    .on_wire = true,
    .receive = receive_on_wire,
    .send = send_on_wire,
    .send_file = send_file_on_wire,
    .shutdown = shutdown_on_wire,
    .number = number_on_wire,
    .bits = bits_on_wire,
    .is_known_empty = has_nothing,
    .is_looked_at = [](const Socket&) { return true; },
    .add_sleeper = [](Socket&) {},
    .note_cork = push,
    .note_buffers = [](Guard&, Socket&, int) {},
    .add_to_tcp_info = [](Socket&, std::span<std::byte>) {},
    .told_error = [](Socket&, int) {},
    .adopt = [](Socket&) {},
    .number_goes = [](Socket&, int) {},
    .forget = local_forget,
    .leave = [](Guard&, Socket&) {},
    .end = [](Guard&, Socket& socket) { local_forget(socket); },
};

constexpr PathCalls undecided() {
  PathCalls calls = kWire;
  calls.on_wire = false;
  calls.receive = receive_unconnected;
  calls.send = send_unconnected;
  calls.send_file = send_file_unconnected;
  calls.shutdown = shutdown_unconnected;
  calls.number = ask_kernel;
  calls.is_looked_at = [](const Socket&) { return false; };
  return calls;
}

constexpr PathCalls dual() {
  PathCalls calls = kWire;
  calls.send_file = send_file_unconnected;
  calls.number = ask_kernel;
  return calls;
}

constexpr PathCalls kLocalCalls{
    .in_kernel = true,
    .receive = local_receive,
    .send = local_send,
    .send_file = local_send_file,
    .shutdown = local_shutdown,
    .number = local_number,
    .bits = local_bits,
    .is_known_empty = [](File& file) { return local_is_quiet(socket_of(file)); },
    .is_looked_at = is_paired,
    .add_sleeper = local_is_waited_for,
    .note_cork = [](Guard&, Socket& socket, bool pushes) { local_note_cork(socket, pushes); },
    .note_buffers = local_note_buffers,
    .add_to_tcp_info = add_ring_to_tcp_info,
    .told_error = local_told_error,
    .adopt = local_adopt,
    .number_goes = local_number_goes,
    .forget = local_forget,
    .leave = local_leave,
    .end = local_end,
};

/// The row of a socket that an earlier call has given up, while its number is still known.
constexpr PathCalls given_up() {
  PathCalls calls = dual();
  calls.receive = receive_unconnected;
  calls.send = send_unconnected;
  calls.send_file = send_file_in_kernel;
  calls.shutdown = shutdown_in_kernel;
  return calls;
}

/// Reached by a call that has begun before the connection moved; it is made once more, on the kernel's socket.
constexpr PathCalls pumped() {
  PathCalls calls = undecided();
  calls.receive = [](Socket&, int, Message&, int) { return kMoved; };
  calls.send = [](Socket&, int, const Message&, int, bool&) { return kMoved; };
  calls.send_file = [](Socket&, int, int, off_t*, std::size_t, bool&) { return kMoved; };
  calls.shutdown = [](Socket&, int, int) { return kMoved; };
  calls.bits = pumped_bits;
  calls.is_looked_at = [](const Socket&) { return true; };
  calls.end = [](Guard&, Socket&) {};
  return calls;
}

constexpr std::array<PathCalls, kPaths> rows() {
  std::array<PathCalls, kPaths> rows{};
  rows[static_cast<std::size_t>(Path::kUndecided)] = undecided();
  rows[static_cast<std::size_t>(Path::kBypass)] = kWire;
  rows[static_cast<std::size_t>(Path::kDual)] = dual();
  rows[static_cast<std::size_t>(Path::kLocal)] = kLocalCalls;
  rows[static_cast<std::size_t>(Path::kKernel)] = given_up();
  rows[static_cast<std::size_t>(Path::kPumped)] = pumped();
  return rows;
}

}  // namespace

constexpr std::array<PathCalls, kPaths> path_calls = rows();

}  // namespace bypass::socket
