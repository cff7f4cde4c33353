// What two libbypass processes of one host send each other before they share memory. A message is one packet of fixed
// size. Both processes run on one machine, so numbers are in its byte order.
//
//   guest (connected)        host (bound the name)
//                     <──    kWelcome    same user; the descriptor number of the host's end of the connection
//   kProof              ──>              the number of the guest's end; from now on the guest takes a descriptor
//                     <──    kProof      agreed; no number
//                     <──    kSegment + memfd
//   kReady              ──>
//
// kRefused, with the reason, may take the place of any message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "fastpath/shm/refusal.h"
#include "fastpath/shm/rendezvous/channel.h"

namespace bypass::fastpath::shm {

enum class MessageKind : std::uint16_t { kWelcome = 1, kProof = 2, kSegment = 3, kReady = 4, kRefused = 5 };

/// The first three fields are the same in every version.
struct Message {
  static constexpr std::uint64_t kMagic = 0x316c'7373'6170'7962U;  // "bypassl1"
  static constexpr std::uint16_t kVersion = 4;

  std::uint64_t magic = kMagic;
  std::uint16_t version = kVersion;
  std::uint16_t bytes = 0;  // size of the message
  MessageKind kind = MessageKind::kRefused;
  Refusal reason = Refusal::kNone;  // used by kRefused
  std::uint8_t reserved[1] = {};
  std::int32_t number = -1;  // used by kWelcome and the guest's kProof: the sender's end among the sender's descriptors
  std::uint32_t interface = 0;  // the interface that this end is bound to (SO_BINDTOIFINDEX)
  std::uint8_t reserved_too[8] = {};
};
static_assert(sizeof(Message) == 32);

/// Room for a message of this version; it is larger, to recognise that a message of another version is longer.
inline constexpr std::size_t kMessageRoom = 2 * sizeof(Message);

/// Reads a message from a packet. kOtherVersion: a message of another version. kBadMessage: anything else.
Outcome<Message> parse_message(std::span<const std::byte> packet);
/// Reads the message that was received into `room`.
Outcome<Message> message_in(std::span<const std::byte> room, const Channel::Received& received);
Channel::Sent say(Channel& channel, MessageKind kind, Refusal reason = Refusal::kNone, int passed = -1);
/// Sends kWelcome or the guest's kProof, about the connection's end `tcp`.
Channel::Sent say_end(Channel& channel, MessageKind kind, int tcp);

}  // namespace bypass::fastpath::shm
