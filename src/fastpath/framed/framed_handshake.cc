// Framed: the option in SYN and SYN-ACK, and how each direction is found to be framed or plain.
// Tests: tests/fastpath/handshake_test.cc.
#include <array>
#include <new>

#include "fastpath/framed/framed.h"
#include "stack/tcp/input/options.h"
#include "stack/tcp/state.h"

namespace bypass::fastpath {

using tcp::Tcb;

// The option goes into the client's SYN, and into a SYN-ACK that answers a SYN with the option, and into no other
// segment.
std::size_t FramedTcp::add_option(Tcb& tcb, bool syn_ack, unsigned attempt, std::span<std::byte> room) {
  const bool passive = tcb.has(tcp::kPassive);
  if (passive != syn_ack || attempt >= kSynAttempts) return 0;
  if (passive) {
    auto* server = has(tcb) ? std::get_if<ServerHandshake>(&of(tcb).handshake) : nullptr;
    return server != nullptr ? server->write_syn_ack(room) : 0;
  }
  return links_.wanted(tcb, nullptr) ? ClientHandshake(config_.handshake).write_syn(attempt, room) : 0;
}

void FramedTcp::see_option(Tcb& tcb, bool syn_ack, const SynOption& option) {
  if (tcb.has(tcp::kPassive) == syn_ack || has(tcb)) return;
  tcb.peer_said = links_.note_of(option);
  if (!links_.wanted(tcb, &option)) return;
  std::array<std::byte, tcp::kMaxOptionBytes> scratch;
  ClientHandshake client(config_.handshake);
  ServerHandshake server(config_.handshake);
  if (syn_ack) {
    client.write_syn(0, scratch);  // as add_option() has sent it
    client.on_syn_ack(option);
    if (!client.armed()) return;
  } else {
    server.on_syn(option);
    if (server.write_syn_ack(scratch) == 0) return;
  }
  void* place = tcp::create_overlay(engine_, tcb, sizeof(Framed));
  if (place == nullptr) return;  // no memory: the connection is plain TCP
  auto* framed = new (place) Framed({.opens = syn_ack, .tcp_window = config_.tcp_window});
  if (syn_ack) {
    framed->handshake = client;
  } else {
    framed->handshake = server;
  }
}

void FramedTcp::established(Context& ctx, Tcb& tcb, bool bare) {
  Framed& framed = of(tcb);
  if (auto* client = std::get_if<ClientHandshake>(&framed.handshake)) {
    const auto first = client->first_bytes();
    if (!tcp::prepare_record(engine_, tcb, static_cast<std::uint32_t>(first->size())))
      return tcp::drop_overlay(engine_, ctx, tcb);  // the server finds a plain client
    tcp::append_record(tcb, *first, 0, 0, true);
    framed.sending = Framed::Mode::kFramed;
    return;
  }
  auto& server = std::get<ServerHandshake>(framed.handshake);
  if (!bare) return;
  server.on_established(ctx.now, {});
  framed.sending = Framed::Mode::kRaw;
}

/// Decides by the first bytes of the peer's direction. False: the overlay is gone.
bool FramedTcp::decide(Context& ctx, Tcb& tcb, Framed& framed) {
  if (framed.receiving == Framed::Mode::kUndecided) {
    auto* client = std::get_if<ClientHandshake>(&framed.handshake);
    auto* server = std::get_if<ServerHandshake>(&framed.handshake);
    Sniffer& reader = client != nullptr ? client->reader() : server->reader();
    std::array<std::byte, sizeof(Magic)> first;
    const auto bytes = std::span(first).first(tcp::first_bytes(tcb, first));
    reader.look(ctx.now, bytes);
    reader.on_timeout(ctx.now);
    if (tcp::peer_has_ended(tcb)) reader.on_end();
    if (server != nullptr) server->on_timeout(ctx.now);  // the server's own direction follows
    if (reader.framing() == Framing::kFramed) {
      framed.receiving = Framed::Mode::kFramed;
      framed.magic_left = sizeof(Magic);
    } else if (reader.framing() == Framing::kPlain) {
      framed.receiving = Framed::Mode::kRaw;
      framed.revert_owed = client != nullptr;
    }
  }
  if (framed.sending == Framed::Mode::kUndecided) decide_sending(ctx, tcb, framed);
  const bool plain = framed.receiving == Framed::Mode::kRaw && framed.sending != Framed::Mode::kFramed &&
                     std::holds_alternative<ServerHandshake>(framed.handshake) && framed.heard == 0 &&
                     tcb.overlay->map.end() == framed.raw_next && framed.magic_left == 0;
  if (!plain) return true;
  const bool shut = framed.shut, shut_receive = framed.shut_receive;
  if (framed.closed && tcb.rx_bytes != 0) {  // RFC 2525 §2.17
    framed.lane.abort();
    return true;
  }
  if (tcb.rx_bytes != 0) tcp::end_deferral(engine_, ctx, tcb);
  tcp::drop_overlay(engine_, ctx, tcb);
  if (shut_receive) engine_.shutdown_receive(ctx, tcb);
  if (shut) tcp::send_fin(engine_, ctx, tcb);
  return false;
}

/// Decides the server's own direction, if it had to wait for the client's first bytes.
void FramedTcp::decide_sending(Context&, Tcb& tcb, Framed& framed) {
  const auto& server = std::get<ServerHandshake>(framed.handshake);
  if (server.writer() == Framing::kPlain) {
    framed.sending = Framed::Mode::kRaw;
  } else if (server.writer() == Framing::kFramed && prepare(tcb, framed, sizeof(Magic))) {
    tcp::append_record(tcb, server.first_bytes(), 0, 0, true);
    framed.sending = Framed::Mode::kFramed;
  }
}

}  // namespace bypass::fastpath
