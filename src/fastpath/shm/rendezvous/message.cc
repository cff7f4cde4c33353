#include "fastpath/shm/rendezvous/message.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "fastpath/shm/rendezvous/connection.h"

namespace bypass::fastpath::shm {

namespace {

// The messages of every version begin with these fields.
constexpr std::size_t kPrefix = offsetof(Message, kind);

bool has_sense(const Message& message) {
  const auto kind = static_cast<std::uint16_t>(message.kind);
  const auto reason = static_cast<std::uint8_t>(message.reason);
  const bool refused = message.kind == MessageKind::kRefused;
  const auto is_zero = [](std::uint8_t b) { return b == 0; };
  const bool names_end = message.kind == MessageKind::kWelcome || message.kind == MessageKind::kProof;
  return kind >= 1 && kind <= static_cast<std::uint16_t>(MessageKind::kRefused) && reason <= kMostRefusal &&
         refused == (message.reason != Refusal::kNone) &&
         (names_end || (message.number == -1 && message.interface == 0)) &&
         std::all_of(std::begin(message.reserved), std::end(message.reserved), is_zero) &&
         std::all_of(std::begin(message.reserved_too), std::end(message.reserved_too), is_zero);
}

}  // namespace

Outcome<Message> parse_message(std::span<const std::byte> packet) {
  Message message;
  if (packet.size() < kPrefix) return Refusal::kBadMessage;
  std::memcpy(&message, packet.data(), std::min(packet.size(), sizeof message));
  if (message.magic != Message::kMagic || message.bytes != packet.size()) return Refusal::kBadMessage;
  if (message.version != Message::kVersion) return Refusal::kOtherVersion;
  if (packet.size() != sizeof message || !has_sense(message)) return Refusal::kBadMessage;
  return message;
}

Outcome<Message> message_in(std::span<const std::byte> room, const Channel::Received& received) {
  if (received.kind != Channel::Received::Kind::kPacket || received.cut) return Refusal::kBadMessage;
  return parse_message(room.first(received.bytes));
}

Channel::Sent say(Channel& channel, MessageKind kind, Refusal reason, int passed) {
  Message message;
  message.bytes = sizeof(Message);
  message.kind = kind;
  message.reason = reason;
  return channel.send(std::as_bytes(std::span(&message, 1)), passed);
}

Channel::Sent say_end(Channel& channel, MessageKind kind, int tcp) {
  Message message;
  message.bytes = sizeof(Message);
  message.kind = kind;
  message.number = tcp;
  message.interface = interface_of(tcp);
  return channel.send(std::as_bytes(std::span(&message, 1)));
}

}  // namespace bypass::fastpath::shm
