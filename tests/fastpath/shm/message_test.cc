// The message format: bytes that are no message are told from a message of another version.
#include <random>
#include <vector>

#include "fastpath/shm/world.h"

namespace bypass::test {
namespace {

using shm::MessageKind;

Refusal verdict(const shm::Message& message) {
  return shm::parse_message(bytes_of(message)).refusal;
}

TEST(Message, EveryKind_IsOne) {
  for (std::uint16_t kind = 1; kind <= 4; kind++)
    EXPECT_EQ(verdict(message_of(static_cast<MessageKind>(kind))), Refusal::kNone);
  shm::Message refused = message_of(MessageKind::kRefused);
  EXPECT_EQ(verdict(refused), Refusal::kBadMessage);  // why?
  refused.reason = Refusal::kIndexBackwards;
  EXPECT_EQ(verdict(refused), Refusal::kNone);
}

TEST(Message, AFieldOutOfRange_IsNone) {
  shm::Message message = message_of(static_cast<MessageKind>(6));
  EXPECT_EQ(verdict(message), Refusal::kBadMessage);
  message = message_of(static_cast<MessageKind>(0));
  EXPECT_EQ(verdict(message), Refusal::kBadMessage);
  message = message_of(MessageKind::kRefused);
  message.reason = static_cast<Refusal>(shm::kMostRefusal + 1);
  EXPECT_EQ(verdict(message), Refusal::kBadMessage);
  message = message_of(MessageKind::kReady);
  message.reason = Refusal::kTimedOut;
  EXPECT_EQ(verdict(message), Refusal::kBadMessage);
  message = message_of(MessageKind::kReady);
  message.reserved_too[7] = 1;
  EXPECT_EQ(verdict(message), Refusal::kBadMessage);
  message = message_of(MessageKind::kSegment);
  message.number = 7;
  EXPECT_EQ(verdict(message), Refusal::kBadMessage);
  message = message_of(MessageKind::kReady);
  message.magic ^= 1;
  EXPECT_EQ(verdict(message), Refusal::kBadMessage);
}

TEST(Message, AnotherVersions_MayHaveAnotherSize) {
  std::array<std::byte, 48> longer{};
  shm::Message message = message_of(MessageKind::kReady);
  message.version = shm::Message::kVersion + 1;
  message.bytes = longer.size();
  std::memcpy(longer.data(), &message, sizeof message);
  EXPECT_EQ(shm::parse_message(longer).refusal, Refusal::kOtherVersion);
  EXPECT_EQ(shm::parse_message(std::span(longer).first(12)).refusal, Refusal::kBadMessage);
  message.version = shm::Message::kVersion;
  std::memcpy(longer.data(), &message, sizeof message);
  EXPECT_EQ(shm::parse_message(longer).refusal, Refusal::kBadMessage);
}

/// Bytes of a message, some of them changed, of any length.
std::vector<std::byte> mutated(std::mt19937& random, int number) {
  shm::Message message = message_of(static_cast<MessageKind>(1 + random() % 5));
  if (random() % 3 == 0) message.number = number;
  const auto good = bytes_of(message);
  std::vector<std::byte> bytes(good.begin(), good.end());
  if (random() % 3 == 0) bytes.resize(random() % 80);
  for (unsigned i = random() % 4; i > 0 && !bytes.empty(); i--) bytes[random() % bytes.size()] = std::byte(random());
  return bytes;
}

/// Sends a host any bytes, with any number and descriptor. The connection's other end is among them, so that some get
/// further.
TEST(Message, Fuzzed_NeverBelieved_NorLeaked) {
  const std::size_t before = open_descriptors();
  for (unsigned seed = 0; seed < 300; seed++) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const Connection connection;
    const Connection other;
    shm::Pairing us;
    us.begin(meeting_folder(), connection.server.get(), kSizes, kStart, kStart + 100ms);
    Instant now = kStart;
    const std::array<int, 4> passed = {connection.client.get(), other.client.get(), 0, connection.server.get()};
    bool exact = false;  // sometimes the bytes of the real proof
    while (us.state() == shm::Pairing::State::kWaiting) {
      shm::Channel stranger = visit(connection.server.get());
      us.step(now);
      for (unsigned i = random() % 4; i > 0 && stranger.is_open(); i--) {
        const std::vector<std::byte> packet = mutated(random, connection.client.get());
        const unsigned count = random() % 3;
        const unsigned first = random() % 3;
        const auto message = shm::parse_message(packet);
        exact = exact || (message.ok() && message.value.kind == MessageKind::kProof &&
                          message.value.number == connection.client.get());
        if (count == 0) {
          stranger.send(packet);
        } else {
          send_many(stranger, packet, std::span(passed).subspan(first, count));
        }
        us.step(now);
      }
      now += 1ms;
    }
    EXPECT_TRUE(us.state() == shm::Pairing::State::kRefused || exact);
  }
  EXPECT_EQ(open_descriptors(), before);
}

}  // namespace
}  // namespace bypass::test
