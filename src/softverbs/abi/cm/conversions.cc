#include "softverbs/abi/cm/conversions.h"

#include <infiniband/verbs.h>

#include <algorithm>
#include <cstring>

namespace bypass::softverbs {
namespace {

constexpr std::uint16_t kPkey = 0xffff;
constexpr std::uint8_t kPort = 1, kHopLimit = 64;
constexpr std::uint8_t kPacketLifeTime = 16;
constexpr std::uint8_t kRate = IBV_RATE_100_GBPS;
constexpr std::uint8_t kExactly = 2;  // a path record's selectors

void write_address(const Endpoint& from, sockaddr_in6& out) {
  if (from.address.is_v4()) {
    sockaddr_in v4{};
    v4.sin_family = AF_INET;
    v4.sin_port = htons(from.port);
    std::memcpy(&v4.sin_addr, from.address.bytes.data() + 12, sizeof v4.sin_addr);
    std::memcpy(&out, &v4, sizeof v4);
    return;
  }
  out.sin6_family = AF_INET6;
  out.sin6_port = htons(from.port);
  std::memcpy(&out.sin6_addr, from.address.bytes.data(), sizeof out.sin6_addr);
}

void write_handle(const cm::Id& id, const cm::DeviceInfo& device, ib_uverbs_ah_attr& attr) {
  std::memcpy(attr.grh.dgid, id.destination.address.bytes.data(), sizeof attr.grh.dgid);
  const auto at = std::find(device.gids.begin(), device.gids.end(), id.source.address);
  attr.grh.sgid_index = static_cast<std::uint8_t>(at - device.gids.begin());
  attr.grh.hop_limit = kHopLimit;
  attr.grh.traffic_class = id.type_of_service;
  attr.is_global = 1;
  attr.port_num = kPort;
}

void write_parameters(const cm::Parameters& from, rdma_ucm_conn_param& out) {
  std::memcpy(out.private_data, from.data.data(), from.data_bytes);
  out.private_data_len = static_cast<std::uint8_t>(from.data_bytes);
  out.qp_num = from.qpn;
  out.srq = from.srq ? 1 : 0;
  out.responder_resources = from.responder_resources;
  out.initiator_depth = from.initiator_depth;
  out.flow_control = from.flow_control ? 1 : 0;
  out.retry_count = from.retry_count;
  out.rnr_retry_count = from.rnr_retry_count;
}

bool knows_peer(const cm::Id& id) {
  switch (id.state) {
    case cm::State::kReplyReceived:
    case cm::State::kRequestReceived:
    case cm::State::kReplySent:
    case cm::State::kEstablished:
      return true;
    default:
      return false;
  }
}

}  // namespace

bool read_address(const sockaddr_in6& from, Endpoint& out) {
  if (from.sin6_family == AF_INET6) {
    std::memcpy(out.address.bytes.data(), &from.sin6_addr, sizeof from.sin6_addr);
    out.port = ntohs(from.sin6_port);
    return true;
  }
  if (from.sin6_family != AF_INET) return false;
  sockaddr_in v4;
  std::memcpy(&v4, &from, sizeof v4);
  out.address = IpAddress::from_v4(ntohl(v4.sin_addr.s_addr));
  out.port = ntohs(v4.sin_port);
  return true;
}

cm::Parameters read_parameters(const rdma_ucm_conn_param& from) {
  cm::Parameters out;
  out.qpn = from.qp_num & 0xffffff;
  out.qkey = from.qkey;
  out.responder_resources = from.responder_resources;
  out.initiator_depth = from.initiator_depth;
  out.flow_control = from.flow_control != 0;
  out.retry_count = from.retry_count;
  out.rnr_retry_count = from.rnr_retry_count;
  out.srq = from.srq != 0;
  out.data_bytes = from.private_data_len;
  std::memcpy(out.data.data(), from.private_data, out.data_bytes);
  return out;
}

rdma_ucm_query_route_resp describe_route(const cm::Id& id, const cm::DeviceInfo* device) {
  rdma_ucm_query_route_resp out{};
  write_address(id.source, out.src_addr);
  if (id.destination.port != 0 || id.passive) write_address(id.destination, out.dst_addr);
  out.ibdev_index = ~0U;  // the kernel's number of a device; ours have none
  if (device == nullptr) return out;
  out.node_guid = device->guid;
  out.port_num = kPort;
  ib_user_path_rec& path = out.ib_route[0];
  std::memcpy(path.sgid, id.source.address.bytes.data(), sizeof path.sgid);
  std::memcpy(path.dgid, id.destination.address.bytes.data(), sizeof path.dgid);
  path.pkey = kPkey;
  if (!id.has_route) return out;
  out.num_paths = 1;
  path.reversible = 1;
  path.numb_path = 1;
  path.hop_limit = kHopLimit;
  path.traffic_class = id.type_of_service;
  path.mtu = id.mtu;
  path.rate = kRate;
  path.packet_life_time = kPacketLifeTime;
  path.mtu_selector = path.rate_selector = path.packet_life_time_selector = kExactly;
  return out;
}

// As cm_init_qp_init_attr() and its fellows do; for datagrams cma_ib_init_qp_attr().
bool describe_queue_pair(const cm::Id& id, const cm::DeviceInfo& device, std::uint32_t state, ib_uverbs_qp_attr& attr) {
  attr.qp_state = state;
  attr.qp_attr_mask = IBV_QP_STATE;
  if (state == IBV_QPS_INIT) {
    attr.port_num = kPort;
    attr.qp_attr_mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT;
    if (id.is_datagram()) {
      attr.qkey = id.qkey != 0 ? id.qkey : cm::kDatagramQkey;
      attr.qp_attr_mask |= IBV_QP_QKEY;
      return true;
    }
    attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
    if (id.responder_resources != 0) attr.qp_access_flags |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    attr.qp_attr_mask |= IBV_QP_ACCESS_FLAGS;
    return true;
  }
  if (id.is_datagram() || !knows_peer(id)) return false;
  if (state == IBV_QPS_RTR) {
    write_handle(id, device, attr.ah_attr);
    attr.path_mtu = id.mtu;
    attr.dest_qp_num = id.peer_qpn;
    attr.rq_psn = id.own_psn;
    attr.max_dest_rd_atomic = id.responder_resources;
    attr.qp_attr_mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                         IBV_QP_MIN_RNR_TIMER;
    return true;
  }
  if (state != IBV_QPS_RTS) return false;
  attr.sq_psn = id.peer_psn;
  attr.timeout = id.ack_timeout;
  attr.retry_cnt = id.retry_count;
  attr.rnr_retry = id.rnr_retry_count;
  attr.max_rd_atomic = id.initiator_depth;
  attr.qp_attr_mask |= IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
  return true;
}

rdma_ucm_event_resp describe_event(const cm::Happened& what, std::uint64_t uid, const cm::Id* id,
                                   const cm::DeviceInfo* device) {
  rdma_ucm_event_resp out{};
  out.uid = uid;
  out.id = what.id;
  out.event = static_cast<std::uint32_t>(what.event);
  out.status = static_cast<std::uint32_t>(what.status);
  if (id == nullptr || !id->is_datagram()) {
    write_parameters(what.parameters, out.param.conn);
    return out;
  }
  rdma_ucm_ud_param& datagram = out.param.ud;
  std::memcpy(datagram.private_data, what.parameters.data.data(), what.parameters.data_bytes);
  datagram.private_data_len = static_cast<std::uint8_t>(what.parameters.data_bytes);
  datagram.qp_num = what.parameters.qpn;
  datagram.qkey = what.parameters.qkey;
  if (what.event == cm::Event::kEstablished && device != nullptr) write_handle(*id, *device, datagram.ah_attr);
  return out;
}

}  // namespace bypass::softverbs
