// Work requests and completions: what verbs programs post and poll, in the form that the engine uses.
//
// Enumerations, scatter/gather elements and completions are libibverbs' (only its header: the engine calls no function
// of it), so that the layer above copies nothing.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <span>

#include "stack/address.h"
#include "stack/time.h"

namespace bypass::rdma {

struct Ah;
struct Mr;

/// The file by which an XRC domain is named (ibv_xrcd_init_attr).
struct XrcFile {
  std::uint64_t device = 0, inode = 0;
  bool operator==(const XrcFile&) const = default;
};

/// What ibv_post_send and ibv_wr_* pass. `sges` are not kept after the call, and with IBV_SEND_INLINE neither are the
/// bytes.
struct SendRequest {
  std::uint64_t wr_id = 0;
  ibv_wr_opcode opcode = IBV_WR_SEND;
  unsigned flags = 0;     // ibv_send_flags
  std::uint32_t imm = 0;  // network byte order
  std::span<const ibv_sge> sges{};
  // RDMA and atomic operations. The key is also what LOCAL_INV and SEND_WITH_INV invalidate.
  std::uint64_t remote_addr = 0;
  std::uint32_t rkey = 0;
  std::uint64_t compare_add = 0, swap = 0;
  // BIND_MW: `rkey` becomes the window's key. A region of null, or no bytes: a window of type 1 is unbound.
  const Mr* window = nullptr;
  const Mr* region = nullptr;
  std::uint64_t bind_addr = 0, bind_length = 0;
  unsigned bind_access = 0;
  // For datagrams: the handle may be destroyed once the request is posted.
  const Ah* ah = nullptr;
  std::uint32_t remote_qpn = 0, remote_qkey = 0;
  std::uint32_t remote_srqn = 0;  // of an XRC queue pair: the peer's receive queue
  // For IBV_WR_TSO on a raw-packet queue pair: the frame's headers, and the payload bytes of each segment.
  std::span<const std::byte> tso_header{};
  std::uint16_t tso_mss = 0;
};

struct ReceiveRequest {
  std::uint64_t wr_id = 0;
  std::span<const ibv_sge> sges{};
};

struct Completion {
  ibv_wc wc{};
  Instant at{};  // when the engine made it
  std::uint32_t flow_tag = 0;
  bool of_send = false;  // its request keeps its place until this is polled
};

/// A steering rule of a raw-packet queue pair: the specifications of ibv_create_flow, combined. A frame matches if
/// every field is equal under its mask; a zero mask matches anything.
struct FlowRule {
  struct Key {
    MacAddress destination, source;
    std::uint16_t ether_type = 0;         // host order; a VLAN tag is not skipped
    IpAddress ip_source, ip_destination;  // IPv4 v4-mapped, with its mask: ::ffff:… needs the whole prefix
    std::uint8_t protocol = 0;            // of IPv4, next header of IPv6
    std::uint16_t source_port = 0, destination_port = 0;  // host order, TCP and UDP
    bool operator==(const Key&) const = default;
  };
  ibv_flow_attr_type type =
      IBV_FLOW_ATTR_NORMAL;    // or ALL_DEFAULT, MC_DEFAULT, SNIFFER: then value and mask are unused
  std::uint16_t priority = 0;  // 0 is tried first
  Key value, mask;
  bool drop = false;           // IBV_FLOW_SPEC_ACTION_DROP
  std::uint32_t flow_tag = 0;  // IBV_FLOW_SPEC_ACTION_TAG
};

}  // namespace bypass::rdma
