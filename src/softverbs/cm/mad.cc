#include "softverbs/cm/mad.h"

#include <algorithm>
#include <cstring>

namespace bypass::cm {
namespace {

constexpr std::size_t kHead = 24;  // the common MAD header; offsets below count from its end
constexpr std::byte kBaseVersion{1}, kClass{7}, kClassVersion{2}, kSend{3};

constexpr std::uint16_t kPkey = 0xffff;

/// The fields of a message, by offset and in host order.
class Fields {
 public:
  explicit Fields(const Mad& mad) : at_(mad.data() + kHead) {}
  [[nodiscard]] std::uint64_t get(std::size_t offset, std::size_t bytes) const {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < bytes; i++) value = value << 8 | std::to_integer<std::uint64_t>(at_[offset + i]);
    return value;
  }
  [[nodiscard]] std::uint8_t u8(std::size_t offset) const { return static_cast<std::uint8_t>(get(offset, 1)); }
  [[nodiscard]] std::uint16_t u16(std::size_t offset) const { return static_cast<std::uint16_t>(get(offset, 2)); }
  [[nodiscard]] std::uint32_t u24(std::size_t offset) const { return static_cast<std::uint32_t>(get(offset, 3)); }
  [[nodiscard]] std::uint32_t u32(std::size_t offset) const { return static_cast<std::uint32_t>(get(offset, 4)); }
  [[nodiscard]] std::uint64_t u64(std::size_t offset) const { return get(offset, 8); }
  template <std::size_t kBytes>
  void copy(std::size_t offset, std::array<std::byte, kBytes>& out) const {
    std::memcpy(out.data(), at_ + offset, kBytes);
  }
  [[nodiscard]] IpAddress gid(std::size_t offset) const {
    IpAddress address;
    std::memcpy(address.bytes.data(), at_ + offset, address.bytes.size());
    return address;
  }

 private:
  const std::byte* at_;
};

class Writer {
 public:
  explicit Writer(const MadHead& head) {
    mad_[0] = kBaseVersion;
    mad_[1] = kClass;
    mad_[2] = kClassVersion;
    mad_[3] = kSend;
    put_at(8, 8, head.transaction);
    put_at(16, 2, static_cast<std::uint64_t>(head.message));
    put(0, 4, head.local);
    const bool service = head.message == Message::kServiceRequest || head.message == Message::kServiceReply;
    if (head.message != Message::kRequest && !service) put(4, 4, head.remote);
  }
  void put(std::size_t offset, std::size_t bytes, std::uint64_t value) { put_at(kHead + offset, bytes, value); }
  template <std::size_t kBytes>
  void copy(std::size_t offset, const std::array<std::byte, kBytes>& from) {
    std::memcpy(mad_.data() + kHead + offset, from.data(), kBytes);
  }
  void gid(std::size_t offset, const IpAddress& address) {
    std::memcpy(mad_.data() + kHead + offset, address.bytes.data(), address.bytes.size());
  }
  [[nodiscard]] const Mad& mad() const { return mad_; }

 private:
  void put_at(std::size_t offset, std::size_t bytes, std::uint64_t value) {
    for (std::size_t i = bytes; i-- > 0; value >>= 8) mad_[offset + i] = static_cast<std::byte>(value);
  }
  Mad mad_{};
};

constexpr std::uint8_t high5(std::uint8_t byte) {
  return byte >> 3;
}
constexpr std::uint8_t high3(std::uint8_t byte) {
  return byte >> 5;
}

}  // namespace

std::optional<MadHead> read_head(const Mad& mad) {
  if (mad[0] != kBaseVersion || mad[1] != kClass || mad[2] != kClassVersion || mad[3] != kSend) return {};
  MadHead head;
  std::uint64_t attribute = 0;
  for (std::size_t i = 8; i < 16; i++)
    head.transaction = head.transaction << 8 | std::to_integer<std::uint64_t>(mad[i]);
  for (std::size_t i = 16; i < 18; i++) attribute = attribute << 8 | std::to_integer<std::uint64_t>(mad[i]);
  if (attribute < static_cast<std::uint64_t>(Message::kRequest) ||
      attribute > static_cast<std::uint64_t>(Message::kServiceReply))
    return {};
  head.message = static_cast<Message>(attribute);
  const Fields fields(mad);
  head.local = fields.u32(0);
  head.remote = fields.u32(4);
  return head;
}

// --- REQ, 12.6.5

Request read_request(const Mad& mad) {
  const Fields f(mad);
  Request r;
  r.service = f.u64(8);
  r.guid = f.u64(16);
  r.qpn = f.u24(32);
  r.responder_resources = f.u8(35);
  r.initiator_depth = f.u8(39);
  r.remote_response_timeout = high5(f.u8(43));
  r.transport = f.u8(43) >> 1 & 3;
  r.flow_control = (f.u8(43) & 1) != 0;
  r.starting_psn = f.u24(44);
  r.local_response_timeout = high5(f.u8(47));
  r.retry_count = f.u8(47) & 7;
  r.mtu = f.u8(50) >> 4;
  r.rnr_retry_count = f.u8(50) & 7;
  r.max_cm_retries = f.u8(51) >> 4;
  r.srq = (f.u8(51) & 8) != 0;
  r.local_gid = f.gid(56);
  r.remote_gid = f.gid(72);
  r.ack_timeout = high5(f.u8(95));
  f.copy(140, r.data);
  return r;
}

Mad make_request(const MadHead& head, const Request& r) {
  constexpr std::uint64_t kPermissiveLid = 0xffff, kHopLimit = 64, kRate = 16;  // 100 Gbit/s, as the devices say
  Writer w(head);
  w.put(8, 8, r.service);
  w.put(16, 8, r.guid);
  w.put(32, 3, r.qpn);
  w.put(35, 1, r.responder_resources);
  w.put(39, 1, r.initiator_depth);
  w.put(43, 1, r.remote_response_timeout << 3 | r.transport << 1 | (r.flow_control ? 1 : 0));
  w.put(44, 3, r.starting_psn);
  w.put(47, 1, r.local_response_timeout << 3 | r.retry_count);
  w.put(48, 2, kPkey);
  w.put(50, 1, r.mtu << 4 | r.rnr_retry_count);
  w.put(51, 1, r.max_cm_retries << 4 | (r.srq ? 8 : 0));
  w.put(52, 2, kPermissiveLid);
  w.put(54, 2, kPermissiveLid);
  w.gid(56, r.local_gid);
  w.gid(72, r.remote_gid);
  w.put(91, 1, kRate);
  w.put(93, 1, kHopLimit);
  w.put(95, 1, r.ack_timeout << 3);
  w.copy(140, r.data);
  return w.mad();
}

// --- REP, 12.6.8

Reply read_reply(const Mad& mad) {
  const Fields f(mad);
  Reply r;
  r.qkey = f.u32(8);
  r.qpn = f.u24(12);
  r.starting_psn = f.u24(20);
  r.responder_resources = f.u8(24);
  r.initiator_depth = f.u8(25);
  r.ack_delay = high5(f.u8(26));
  r.flow_control = (f.u8(26) & 1) != 0;
  r.rnr_retry_count = high3(f.u8(27));
  r.srq = (f.u8(27) & 0x10) != 0;
  r.guid = f.u64(28);
  f.copy(36, r.data);
  return r;
}

Mad make_reply(const MadHead& head, const Reply& r) {
  Writer w(head);
  w.put(8, 4, r.qkey);
  w.put(12, 3, r.qpn);
  w.put(20, 3, r.starting_psn);
  w.put(24, 1, r.responder_resources);
  w.put(25, 1, r.initiator_depth);
  w.put(26, 1, r.ack_delay << 3 | (r.flow_control ? 1 : 0));
  w.put(27, 1, r.rnr_retry_count << 5 | (r.srq ? 0x10 : 0));
  w.put(28, 8, r.guid);
  w.copy(36, r.data);
  return w.mad();
}

// --- REJ, 12.6.7, and MRA, 12.6.6

Rejection read_rejection(const Mad& mad) {
  const Fields f(mad);
  Rejection r;
  r.of = f.u8(8) >> 6;
  r.reason = f.u16(10);
  f.copy(84, r.data);
  return r;
}

Mad make_rejection(const MadHead& head, const Rejection& r) {
  Writer w(head);
  w.put(8, 1, r.of << 6);
  w.put(10, 2, r.reason);
  w.copy(84, r.data);
  return w.mad();
}

std::uint8_t read_prolongation(const Mad& mad) {
  return high5(Fields(mad).u8(9));
}

Mad make_prolongation(const MadHead& head, std::uint8_t of, std::uint8_t timeout) {
  Writer w(head);
  w.put(8, 1, of << 6);
  w.put(9, 1, timeout << 3);
  return w.mad();
}

// --- RTU, DREQ, DREP: 12.6.9 to 12.6.11

std::uint32_t read_disconnected_qpn(const Mad& mad) {
  return Fields(mad).u24(8);
}

Mad make_disconnect_request(const MadHead& head, std::uint32_t qpn) {
  Writer w(head);
  w.put(8, 3, qpn);
  return w.mad();
}

Mad make_plain(const MadHead& head) {
  return Writer(head).mad();
}

// --- SIDR_REQ and SIDR_REP: 12.11

ServiceRequest read_service_request(const Mad& mad) {
  const Fields f(mad);
  ServiceRequest r;
  r.service = f.u64(8);
  f.copy(16, r.data);
  return r;
}

Mad make_service_request(const MadHead& head, const ServiceRequest& r) {
  Writer w(head);
  w.put(4, 2, kPkey);
  w.put(8, 8, r.service);
  w.copy(16, r.data);
  return w.mad();
}

ServiceReply read_service_reply(const Mad& mad) {
  const Fields f(mad);
  ServiceReply r;
  r.status = f.u8(4);
  r.qpn = f.u24(8);
  r.service = f.u64(12);
  r.qkey = f.u32(20);
  f.copy(96, r.data);
  return r;
}

Mad make_service_reply(const MadHead& head, const ServiceReply& r) {
  Writer w(head);
  w.put(4, 1, r.status);
  w.put(8, 3, r.qpn);
  w.put(12, 8, r.service);
  w.put(20, 4, r.qkey);
  w.copy(96, r.data);
  return w.mad();
}

// --- The header of IP connections, annex A11

namespace {

constexpr std::size_t kV4Offset = 12;  // an IPv4 address lies in the last four of 16 bytes
constexpr std::byte kV4{0x40}, kV6{0x60}, kVersionMask{0xf0};

IpAddress read_address(std::span<const std::byte> data, bool v6) {
  IpAddress address = IpAddress::from_v4(0);
  const std::size_t skip = v6 ? 0 : kV4Offset;
  std::memcpy(address.bytes.data() + skip, data.data() + skip, address.bytes.size() - skip);
  return address;
}

void write_address(std::span<std::byte> data, const IpAddress& address) {
  const std::size_t skip = address.is_v4() ? kV4Offset : 0;
  std::memset(data.data(), 0, skip);
  std::memcpy(data.data() + skip, address.bytes.data() + skip, address.bytes.size() - skip);
}

}  // namespace

std::optional<IpHeader> read_ip_header(std::span<const std::byte> data) {
  if (data.size() < kIpHeaderBytes || data[0] != std::byte{0}) return {};
  const std::byte version = data[1] & kVersionMask;
  if (version != kV4 && version != kV6) return {};
  const bool v6 = version == kV6;
  IpHeader header;
  header.source_port =
      static_cast<std::uint16_t>(std::to_integer<unsigned>(data[2]) << 8 | std::to_integer<unsigned>(data[3]));
  header.source = read_address(data.subspan(4, 16), v6);
  header.destination = read_address(data.subspan(20, 16), v6);
  return header;
}

void write_ip_header(std::span<std::byte> data, const IpHeader& header) {
  data[0] = {};
  data[1] = header.source.is_v4() ? kV4 : kV6;
  data[2] = static_cast<std::byte>(header.source_port >> 8);
  data[3] = static_cast<std::byte>(header.source_port);
  write_address(data.subspan(4, 16), header.source);
  write_address(data.subspan(20, 16), header.destination);
}

}  // namespace bypass::cm
