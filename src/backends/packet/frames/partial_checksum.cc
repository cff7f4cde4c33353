#include "backends/packet/frames/partial_checksum.h"

#include <linux/if_ether.h>
#include <netinet/in.h>
#include <netinet/ip.h>

#include <cstdint>
#include <cstring>

#include "stack/address.h"

namespace bypass::packet {
namespace {

constexpr std::size_t kTcpChecksumAt = 16, kUdpChecksumAt = 6;

std::uint16_t fold(std::uint64_t sum) {
  while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<std::uint16_t>(sum);
}

}  // namespace

bool has_partial_checksum(std::span<const std::byte> frame) {
  if (frame.size() < ETH_HLEN + sizeof(iphdr)) return false;
  std::uint16_t type, field;
  std::memcpy(&type, frame.data() + offsetof(ethhdr, h_proto), sizeof type);
  iphdr ip;
  std::memcpy(&ip, frame.data() + ETH_HLEN, sizeof ip);
  if (type != host_to_be16(ETH_P_IP) || (ip.protocol != IPPROTO_TCP && ip.protocol != IPPROTO_UDP)) return false;
  const std::size_t l4 = ETH_HLEN + std::size_t{ip.ihl} * 4;
  const std::size_t at = l4 + (ip.protocol == IPPROTO_TCP ? kTcpChecksumAt : kUdpChecksumAt);
  const std::size_t header = std::size_t{ip.ihl} * 4, total = be16_to_host(ip.tot_len);
  if (at + sizeof field > frame.size() || total < header) return false;
  std::memcpy(&field, frame.data() + at, sizeof field);
  const auto length = host_to_be16(static_cast<std::uint16_t>(total - header));
  const std::uint64_t pseudo = std::uint64_t{ip.saddr} + ip.daddr + host_to_be16(ip.protocol) + length;
  return field == fold(pseudo);
}

}  // namespace bypass::packet
