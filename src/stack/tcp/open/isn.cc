#include "stack/tcp/open/isn.h"

#include <array>
#include <bit>
#include <cstring>

namespace bypass::tcp {
namespace {

struct SipState {
  std::uint64_t v0, v1, v2, v3;

  void round() {
    v0 += v1;
    v2 += v3;
    v1 = std::rotl(v1, 13) ^ v0;
    v3 = std::rotl(v3, 16) ^ v2;
    v0 = std::rotl(v0, 32);
    v2 += v1;
    v0 += v3;
    v1 = std::rotl(v1, 17) ^ v2;
    v3 = std::rotl(v3, 21) ^ v0;
    v2 = std::rotl(v2, 32);
  }
  void word(std::uint64_t m) {
    v3 ^= m;
    round();
    round();
    v0 ^= m;
  }
};

/// Reads up to 8 bytes as little-endian, which is the byte order of the hash and of the machine.
std::uint64_t load(std::span<const std::byte> bytes) {
  static_assert(std::endian::native == std::endian::little);
  std::uint64_t v = 0;
  if (!bytes.empty()) std::memcpy(&v, bytes.data(), bytes.size());
  return v;
}

/// One key serves three purposes: each purpose hashes a first byte of its own.
enum class Purpose : std::uint8_t { kSequence = 1, kTimestamp = 2, kPort = 3 };

std::uint64_t hash(const Secret& secret, Purpose purpose, const Endpoint& local, const Endpoint& remote) {
  std::array<std::byte, 40> input{};
  std::memcpy(input.data(), local.address.bytes.data(), 16);
  std::memcpy(input.data() + 16, remote.address.bytes.data(), 16);
  std::memcpy(input.data() + 32, &local.port, 2);
  std::memcpy(input.data() + 34, &remote.port, 2);
  input[36] = std::byte{static_cast<std::uint8_t>(purpose)};
  return siphash24(secret, input);
}

}  // namespace

std::uint64_t siphash24(const Secret& secret, std::span<const std::byte> bytes) {
  SipState s{secret.k0 ^ 0x736f6d6570736575, secret.k1 ^ 0x646f72616e646f6d, secret.k0 ^ 0x6c7967656e657261,
             secret.k1 ^ 0x7465646279746573};
  std::span<const std::byte> rest = bytes;
  for (; rest.size() >= 8; rest = rest.subspan(8)) s.word(load(rest.first<8>()));
  s.word(static_cast<std::uint64_t>(bytes.size()) << 56 | load(rest));
  s.v2 ^= 0xff;
  for (int i = 0; i < 4; i++) s.round();
  return s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
}

SeqNum initial_sequence(const Secret& secret, const Endpoint& local, const Endpoint& remote, Instant now) {
  const auto ticks = now.time_since_epoch() / std::chrono::microseconds(4);
  const std::uint64_t f = hash(secret, Purpose::kSequence, local, remote);
  return {static_cast<std::uint32_t>(static_cast<std::uint64_t>(ticks) + f)};
}

std::uint32_t timestamp_offset(const Secret& secret, const Endpoint& local, const Endpoint& remote) {
  return static_cast<std::uint32_t>(hash(secret, Purpose::kTimestamp, local, remote));
}

std::uint32_t port_offset(const Secret& secret, const IpAddress& local, const Endpoint& remote) {
  return static_cast<std::uint32_t>(hash(secret, Purpose::kPort, {local, 0}, remote));
}

}  // namespace bypass::tcp
