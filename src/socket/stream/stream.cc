// What poll(2) reports for a TCP socket of the stack, and how it ends: shutdown(2), SO_LINGER, the remaining error.
#include <netinet/in.h>

#include "socket/stream/path_streams.h"
#include "socket/stream/stream_calls.h"
#include "socket/stream/zerocopy.h"
#include "socket/wait/socket_wait.h"
#include "stack/tcp/tcb.h"

namespace bypass::socket {

namespace {

using tcp::State;

bool handshaking(State state) {
  return state == State::kSynSent || state == State::kSynReceived;
}

// If there is too little room, the engine posts an event once there is enough.
bool has_send_room(tcp::Tcb& tcb) {
  if (tcp::is_writeable(stream::send_room(tcb), tcp_engine().unacknowledged(tcb))) return true;
  tcp_engine().want_room(shard().context(), tcb);
  auto* const f = stream::framed(tcb);
  return f != nullptr && f->want_room(shard().context(), tcb);
}

class Flushing final : public SocketCondition {
 public:
  explicit Flushing(Socket& socket) : SocketCondition(socket, kEverything) {}
  long attempt(Guard&) override {
    if (connection_of(socket_) == nullptr) return 0;
    return stream::delivering(*socket_.tcb) ? again() : 0;
  }
};

}  // namespace

// tcp_poll() of Linux, line by line.
std::uint32_t bits_on_wire(const Socket& socket) {
  if (connection_of(socket) == nullptr)
    return kOut | kHangUp | (socket.has(kShutReceive) ? kIn | kPeerShut : 0U) |
           (socket.pending_error != 0 || has_copies(socket) ? kError : 0U);
  tcp::Engine& engine = tcp_engine();
  const State state = engine.state(*socket.tcb);
  const bool closed = state == State::kClosed;
  const bool receive_ended = closed || socket.has(kShutReceive) || stream::peer_has_ended(*socket.tcb);
  const bool send_ended = closed || socket.has(kShutSend);
  std::uint32_t bits = 0;
  if (closed || (receive_ended && send_ended)) bits |= kHangUp;
  if (receive_ended) bits |= kIn | kPeerShut;
  if (!handshaking(state)) {
    if (stream::has_low_water(*socket.tcb, stream::readable(*socket.tcb), socket.low_water)) bits |= kIn;
    if (send_ended || has_send_room(*socket.tcb)) bits |= kOut;
  }
  if (engine.error(*socket.tcb) != Error::kNone || socket.pending_error != 0 || has_copies(socket)) bits |= kError;
  return bits;
}

void dissolve(Context& ctx, Socket& socket) {
  const State state = stream::state(*socket.tcb);
  const bool only_unacknowledged =
      (state == State::kClosing || state == State::kLastAck) && tcp_engine().info(*socket.tcb).unsent == 0;
  const Error told = tcp_engine().error(*socket.tcb);
  const Error left = stream::is_over(*socket.tcb) || only_unacknowledged ? told : Error::kReset;
  if (left != Error::kNone) socket.pending_error = static_cast<std::uint8_t>(option_error(left));
  stream::abort(ctx, *socket.tcb);
  socket.tcb = nullptr;
  socket.progress = Progress::kNone;
}

bool has_left_error(const Socket& socket) {
  const Guard guard(shard());
  return socket.pending_error != 0;
}

long take_left_error(Socket& socket) {
  if (socket.path != Path::kUndecided) return 0;
  Guard guard(shard());
  return take_pending_error(socket);
}

// Returns ENOTCONN, but still marks the socket shut, and waiters wake (inet_shutdown).
long shutdown_unconnected(Socket& socket, int fd, int how) {
  const long r = kernel_result(kernel->shutdown(fd, how));
  Guard guard(shard());
  if (socket.path != Path::kUndecided || socket.kind != FileKind::kStream) return r;
  if (how != SHUT_RD) socket.set(kShutSend);
  if (how != SHUT_WR) socket.set(kShutReceive);
  signal(socket, kEverything);
  return r;
}

long shutdown_in_kernel(Socket&, int fd, int how) {
  return kernel_result(kernel->shutdown(fd, how));
}

long shutdown_on_wire(Socket& socket, int, int how) {
  Guard guard(shard());
  look_before_asking(guard);
  if (connection_of(socket) == nullptr) return socket.path == Path::kPumped ? kMoved : failure(Error::kNotConnected);
  Context& ctx = guard.context();
  const bool over = stream::is_over(*socket.tcb);
  if (tcp_engine().state(*socket.tcb) == State::kSynSent) {  // inet_shutdown: this ends the attempt
    dissolve(ctx, socket);
    socket.path = Path::kUndecided;
  } else {
    // inet_shutdown: the attempt has ended, and connect() has nothing more to report.
    if (socket.progress == Progress::kConnecting && !over && !handshaking(tcp_engine().state(*socket.tcb)))
      socket.progress = Progress::kConnected;
    if (how != SHUT_RD) socket.set(kShutSend);
    if (how != SHUT_WR) socket.set(kShutReceive);
    if (how != SHUT_RD && !over) stream::shutdown_send(ctx, *socket.tcb);
    if (how != SHUT_WR && !over) stream::shutdown_receive(ctx, *socket.tcb);
  }
  signal(socket, kEverything);
  return over ? failure(Error::kNotConnected) : 0;
}

void linger(Socket& socket) {
  Flushing flushing(socket);
  Patience patience;
  {
    Guard guard(shard());
    if (socket.tcb == nullptr || stream::readable(*socket.tcb) != 0) return;  // RST, nothing to wait for
    stream::shutdown_send(guard.context(), *socket.tcb);
    socket.set(kShutSend);
    patience.deadline = guard.context().now + std::chrono::seconds(socket.linger_s);
  }
  wait(flushing, patience);
}

}  // namespace bypass::socket
