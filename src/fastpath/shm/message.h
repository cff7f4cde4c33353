// What two libbypass processes of one host say to each other before they share memory. One packet of fixed size a
// message; both are of one machine, so numbers are in its own order.
//
//   guest (connected)        host (bound the name)
//                     <──    kWelcome    same user; the number of its end of the connection
//   kProof              ──>              the number of the guest's; from now on it takes a descriptor
//                     <──    kProof      agreed; without a number
//                     <──    kSegment + memfd
//   kReady              ──>
//
// kRefused, with the reason, may stand in the place of any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "fastpath/shm/channel.h"
#include "fastpath/shm/refusal.h"

namespace bypass::fastpath::shm {

enum class MessageKind : std::uint16_t { kWelcome = 1, kProof = 2, kSegment = 3, kReady = 4, kRefused = 5 };

/// The first three fields are every version's.
struct Message {
  static constexpr std::uint64_t kMagic = 0x316c'7373'6170'7962U;  // "bypassl1"
  static constexpr std::uint16_t kVersion = 4;

  std::uint64_t magic = kMagic;
  std::uint16_t version = kVersion;
  std::uint16_t bytes = 0;  // of the message
  MessageKind kind = MessageKind::kRefused;
  Refusal reason = Refusal::kNone;  // of kRefused
  std::uint8_t reserved[1] = {};
  std::int32_t number = -1;     // of kWelcome and the guest's kProof: of the sender's end among its descriptors
  std::uint32_t interface = 0;  // that this end is bound to (SO_BINDTOIFINDEX)
  std::uint8_t reserved_too[8] = {};
};
static_assert(sizeof(Message) == 32);

/// Room for a message of this version, and to tell that one of another is longer.
inline constexpr std::size_t kMessageRoom = 2 * sizeof(Message);

/// Whether a packet is a message. kOtherVersion, where it can be told to be one of those; anything else: kBadMessage.
Outcome<Message> parse_message(std::span<const std::byte> packet);
/// The message in what has come into `room`.
Outcome<Message> message_in(std::span<const std::byte> room, const Channel::Received& received);
Channel::Sent say(Channel& channel, MessageKind kind, Refusal reason = Refusal::kNone, int passed = -1);
/// kWelcome or the guest's kProof: of the connection's end `tcp`.
Channel::Sent say_end(Channel& channel, MessageKind kind, int tcp);

}  // namespace bypass::fastpath::shm
