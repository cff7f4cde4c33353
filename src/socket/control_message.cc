#include "socket/control_message.h"

#include <linux/errqueue.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>
#include <time.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "os/errno_map.h"
#include "os/program_memory.h"

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

// One of a send's, as ip_cmsg_send(), udp_cmsg_send() and __sock_cmsg_send() of Linux read it.
class ControlReader {
 public:
  ControlReader(const cmsghdr& header, const std::byte* data) : header_(header), data_(data) {}

  long read_datagram(SendControl& out) const {
    switch (header_.cmsg_level) {
      case SOL_SOCKET:
        return read_socket();
      case IPPROTO_IP:
        return read_ip(out);
      case IPPROTO_UDP:
        return read_udp(out);
      case IPPROTO_IPV6:
        return read_ipv6(out);
      default:
        return 0;
    }
  }
  [[nodiscard]] long read_socket() const {
    switch (header_.cmsg_type) {
      case SO_TIMESTAMPING:  // the kinds of sends that are reported, and they are not
      case SO_MARK:
      case SO_PRIORITY:
        return holds<std::uint32_t>() ? 0 : failure(Error::kInvalid);
      case SCM_RIGHTS:
      case SCM_CREDENTIALS:
        return 0;
      default:
        return failure(Error::kInvalid);
    }
  }

 private:
  template <typename T>
  [[nodiscard]] bool holds() const {
    return header_.cmsg_len == CMSG_LEN(sizeof(T));
  }
  template <typename T>
  [[nodiscard]] T value() const {
    T value;
    std::memcpy(&value, data_, sizeof value);
    return value;
  }
  long read_ip(SendControl& out) const {
    switch (header_.cmsg_type) {
      case IP_PKTINFO:
        if (!holds<in_pktinfo>()) return failure(Error::kInvalid);
        out.source = IpAddress::from_v4(be32_to_host(value<in_pktinfo>().ipi_spec_dst.s_addr));
        return 0;
      case IP_TOS:
        if (!holds<int>() && !holds<std::uint8_t>()) return failure(Error::kInvalid);
        return take_byte(out.tos, holds<int>() ? value<int>() : value<std::uint8_t>(), 0);
      case IP_TTL:
        return holds<int>() ? take_byte(out.ttl, value<int>(), 1) : failure(Error::kInvalid);
      default:
        return failure(Error::kInvalid);
    }
  }
  static long take_byte(std::optional<std::uint8_t>& to, int value, int least) {
    if (value < least || value > 255) return failure(Error::kInvalid);
    to = static_cast<std::uint8_t>(value);
    return 0;
  }
  long read_udp(SendControl& out) const {
    if (header_.cmsg_type != UDP_SEGMENT || !holds<std::uint16_t>()) return failure(Error::kInvalid);
    out.segment_bytes = value<std::uint16_t>();
    return 0;
  }
  // To an IPv4 address the kernel reads no more of these than the source.
  long read_ipv6(SendControl& out) const {
    if (header_.cmsg_type == IPV6_PKTINFO) {
      if (header_.cmsg_len < CMSG_LEN(sizeof(in6_pktinfo))) return failure(Error::kInvalid);
      std::memcpy(out.source.bytes.data(), data_, out.source.bytes.size());
    } else if (header_.cmsg_type == IPV6_TCLASS && holds<int>()) {
      out.tos = static_cast<std::uint8_t>(value<int>());
    }
    return 0;
  }

  const cmsghdr& header_;
  const std::byte* data_;
};

// `each` of the messages, until one is refused. CMSG_FIRSTHDR, CMSG_NXTHDR and CMSG_OK as the kernel has them.
template <typename Each>
long for_each_control(const Message& message, Each each) {
  const auto* bytes = static_cast<const std::byte*>(message.control);
  std::size_t at = 0;
  while (bytes != nullptr && message.control_length - at >= kHeader) {
    cmsghdr header;
    std::memcpy(&header, bytes + at, sizeof header);
    if (header.cmsg_len < kHeader || header.cmsg_len > message.control_length - at) return failure(Error::kInvalid);
    if (const long r = each(ControlReader(header, bytes + at + kHeader), header); r != 0) return r;
    at += std::min(aligned(header.cmsg_len), message.control_length - at);
  }
  return 0;
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
  cmsghdr header{};
  header.cmsg_len = kHeader + fits;
  header.cmsg_level = level;
  header.cmsg_type = type;
  auto* place = static_cast<std::byte*>(message_.control) + used;
  // Where it cannot be written it is left out, as by put_cmsg().
  if (!copy_program_bytes(place, &header, sizeof header) || !copy_program_bytes(place + kHeader, data, fits)) return;
  if (fits < size) message_.flags |= MSG_CTRUNC;
  message_.control_length = used + std::min(aligned(kHeader + fits), left);
}

namespace {

void put_arrival(const Socket& socket, Instant arrived, Instant now, ControlWriter& out) {
  if (!socket.has(kWantTimestamp | kWantTimestampNs | kWantTimestamping)) return;
  const timespec t = wall_clock(arrived, now);
  if (socket.has(kWantTimestampNs)) {
    out.put(SOL_SOCKET, SCM_TIMESTAMPNS, &t, sizeof t);
  } else if (socket.has(kWantTimestamp)) {
    const timeval v{t.tv_sec, t.tv_nsec / 1000};
    out.put(SOL_SOCKET, SCM_TIMESTAMP, &v, sizeof v);
  }
  if (!socket.has(kWantTimestamping)) return;
  const timespec stamps[3] = {t, {}, {}};  // struct scm_timestamping: by software, unused, by hardware
  out.put(SOL_SOCKET, SCM_TIMESTAMPING, stamps, sizeof stamps);
}

}  // namespace

namespace {

struct ErrorValue {
  sock_extended_err error;
  SocketName offender;
};

void put_error(const Socket& socket, const ErrorValue& value, ControlWriter& out) {
  const bool of_ipv6 = socket.domain == AF_INET6;
  const std::size_t name = of_ipv6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  out.put(of_ipv6 ? IPPROTO_IPV6 : IPPROTO_IP, of_ipv6 ? IPV6_RECVERR : IP_RECVERR, &value,
          offsetof(ErrorValue, offender) + name);
}

}  // namespace

// ip_recv_error() and ipv6_recv_error() of Linux.
void report_error(const Socket& socket, const udp::QueuedError& error, Instant now, Message& message) {
  ControlWriter out(message);
  put_arrival(socket, error.arrived, now, out);
  ErrorValue value{};
  value.error.ee_errno = static_cast<std::uint32_t>(option_error(error.error));
  value.error.ee_origin = static_cast<std::uint8_t>(error.origin);
  value.error.ee_type = error.type;
  value.error.ee_code = error.code;
  value.error.ee_info = error.info;
  if (error.origin == udp::QueuedError::Origin::kIcmp) write_name({error.offender, 0}, socket.domain, value.offender);
  put_error(socket, value, out);
}

// __msg_zerocopy_callback() of Linux.
void report_copied(const Socket& socket, std::uint32_t first, std::uint32_t last, Instant now, Message& message) {
  ControlWriter out(message);
  put_arrival(socket, now, now, out);
  ErrorValue value{};
  value.error.ee_origin = SO_EE_ORIGIN_ZEROCOPY;
  value.error.ee_code = SO_EE_CODE_ZEROCOPY_COPIED;
  value.error.ee_info = first;
  value.error.ee_data = last;
  put_error(socket, value, out);
}

void report_stream(const Socket& socket, Instant arrived, Instant now, std::size_t left, Message& message) {
  ControlWriter out(message);
  if (arrived != Instant{}) put_arrival(socket, arrived, now, out);
  if (!socket.has(kWantInq)) return;
  const auto bytes = static_cast<int>(std::min<std::size_t>(left, std::numeric_limits<int>::max()));
  out.put(IPPROTO_TCP, TCP_CM_INQ, &bytes, sizeof bytes);
}

void report_datagram(const Socket& socket, const udp::Datagram& datagram, Instant now, Message& message) {
  ControlWriter out(message);
  constexpr std::uint32_t kAny = kWantTimestamp | kWantTimestampNs | kWantTimestamping | kWantPacketInfo |
                                 kWantPacketInfo6 | kWantTos | kWantTtl | kWantOriginal;
  if (!socket.has(kAny)) return;
  put_arrival(socket, datagram.arrived, now, out);
  put_destination(socket, datagram, out);
  if (socket.has(kWantTtl)) {
    const int ttl = datagram.ttl;
    out.put(IPPROTO_IP, IP_TTL, &ttl, sizeof ttl);
  }
  if (socket.has(kWantTos)) out.put(IPPROTO_IP, IP_TOS, &datagram.tos, sizeof datagram.tos);
  if (socket.has(kWantOriginal)) {
    SocketName name;
    const socklen_t length = write_name({datagram.destination, datagram.port}, AF_INET, name);
    out.put(IPPROTO_IP, IP_ORIGDSTADDR, &name, length);
  }
}

SendControl read_control(const Message& message) {
  SendControl out;
  out.refusal = for_each_control(
      message, [&out](const ControlReader& reader, const cmsghdr&) { return reader.read_datagram(out); });
  return out;
}

long stream_control_refusal(const Message& message) {
  return for_each_control(message, [](const ControlReader& reader, const cmsghdr& header) {
    return header.cmsg_level == SOL_SOCKET ? reader.read_socket() : 0;
  });
}

}  // namespace bypass::socket
