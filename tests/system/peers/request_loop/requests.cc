#include "requests.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>

#include "../../../../tools/bench.d/two_ends.h"

namespace request_loop {
namespace {

constexpr std::uint64_t kPatience = 5'000'000;  // ns before a request is sent again, as in eRPC
constexpr std::uint64_t kMostTries = 10'000;    // looks that find nothing, before another thread may have the processor

std::uint64_t now_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

/// Bytes behind a request's header: no two requests of a run have the same.
void write_question(const Header& header, std::span<std::byte> body) {
  std::uint64_t state = header.number * 0x9E3779B97F4A7C15 + (std::uint64_t{header.session} << 32 | header.slot);
  for (std::size_t at = 0; at < body.size(); at += sizeof state) {
    state = state * 6364136223846793005 + 1442695040888963407;
    std::memcpy(&body[at], &state, std::min(sizeof state, body.size() - at));
  }
}

/// The work that a request asks for.
void make_answer(std::span<std::byte> body) {
  for (std::byte& byte : body) byte = static_cast<std::byte>(3 * static_cast<unsigned>(byte) + 1);
}

std::optional<Header> header_of(std::span<const std::byte> packet, const Shape& shape) {
  Header header;
  if (packet.size() != shape.size) return {};
  std::memcpy(&header, packet.data(), sizeof header);
  if (header.session >= shape.sessions || header.slot >= shape.window || header.number == 0) return {};
  return header;
}

std::uint32_t place_of(const Header& header, const Shape& shape) {
  return header.session * shape.window + header.slot;
}

/// Sessions are spread over the endpoints of both ends.
unsigned client_endpoint(std::uint32_t session, const Shape& shape) {
  return session % shape.endpoints;
}
unsigned server_endpoint(std::uint32_t session, const Shape& shape) {
  return session / shape.endpoints % shape.endpoints;
}

}  // namespace

// --- The client

Client::Client(Transport& transport, const Shape& shape)
    : transport_(transport), shape_(shape), slots_(std::size_t{shape.sessions} * shape.window), packet_(shape.size) {
  us.reserve(shape.count);
}

void Client::run() {
  for (std::uint32_t place = 0; place < slots_.size(); place++) ask(place, now_ns());
  std::uint64_t late_at = now_ns() + kPatience;
  for (std::uint64_t in_vain = 0; us.size() < shape_.count;) {
    transport_.flush();
    const auto packets = transport_.receive();
    const std::uint64_t now = now_ns();
    for (const auto packet : packets) take(packet, now);
    if (now >= late_at) {
      send_late_ones_again(now);
      late_at = now + kPatience / 4;
    }
    in_vain = packets.empty() ? in_vain + 1 : 0;
    if (in_vain > kMostTries) sched_yield();
  }
}

void Client::ask(std::uint32_t place, std::uint64_t now) {
  if (asked_ == shape_.count) return;
  asked_++;
  Slot& slot = slots_[place];
  slot.number++;
  slot.is_waiting = true;
  slot.begun_ns = now;
  send(place, now);
}

void Client::send(std::uint32_t place, std::uint64_t now) {
  Slot& slot = slots_[place];
  slot.sent_ns = now;
  const Header header{place / shape_.window, place % shape_.window, slot.number};
  std::memcpy(packet_.data(), &header, sizeof header);
  write_question(header, std::span(packet_).subspan(sizeof header));
  transport_.send(client_endpoint(header.session, shape_), server_endpoint(header.session, shape_), packet_);
}

void Client::take(std::span<const std::byte> packet, std::uint64_t now) {
  const auto header = header_of(packet, shape_);
  if (!header) bypass::bench::die("an answer of no request");
  const std::uint32_t place = place_of(*header, shape_);
  Slot& slot = slots_[place];
  if (header->number > slot.number) bypass::bench::die("an answer before its request");
  if (header->number != slot.number || !slot.is_waiting) return;  // a second answer: it was asked again
  const auto body = std::span(packet_).subspan(sizeof *header);
  write_question(*header, body);
  make_answer(body);
  if (std::memcmp(body.data(), &packet[sizeof *header], body.size()) != 0)
    bypass::bench::die("a wrong answer to request " + std::to_string(slot.number));
  slot.is_waiting = false;
  us.push_back(static_cast<double>(now - slot.begun_ns) * 1e-3);
  ask(place, now);
}

void Client::send_late_ones_again(std::uint64_t now) {
  for (std::uint32_t place = 0; place < slots_.size(); place++) {
    if (!slots_[place].is_waiting || now < slots_[place].sent_ns + kPatience) continue;
    sent_again++;
    send(place, now);
  }
}

// --- The server

Server::Server(Transport& transport, const Shape& shape)
    : transport_(transport), shape_(shape), slots_(std::size_t{shape.sessions} * shape.window) {}

bool Server::serve() {
  const auto packets = transport_.receive();
  for (const auto packet : packets) take(packet);
  transport_.flush();
  return !packets.empty();
}

bool Server::loses() {
  if (shape_.lose == 0 || ++packets_ % shape_.lose != 0) return false;
  totals.lost++;
  return true;
}

void Server::take(std::span<const std::byte> packet) {
  const auto header = header_of(packet, shape_);
  if (!header) {
    totals.malformed++;
    return;
  }
  if (loses()) return;  // the question
  Slot& slot = slots_[place_of(*header, shape_)];
  if (header->number == slot.number + 1) {
    slot.number++;
    slot.answer.assign(packet.begin(), packet.end());
    make_answer(std::span(slot.answer).subspan(sizeof *header));
    totals.run++;
  }
  if (header->number != slot.number || loses()) return;  // an old question that comes late, or the answer gets lost
  transport_.send(server_endpoint(header->session, shape_), client_endpoint(header->session, shape_), slot.answer);
}

}  // namespace request_loop
