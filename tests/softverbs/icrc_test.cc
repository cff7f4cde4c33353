// The ICRC, against vectors made with a plain CRC-32 and the masking rules of annex A17.
#include "softverbs/engine/wire/icrc.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

namespace bypass::rdma::test {
namespace {

std::vector<std::byte> from_hex(const std::string& hex) {
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2)
    bytes.push_back(static_cast<std::byte>(std::stoul(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

Packet packet_over(std::vector<std::byte>& bytes) {
  Packet packet{};
  packet.data = packet.buffer = bytes.data();
  packet.len = packet.frame_len = packet.capacity = static_cast<std::uint32_t>(bytes.size());
  return packet;
}

// Frames without their ICRC, and the ICRC as it lies behind them.
struct Vector {
  const char* frame;
  const char* icrc;
  std::uint16_t udp;
};
constexpr std::array<Vector, 3> kVectors = {{
    {"02000000000202000000000108004500005412344000401114510a0900010a090002c01112b7004000000400ffff000000118012345600010"
     "2030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f2021222324252627",
     "cb37057e", 34},
    {"02000000000202000000000108004500003012344000401114750a0900010a090002c01112b7001c00001100ffff00000012000000071f000"
     "003",
     "8a7abbde", 34},
    {"02000000000202000000000186dd6000000000401140fe80000000000000000000fffe000001fe80000000000000000000fffe000002c0111"
     "2b7004000000400ffff0000001180123456000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20212223242526"
     "27",
     "6655c701", 54},
}};

TEST(Icrc, KnownFrames_GiveTheirKnownSums) {
  for (const Vector& vector : kVectors) {
    std::vector<std::byte> bytes = from_hex(vector.frame), icrc = from_hex(vector.icrc);
    const Packet packet = packet_over(bytes);
    const std::uint32_t made = icrc_of(packet, {14, vector.udp}, bytes.size());
    EXPECT_EQ(std::memcmp(&made, icrc.data(), 4), 0) << vector.frame;
  }
}

TEST(Icrc, WhatRoutersChange_DoesNotCount) {
  std::vector<std::byte> bytes = from_hex(kVectors[0].frame);
  const Packet packet = packet_over(bytes);
  const std::uint32_t before = icrc_of(packet, {14, 34}, bytes.size());
  for (const std::size_t at : {15U, 22U, 24U, 25U, 40U, 41U, 46U}) bytes[at] ^= std::byte{0x5a};
  EXPECT_EQ(icrc_of(packet, {14, 34}, bytes.size()), before);
  bytes[50] ^= std::byte{1};
  EXPECT_NE(icrc_of(packet, {14, 34}, bytes.size()), before);
}

TEST(Icrc, AChainOfBuffers_SumsAsOneBuffer) {
  std::vector<std::byte> bytes = from_hex(kVectors[0].frame);
  const Packet whole = packet_over(bytes);
  for (std::size_t cut = 54; cut < bytes.size(); cut++) {
    Packet head = whole, tail = whole;
    head.len = static_cast<std::uint32_t>(cut);
    head.next_segment = &tail;
    tail.data += cut;
    tail.len -= static_cast<std::uint32_t>(cut);
    EXPECT_EQ(icrc_of(head, {14, 34}, bytes.size()), icrc_of(whole, {14, 34}, bytes.size())) << cut;
  }
}

}  // namespace
}  // namespace bypass::rdma::test
