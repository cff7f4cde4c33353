// The program of a Fuzzer. It makes every call that tcp::Engine has.
#include <algorithm>

#include "stack/stateful/fuzzer.h"

namespace bypass::test {
namespace {

constexpr std::size_t kSockets = 24;

}  // namespace

tcp::Options Fuzzer::options() {
  tcp::Options o;
  o.no_delay = chance(0.5);
  o.cork = chance(0.2);
  o.quick_ack = chance(0.3);
  o.keep_alive = chance(0.4);
  o.keep_count = static_cast<std::uint8_t>(1 + below(4));
  o.keep_idle_s = static_cast<std::uint16_t>(1 + below(60));
  o.keep_interval_s = static_cast<std::uint16_t>(1 + below(20));
  o.syn_retries = static_cast<std::uint8_t>(below(4));
  o.tos = static_cast<std::uint8_t>(random_.next());
  o.sharing = static_cast<std::uint8_t>(below(4));
  if (chance(0.3)) o.congestion = tcp::Congestion::kNewReno;
  if (chance(0.2)) o.defer_accept_s = static_cast<std::uint16_t>(1 + below(5));
  if (chance(0.3)) o.linger2_s = static_cast<std::int16_t>(static_cast<std::int64_t>(below(20)) - 3);
  if (chance(0.2)) o.max_segment = static_cast<std::uint16_t>(below(2000));
  if (chance(0.2)) o.user_timeout_ms = static_cast<std::uint32_t>(below(60'000));
  if (chance(0.2)) o.send_buffer = 2304U << below(6);
  if (chance(0.2)) o.receive_buffer = 1152U << below(6);
  if (chance(0.2)) o.not_sent_low_water = 1 + static_cast<std::uint32_t>(below(20'000));
  return o;
}

void Fuzzer::call() {
  ctx().now = now_;
  const std::uint64_t kind = below(100);
  if (sockets_.empty() || kind < 8) {
    open_socket();
  } else if (kind < 16) {
    accept();
  } else if (kind < 20) {
    change_listeners();
  } else if (kind < 24) {
    call_of_engine();
  } else {
    const std::size_t at = below(sockets_.size());
    call_of_socket(sockets_[at]);
    std::erase_if(sockets_, [](const Socket& socket) { return socket.tcb == nullptr; });
  }
}

void Fuzzer::take(tcp::Tcb& tcb) {
  know(tcb);
  sockets_.push_back({&tcb, {}});
}

void Fuzzer::open_socket() {
  note("connect");
  if (sockets_.size() >= kSockets) return;
  const Endpoint local{chance(0.5) ? host_.address() : IpAddress{},
                       static_cast<std::uint16_t>(chance(0.5)   ? 0
                                                  : chance(0.5) ? 80
                                                                : 5000 + below(4))};
  const Endpoint remote{
      IpAddress::from_v4(host_.address().v4() + static_cast<std::uint32_t>(chance(0.95) ? 1 + below(3) : below(300))),
      static_cast<std::uint16_t>(1000 + below(4))};
  const auto tcb = engine().connect(ctx(), local, remote, options(), &sockets_);
  if (tcb.ok()) take(**tcb);
}

void Fuzzer::accept() {
  note("accept");
  if (listeners_.empty()) return change_listeners();
  if (sockets_.size() >= kSockets) return;
  const auto tcb = engine().accept(ctx(), *listeners_[below(listeners_.size())], &sockets_);
  if (tcb.ok()) take(**tcb);
}

void Fuzzer::change_listeners() {
  note("listeners");
  if (!listeners_.empty() && chance(0.3)) {
    const std::size_t at = below(listeners_.size());
    if (chance(0.5)) return engine().set_backlog(*listeners_[at], static_cast<unsigned>(below(5)));
    engine().close_listener(ctx(), *listeners_[at]);
    listeners_.erase(listeners_.begin() + static_cast<std::ptrdiff_t>(at));
    return;
  }
  const Endpoint local{chance(0.3) ? host_.address() : IpAddress{}, static_cast<std::uint16_t>(80 + below(2))};
  const auto listener = engine().listen(local, static_cast<unsigned>(below(5)), options(), &sockets_, chance(0.5));
  if (listener.ok()) listeners_.push_back(*listener);
}

void Fuzzer::reserve(Socket& socket) {
  const auto room = engine().reserve(*socket.tcb, 1 + below(chance(0.8) ? 2000 : 200'000));
  if (room.ok()) socket.room = *room;
}

void Fuzzer::commit(Socket& socket) {
  const std::size_t bytes = chance(0.8) ? socket.room->size() : below(socket.room->size() + 1);
  const bool alive = engine().state(*socket.tcb) != tcp::State::kClosed;
  std::uint64_t offset = socket.tcb->ring.end();
  for (const auto& part : socket.room->part)
    if (alive) std::ranges::generate(part, [&] { return host_byte(offset++); });
  socket.room.reset();
  engine().commit(ctx(), *socket.tcb, bytes, chance(0.2));
}

void Fuzzer::read(Socket& socket) {
  tcp::Tcb& tcb = *socket.tcb;
  const std::size_t there = engine().readable(tcb);
  const std::size_t want = chance(0.5) ? there : below(there + 1);
  std::array<std::span<const std::byte>, 8> parts;
  const std::size_t count = engine().peek(tcb, parts, want);
  const std::uint32_t fin = tcb.has(tcp::kFinReceived) ? 1 : 0;
  std::uint32_t seq = (tcb.rcv_nxt - fin - static_cast<std::uint32_t>(there)).v;
  std::size_t got = 0;
  for (const auto& part : std::span{parts}.first(count)) {
    for (const std::byte b : part)
      if (b != peer_byte(seq++)) return fail("what is read is not what was sent");
    got += part.size();
  }
  if (there != 0 && want != 0 && got == 0) fail("there are bytes, and none to be seen");
  engine().consume(ctx(), tcb, std::min(got, want));
}

void Fuzzer::close(Socket& socket, bool abort) {
  if (socket.room) commit(socket);
  if (abort) {
    engine().abort(ctx(), *socket.tcb);
  } else {
    engine().close(ctx(), *socket.tcb);
  }
  socket.tcb = nullptr;
}

void Fuzzer::call_of_socket(Socket& socket) {
  tcp::Tcb& tcb = *socket.tcb;
  const std::uint64_t kind = below(100);
  if (kind < 30) {
    note("write");
    if (!socket.room) reserve(socket);
    if (socket.room && chance(0.8)) commit(socket);
  } else if (kind < 55) {
    note("read");
    read(socket);
  } else if (kind < 70) {
    note("set_options");
    engine().set_options(ctx(), tcb, options());
  } else if (kind < 76) {
    note("shutdown_send");
    engine().shutdown_send(ctx(), tcb);
  } else if (kind < 79) {
    note("shutdown_receive");
    engine().shutdown_receive(ctx(), tcb);
  } else if (kind < 86) {
    note("close");
    close(socket, false);
  } else if (kind < 88) {
    note("abort");
    close(socket, true);
  } else if (kind < 92) {
    note("push");
    engine().push(ctx(), tcb);
  } else if (kind < 96) {
    note("take_error");
    engine().take_error(tcb);
  } else {
    note("look");
    engine().want_room(ctx(), tcb);
    (void)engine().info(tcb);
    (void)engine().send_room(tcb);
    (void)engine().writable_room(tcb);
    (void)engine().unacknowledged(tcb);
    (void)engine().arrival_of(tcb, below(1000));
    (void)engine().at_eof(tcb);
  }
}

void Fuzzer::call_of_engine() {
  note("engine");
  switch (below(9)) {
    case 0:
      return host_.stack().on_link_up(ctx(), 0);
    case 1: {
      const IpAddress peers[] = {ip("10.9.0.2"), ip("10.9.0.3")};
      return engine().on_announced(ctx(), peers);
    }
    case 2:
      return engine().on_mtu(ctx(), 0, 1500, static_cast<std::uint32_t>(chance(0.5) ? 1500 : 576 + below(900)));
    case 3:
      if (chance(0.2)) engine().abort_orphans(ctx());
      return;
    case 4:
      (void)engine().choose_endpoint(ctx(), {}, {ip("10.9.0.2"), 1000});
      return;
    case 5:
      (void)engine().port_in_use({{}, static_cast<std::uint16_t>(80 + below(2))}, static_cast<std::uint8_t>(below(4)));
      (void)engine().has_connections();
      return;
    case 6:
      (void)engine().orphans();
      return engine().for_each_unowned(
          8, [](void*, const tcp::Engine::Unowned&) {}, nullptr);
    case 7:
      host_.stack().move_frames_to_arena(ctx());
      return;
    default:
      return engine().steer_all(ctx());
  }
}

}  // namespace bypass::test
