#include "softverbs/abi/cm/management_port.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "os/log/log.h"
#include "softverbs/abi/adapter/setup.h"
#include "softverbs/abi/device_list.h"

namespace bypass::softverbs {
namespace {

ibv_gid gid_of(const IpAddress& address) {
  ibv_gid gid;
  std::memcpy(gid.raw, address.bytes.data(), sizeof gid.raw);
  return gid;
}

IpAddress address_of(const ibv_gid& gid) {
  IpAddress address;
  std::memcpy(address.bytes.data(), gid.raw, sizeof gid.raw);
  return address;
}

// The two addresses of the header before a datagram, of which IPv4's is in the last 20 bytes (annex A17).
void read_grh(const std::array<std::byte, 40>& grh, IpAddress& from, IpAddress& to) {
  constexpr std::size_t kV4Source = 32, kV6Source = 8;
  const bool v6 = std::to_integer<unsigned>(grh[0]) >> 4 == 6;
  if (v6) {
    std::memcpy(from.bytes.data(), grh.data() + kV6Source, 16);
    std::memcpy(to.bytes.data(), grh.data() + kV6Source + 16, 16);
    return;
  }
  from = to = IpAddress::from_v4(0);
  std::memcpy(from.bytes.data() + 12, grh.data() + kV4Source, 4);
  std::memcpy(to.bytes.data() + 12, grh.data() + kV4Source + 4, 4);
}

}  // namespace

std::unique_ptr<ManagementPort> ManagementPort::open(std::size_t index, int wake_fd) {
  Adapter* const adapter = Adapter::attach(index);
  if (adapter == nullptr) return nullptr;
  std::unique_ptr<ManagementPort> port(new ManagementPort(*adapter, index));
  int error = EIO;
  {
    Adapter::Turn turn(*adapter);
    if (turn) error = port->make_queue_pair(turn, wake_fd);
  }
  if (error == 0) return port;
  BYPASS_LOG_ERROR("soft%zu has no connection management: queue pair 1 cannot be made: %s", index, strerror(error));
  adapter->detach();
  return nullptr;
}

int ManagementPort::make_queue_pair(Adapter::Turn& turn, int wake_fd) {
  const auto pd = turn->alloc_pd();
  if (pd.error != 0) return pd.error;
  pd_ = pd.object;
  const auto mr = turn->reg_mr(*pd_, buffers_.data(), buffers_.size() * sizeof(Buffer),
                               reinterpret_cast<std::uintptr_t>(buffers_.data()), IBV_ACCESS_LOCAL_WRITE);
  const auto sends = turn->create_cq(kSends, this), receives = turn->create_cq(kReceives, this);
  mr_ = mr.object;
  send_cq_ = sends.object;
  receive_cq_ = receives.object;
  if (const int error = mr.error | sends.error | receives.error; error != 0) return ENOMEM;
  rdma::QpInit init;
  init.pd = pd_;
  init.send_cq = send_cq_;
  init.receive_cq = receive_cq_;
  init.type = IBV_QPT_UD;
  init.cap = {kSends, kReceives, 1, 1, sizeof(cm::Mad)};
  init.management = true;
  init.user = this;
  const auto qp = turn->create_qp(init);
  if (qp.error != 0) return qp.error;
  qp_ = qp.object;
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = 1;
  attr.qkey = cm::kManagementQkey;
  int error = turn->modify_qp(*qp_, attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
  for (std::size_t i = 0; i < buffers_.size(); i++) post(turn, i);
  attr.qp_state = IBV_QPS_RTR;
  if (error == 0) error = turn->modify_qp(*qp_, attr, IBV_QP_STATE);
  attr.qp_state = IBV_QPS_RTS;
  if (error == 0) error = turn->modify_qp(*qp_, attr, IBV_QP_STATE | IBV_QP_SQ_PSN);
  if (error != 0) return error;
  adapter_.set_management(this, wake_fd);
  return turn->request_notify(*receive_cq_, false);
}

void ManagementPort::post(Adapter::Turn& turn, std::size_t buffer) {
  ibv_sge sge{reinterpret_cast<std::uintptr_t>(&buffers_[buffer]), sizeof(Buffer), rdma::Device::lkey(*mr_)};
  turn->post_receive(*qp_, {buffer, {&sge, 1}});
}

cm::DeviceInfo ManagementPort::describe() {
  cm::DeviceInfo info;
  info.guid = device_guid(index_);
  const runtime::PortConfig& wire = setup().soft[index_];
  info.addresses = wire.addresses;
  for (const IpAddress& gateway : wire.gateways)
    if (gateway.is_v4()) info.gateway = gateway;
  const Adapter::Turn turn(adapter_);
  if (!turn) return info;
  for (const ibv_gid& gid : turn->gids()) info.gids.push_back(address_of(gid));
  info.mtu = static_cast<std::uint8_t>(turn->active_mtu());
  return info;
}

rdma::Resolution ManagementPort::look_for(Adapter::Turn& turn, const IpAddress& address) {
  const ibv_gid gid = gid_of(address);
  for (const ibv_gid& own : turn->gids())
    if (std::memcmp(own.raw, gid.raw, sizeof gid.raw) == 0) return rdma::Resolution::kKnown;
  return turn->resolve(gid, adapter_.now());
}

void ManagementPort::send(const IpAddress& from, const IpAddress& to, const cm::Mad& mad) {
  constexpr Duration kPatience = std::chrono::seconds(1);
  Adapter::Turn turn(adapter_);
  if (!turn) return;
  const rdma::Resolution found = look_for(turn, to);
  if (found == rdma::Resolution::kKnown) return send_now(turn, from, to, mad);
  if (found == rdma::Resolution::kAsked) {
    if (waiting_.size() == kMostWaiting) waiting_.pop_front();
    waiting_.push_back({from, to, mad, adapter_.now() + kPatience});
  }
  turn.run();
}

void ManagementPort::send_waiting() {
  if (waiting_.empty()) return;
  Adapter::Turn turn(adapter_);
  if (!turn) return waiting_.clear();
  const Instant now = adapter_.now();
  std::erase_if(waiting_, [&](const Waiting& each) {
    const rdma::Resolution found = look_for(turn, each.to);
    if (found == rdma::Resolution::kKnown) send_now(turn, each.from, each.to, each.mad);
    return found != rdma::Resolution::kAsked || each.until <= now;
  });
  turn.run();
}

void ManagementPort::send_now(Adapter::Turn& turn, const IpAddress& from, const IpAddress& to, const cm::Mad& mad) {
  std::array<ibv_wc, 16> done;
  while (turn->poll_cq(*send_cq_, done) != 0) {
  }
  const auto gids = turn->gids();
  const ibv_gid own = gid_of(from);
  const auto at = std::find_if(gids.begin(), gids.end(),
                               [&](const ibv_gid& gid) { return std::memcmp(gid.raw, own.raw, sizeof own.raw) == 0; });
  if (at == gids.end()) return;
  ibv_ah_attr attr{};
  attr.is_global = 1;
  attr.port_num = 1;
  attr.grh.dgid = gid_of(to);
  attr.grh.sgid_index = static_cast<std::uint8_t>(at - gids.begin());
  attr.grh.hop_limit = 64;
  const auto handle = turn->create_ah(*pd_, attr);
  if (handle.error != 0) return;
  ibv_sge sge{reinterpret_cast<std::uintptr_t>(mad.data()), static_cast<std::uint32_t>(mad.size()), 0};
  rdma::SendRequest request;
  request.flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED;
  request.sges = {&sge, 1};
  request.ah = handle.object;
  request.remote_qpn = cm::kManagementQpn;
  request.remote_qkey = cm::kManagementQkey;
  turn->post_send(*qp_, request);  // a full queue is a lost message, which is sent again
  turn->destroy_ah(*handle.object);
  turn.run();
}

cm::Neighbour ManagementPort::resolve(const IpAddress& address) {
  Adapter::Turn turn(adapter_);
  if (!turn) return cm::Neighbour::kAsked;
  const bool known = look_for(turn, address) == rdma::Resolution::kKnown;
  turn.run();
  return known ? cm::Neighbour::kKnown : cm::Neighbour::kAsked;
}

bool ManagementPort::take_peer_lost() {
  const Adapter::Turn turn(adapter_);
  return adapter_.take_peer_lost();
}

void ManagementPort::receive(std::vector<Received>& out) {
  Adapter::Turn turn(adapter_);
  if (!turn) return;
  std::array<ibv_wc, 16> done;
  turn->request_notify(*receive_cq_, false);  // before the last look: nothing that comes meanwhile is missed
  for (std::size_t n = 0; (n = turn->poll_cq(*receive_cq_, done)) != 0;) {
    for (std::size_t i = 0; i < n; i++) {
      const auto place = static_cast<std::size_t>(done[i].wr_id);
      if (done[i].status != IBV_WC_SUCCESS || place >= buffers_.size()) continue;
      const Buffer& buffer = buffers_[place];
      if (done[i].byte_len == sizeof(Buffer) && done[i].src_qp == cm::kManagementQpn) {
        Received& received = out.emplace_back();
        read_grh(buffer.grh, received.from, received.to);
        received.mad = buffer.mad;
      }
      post(turn, place);
    }
  }
}

}  // namespace bypass::softverbs
