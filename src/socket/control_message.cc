#include "socket/control_message.h"

#include <netinet/in.h>
#include <netinet/udp.h>
#include <time.h>

#include <algorithm>
#include <cstring>

namespace bypass::socket {

namespace {

constexpr std::size_t aligned(std::size_t bytes) {
  return (bytes + sizeof(std::size_t) - 1) & ~(sizeof(std::size_t) - 1);
}
constexpr std::size_t kHeader = aligned(sizeof(cmsghdr));

// The stack's clock counts from the machine's start; time stamps are CLOCK_REALTIME's.
timespec wall_clock(Instant arrived, Instant now) {
  timespec t{};
  clock_gettime(CLOCK_REALTIME, &t);
  std::int64_t ns = t.tv_nsec - (now - arrived).count();
  std::int64_t seconds = t.tv_sec;
  constexpr std::int64_t kSecond = 1'000'000'000;
  while (ns < 0) ns += kSecond, seconds--;
  return {seconds, ns % kSecond};
}

// Programs tell networks apart by it (a DHCP or DNS server its clients').
std::uint32_t interface_of(const udp::Datagram& datagram) {
  return shard().stack().network().kernel_index(datagram.destination);
}

void put_destination(const Socket& socket, const udp::Datagram& datagram, ControlWriter& out) {
  if (socket.has(kWantPacketInfo)) {
    in_pktinfo info{};
    info.ipi_ifindex = static_cast<int>(interface_of(datagram));
    info.ipi_addr.s_addr = host_to_be32(datagram.destination.v4());
    info.ipi_spec_dst = info.ipi_addr;
    out.put(IPPROTO_IP, IP_PKTINFO, &info, sizeof info);
  }
  if (socket.has(kWantPacketInfo6)) {
    in6_pktinfo info{};
    info.ipi6_ifindex = interface_of(datagram);
    std::memcpy(&info.ipi6_addr, datagram.destination.bytes.data(), sizeof info.ipi6_addr);
    out.put(IPPROTO_IPV6, IPV6_PKTINFO, &info, sizeof info);
  }
}

void read_one(const cmsghdr& header, const std::byte* data, std::size_t size, SendControl& out) {
  int value = 0;
  if (size >= sizeof value) std::memcpy(&value, data, sizeof value);
  if (header.cmsg_level == IPPROTO_IP && header.cmsg_type == IP_PKTINFO && size >= sizeof(in_pktinfo)) {
    in_pktinfo info;
    std::memcpy(&info, data, sizeof info);
    out.source = IpAddress::from_v4(be32_to_host(info.ipi_spec_dst.s_addr));
  } else if (header.cmsg_level == IPPROTO_IPV6 && header.cmsg_type == IPV6_PKTINFO && size >= sizeof(in6_pktinfo)) {
    std::memcpy(out.source.bytes.data(), data, out.source.bytes.size());
  } else if (header.cmsg_level == IPPROTO_IP && header.cmsg_type == IP_TOS && size >= 1) {
    out.tos = static_cast<std::uint8_t>(data[0]);
  } else if (header.cmsg_level == IPPROTO_IP && header.cmsg_type == IP_TTL) {
    out.ttl = static_cast<std::uint8_t>(value);
  } else if (header.cmsg_level == IPPROTO_UDP && header.cmsg_type == UDP_SEGMENT && size >= sizeof(std::uint16_t)) {
    std::uint16_t bytes = 0;
    std::memcpy(&bytes, data, sizeof bytes);
    out.segment_bytes = bytes;
  } else if (header.cmsg_level == IPPROTO_IPV6 && header.cmsg_type == IPV6_TCLASS) {
    out.tos = static_cast<std::uint8_t>(value);
  }
}

}  // namespace

void ControlWriter::put(int level, int type, const void* data, std::size_t size) {
  const std::size_t used = message_.control_length;
  const std::size_t left = room_ - used;
  if (message_.control == nullptr || left < kHeader) {
    message_.flags |= MSG_CTRUNC;
    return;
  }
  const std::size_t fits = std::min(size, left - kHeader);
  if (fits < size) message_.flags |= MSG_CTRUNC;
  cmsghdr header{};
  header.cmsg_len = kHeader + fits;
  header.cmsg_level = level;
  header.cmsg_type = type;
  auto* place = static_cast<std::byte*>(message_.control) + used;
  std::memcpy(place, &header, sizeof header);
  std::memcpy(place + kHeader, data, fits);
  message_.control_length = used + std::min(aligned(kHeader + fits), left);
}

void report_datagram(const Socket& socket, const udp::Datagram& datagram, Instant now, Message& message) {
  ControlWriter out(message);
  constexpr std::uint32_t kAny =
      kWantTimestamp | kWantTimestampNs | kWantPacketInfo | kWantPacketInfo6 | kWantTos | kWantTtl;
  if (!socket.has(kAny)) return;
  if (socket.has(kWantTimestampNs)) {
    const timespec t = wall_clock(datagram.arrived, now);
    out.put(SOL_SOCKET, SCM_TIMESTAMPNS, &t, sizeof t);
  } else if (socket.has(kWantTimestamp)) {
    const timespec t = wall_clock(datagram.arrived, now);
    const timeval v{t.tv_sec, t.tv_nsec / 1000};
    out.put(SOL_SOCKET, SCM_TIMESTAMP, &v, sizeof v);
  }
  put_destination(socket, datagram, out);
  if (socket.has(kWantTtl)) {
    const int ttl = datagram.ttl;
    out.put(IPPROTO_IP, IP_TTL, &ttl, sizeof ttl);
  }
  if (socket.has(kWantTos)) out.put(IPPROTO_IP, IP_TOS, &datagram.tos, sizeof datagram.tos);
}

SendControl read_control(const Message& message) {
  SendControl out;
  const auto* bytes = static_cast<const std::byte*>(message.control);
  std::size_t at = 0;
  while (bytes != nullptr && message.control_length - at >= kHeader) {
    cmsghdr header;
    std::memcpy(&header, bytes + at, sizeof header);
    if (header.cmsg_len < kHeader || header.cmsg_len > message.control_length - at) break;
    read_one(header, bytes + at + kHeader, header.cmsg_len - kHeader, out);
    at += std::min(aligned(header.cmsg_len), message.control_length - at);
  }
  return out;
}

}  // namespace bypass::socket
