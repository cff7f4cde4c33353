#include "backends/packet/frames/udp_segments.h"

#include <linux/if_ether.h>
#include <netinet/ip.h>
#include <netinet/udp.h>

#include <algorithm>
#include <cstring>

#include "stack/address.h"

namespace bypass::packet {
namespace {

constexpr std::size_t kUdpHeader = sizeof(udphdr);

// The length of the Ethernet, IPv4 and UDP headers together; 0: the frame is something else.
std::size_t header_bytes(std::span<const std::byte> frame) {
  if (frame.size() < ETH_HLEN + sizeof(iphdr) + kUdpHeader) return 0;
  const auto first = std::to_integer<unsigned>(frame[ETH_HLEN]);
  const std::size_t ip = (first & 0xfU) * 4;
  const std::size_t all = ETH_HLEN + ip + kUdpHeader;
  return first >> 4 == 4 && ip >= sizeof(iphdr) && all < frame.size() ? all : 0;
}

void set_be16(std::byte* at, std::size_t value) {
  const std::uint16_t wire = host_to_be16(static_cast<std::uint16_t>(value));
  std::memcpy(at, &wire, sizeof wire);
}

Packet* make_datagram(FramePool& pool, std::span<const std::byte> headers, std::span<const std::byte> payload) {
  Packet* const p = pool.take();
  if (p == nullptr) return nullptr;
  std::memcpy(p->data, headers.data(), headers.size());
  std::memcpy(p->data + headers.size(), payload.data(), payload.size());
  p->len = p->frame_len = static_cast<std::uint32_t>(headers.size() + payload.size());
  p->flags = kRxIpChecksumGood | kRxL4ChecksumGood;
  set_be16(p->data + ETH_HLEN + offsetof(iphdr, tot_len), p->len - ETH_HLEN);
  set_be16(p->data + headers.size() - kUdpHeader + offsetof(udphdr, len), kUdpHeader + payload.size());
  return p;
}

}  // namespace

bool holds_datagrams(const VnetHeader& header) {
  return header.segmentation() == VnetHeader::kUdpDatagrams;
}

Packet* split_datagrams(FramePool& pool, std::span<const std::byte> frame, const VnetHeader& header) {
  const std::size_t head = header_bytes(frame);
  if (head == 0 || header.gso_size == 0 || head + header.gso_size + kTxHeadroom > pool.buffer_bytes()) return nullptr;
  Packet* first = nullptr;
  Packet** link = &first;
  for (auto left = frame.subspan(head); !left.empty();) {
    const auto payload = left.first(std::min<std::size_t>(left.size(), header.gso_size));
    Packet* const datagram = make_datagram(pool, frame.first(head), payload);
    if (datagram == nullptr) break;  // the rest is lost, as on a wire
    *link = datagram;
    link = &datagram->queue_next;
    left = left.subspan(payload.size());
  }
  return first;
}

}  // namespace bypass::packet
