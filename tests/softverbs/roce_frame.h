// RoCE packets made by hand, as a peer with other software would send them.
#pragma once

#include <span>
#include <vector>

#include "backends/sim/sim_wire.h"
#include "softverbs/engine/wire/roce.h"

namespace bypass::rdma::test {

struct RoceOptions {
  std::uint8_t opcode = 0;
  std::uint32_t qpn = 0x11;
  std::uint32_t psn = 0;
  bool ack_request = true, solicited = false;
  std::uint8_t migration = 0x40;
  std::uint16_t pkey = kDefaultPkey;
  std::uint16_t source_port = 0xc000;
  std::uint8_t tos = 0, ttl = 64;
  std::uint8_t mark = 0;  // the reserved bits beside the acknowledge request
  bool v6 = false;
};
/// fe80::ff:fe00:n, which a port of the MAC 02::n makes itself.
IpAddress link_local(std::uint8_t n);
/// From 10.9.0.2 or fe80::ff:fe00:2 (02::2) to 10.9.0.1 or fe80::ff:fe00:1 (02::1): headers, what `rest` says
/// (extensions and payload), padding, ICRC.
sim::Bytes roce_frame(const RoceOptions& options, std::span<const std::byte> rest);
/// Corrects the IP header's checksum and the ICRC after a test has changed the frame.
void fix_sums(sim::Bytes& frame);

/// Appends the bytes of wire structures.
template <typename... Header>
sim::Bytes bytes_of_headers(const Header&... headers) {
  sim::Bytes bytes;
  const auto add = [&](const auto& header) {
    const auto raw = std::as_bytes(std::span{&header, 1});
    bytes.insert(bytes.end(), raw.begin(), raw.end());
  };
  (add(headers), ...);
  return bytes;
}
Reth reth(std::uint64_t address, std::uint32_t rkey, std::uint32_t length);
Aeth aeth(std::uint8_t syndrome, std::uint32_t msn = 0);

}  // namespace bypass::rdma::test
