// The connection manager's messages as they lie on the wire: management datagrams (MADs) of 256 bytes that queue pairs
// 1 exchange (InfiniBand specification, volume 1, 12.6), and the header that IP connections put before the private data
// (annex A11).
//
// Reading never fails for a content that has no meaning here. The caller checks what it uses.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "stack/address.h"

namespace bypass::cm {

inline constexpr std::size_t kMadBytes = 256;
using Mad = std::array<std::byte, kMadBytes>;

inline constexpr std::uint32_t kManagementQpn = 1;
inline constexpr std::uint32_t kManagementQkey = 0x80010000;

enum class Message : std::uint16_t {
  kRequest = 0x10,
  kProlong = 0x11,  // MRA
  kReject = 0x12,
  kReply = 0x13,
  kReady = 0x14,  // RTU
  kDisconnectRequest = 0x15,
  kDisconnectReply = 0x16,
  kServiceRequest = 0x17,  // SIDR_REQ
  kServiceReply = 0x18,    // SIDR_REP
};

/// Reasons of a rejection (12.6.7.2), as far as they are sent here.
enum class Reason : std::uint16_t {
  kTimeout = 4,
  kInvalidServiceId = 8,
  kInvalidGid = 12,
  kConsumerDefined = 28,
};

/// Bytes of private data that a message has room for.
inline constexpr std::size_t kRequestData = 92, kReplyData = 196, kReadyData = 224, kRejectData = 148;
inline constexpr std::size_t kDisconnectRequestData = 220, kDisconnectReplyData = 224;
inline constexpr std::size_t kServiceRequestData = 216, kServiceReplyData = 136;

/// What all messages begin with. In a service request or reply, `local` is the request's number.
struct MadHead {
  std::uint64_t transaction = 0;
  Message message{};
  std::uint32_t local = 0, remote = 0;  // the sender's number of the connection, and the receiver's
};

struct Request {
  std::uint64_t service = 0, guid = 0;
  std::uint32_t qpn = 0, starting_psn = 0;
  std::uint8_t responder_resources = 0, initiator_depth = 0;
  std::uint8_t remote_response_timeout = 0, local_response_timeout = 0;
  std::uint8_t retry_count = 0, rnr_retry_count = 0, max_cm_retries = 0, mtu = 0, ack_timeout = 0;
  std::uint8_t transport = 0;  // 0 RC, 1 UC
  bool flow_control = false, srq = false;
  IpAddress local_gid, remote_gid;
  std::array<std::byte, kRequestData> data{};
};

struct Reply {
  std::uint64_t guid = 0;
  std::uint32_t qkey = 0, qpn = 0, starting_psn = 0;
  std::uint8_t responder_resources = 0, initiator_depth = 0, ack_delay = 0, rnr_retry_count = 0;
  bool flow_control = false, srq = false;
  std::array<std::byte, kReplyData> data{};
};

struct Rejection {
  std::uint8_t of = 0;  // 0 the request, 1 the reply, 2 no message
  std::uint16_t reason = 0;
  std::array<std::byte, kRejectData> data{};
};

struct ServiceRequest {
  std::uint64_t service = 0;
  std::array<std::byte, kServiceRequestData> data{};
};

struct ServiceReply {
  std::uint8_t status = 0;
  std::uint32_t qpn = 0, qkey = 0;
  std::uint64_t service = 0;
  std::array<std::byte, kServiceReplyData> data{};
};

/// The head, if this is a message of a connection manager that can be served: versions, class and method are right.
std::optional<MadHead> read_head(const Mad& mad);
Request read_request(const Mad& mad);
Reply read_reply(const Mad& mad);
Rejection read_rejection(const Mad& mad);
/// The service timeout of an MRA: 4.096 us times 2 to this power.
std::uint8_t read_prolongation(const Mad& mad);
/// The queue pair that a disconnect request is about, as the receiver numbers it.
std::uint32_t read_disconnected_qpn(const Mad& mad);
ServiceRequest read_service_request(const Mad& mad);
ServiceReply read_service_reply(const Mad& mad);

Mad make_request(const MadHead& head, const Request& request);
Mad make_reply(const MadHead& head, const Reply& reply);
Mad make_rejection(const MadHead& head, const Rejection& rejection);
/// `of`: 0 the request, 1 the reply.
Mad make_prolongation(const MadHead& head, std::uint8_t of, std::uint8_t timeout);
Mad make_disconnect_request(const MadHead& head, std::uint32_t qpn);
/// RTU and DREP, which say nothing more than the head.
Mad make_plain(const MadHead& head);
Mad make_service_request(const MadHead& head, const ServiceRequest& request);
Mad make_service_reply(const MadHead& head, const ServiceReply& reply);

/// The header of IP connections. It lies before the program's private data in requests of both kinds.
struct IpHeader {
  IpAddress source, destination;
  std::uint16_t source_port = 0;
};
inline constexpr std::size_t kIpHeaderBytes = 36;

/// Nothing: another version, or neither IPv4 nor IPv6.
std::optional<IpHeader> read_ip_header(std::span<const std::byte> data);
void write_ip_header(std::span<std::byte> data, const IpHeader& header);

/// The number of a service: a port in a port space (RDMA_PS_TCP, say).
constexpr std::uint64_t service_of(std::uint16_t space, std::uint16_t port) {
  return std::uint64_t{space} << 16 | port;
}

}  // namespace bypass::cm
