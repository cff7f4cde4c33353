#include "softverbs/fabric.h"

#include <algorithm>

namespace bypass::rdma::test {
namespace {

sim::PortConfig port_config(unsigned number, const EndConfig& config) {
  sim::PortConfig port;
  port.mac = mac(number + 1);
  port.caps = config.caps;
  port.caps.mtu = config.mtu;
  port.caps.buffer_bytes = config.buffer_bytes;
  port.buffers = config.buffers;
  port.rx_segment = config.rx_segment;
  return port;
}

DeviceConfig device_config(unsigned number, DeviceConfig config) {
  if (config.addresses.empty()) config.addresses = {{IpAddress::from_v4(0x0a090000 + number + 1), 24}};
  config.secret = {number, 7919};
  return config;
}

bool is_connected(ibv_qp_type type) {
  return type != IBV_QPT_UD && type != IBV_QPT_RAW_PACKET;
}

PairConfig peer_config(PairConfig config) {
  if (config.type == IBV_QPT_XRC_SEND) config.type = IBV_QPT_XRC_RECV;
  return config;
}

std::byte pattern(std::size_t offset, unsigned salt) {
  return static_cast<std::byte>((offset * 131 + salt * 17 + offset / 251) & 0xff);
}

}  // namespace

// --- End

End::End(sim::Wire& wire, unsigned number, const EndConfig& config)
    : port_(wire.add_port(port_config(number, config))),
      device_(Device::create(device_config(number, config.device), port_)),
      memory_(new std::byte[kMemory]()),
      pd_(device_->alloc_pd().object),
      mr_(device_->reg_mr(*pd_, memory_.get(), kMemory, reinterpret_cast<std::uintptr_t>(memory_.get()), kAllAccess)
              .object),
      cq_(device_->create_cq(4096, this).object) {}

End::~End() = default;

void End::fill(std::size_t offset, std::size_t length, unsigned salt) {
  for (std::size_t i = 0; i < length; i++) memory_[offset + i] = pattern(i, salt);
}

bool End::holds(std::size_t offset, std::size_t length, unsigned salt) {
  for (std::size_t i = 0; i < length; i++)
    if (memory_[offset + i] != pattern(i, salt)) return false;
  return true;
}

Qp& End::add_qp(QpInit init) {
  init.pd = pd_;
  if (init.send_cq == nullptr) init.send_cq = cq_;
  if (init.receive_cq == nullptr) init.receive_cq = cq_;
  const Made<Qp> made = device_->create_qp(init);
  if (made.object == nullptr) std::abort();
  return *made.object;
}

std::vector<ibv_wc> End::poll(Cq& cq) {
  std::vector<ibv_wc> all;
  std::array<ibv_wc, 16> some;
  for (std::size_t n = 0; (n = device_->poll_cq(cq, some)) != 0;) all.insert(all.end(), some.begin(), some.begin() + n);
  return all;
}

std::vector<AsyncEvent> End::events() {
  std::vector<AsyncEvent> all;
  for (AsyncEvent event; device_->take_async_event(event);) all.push_back(event);
  return all;
}

// --- Fabric

End& Fabric::add_end(const EndConfig& config) {
  ends_.push_back(std::make_unique<End>(wire_, static_cast<unsigned>(ends_.size()), config));
  return *ends_.back();
}

void Fabric::turn() {
  wire_.set_now(now_);
  for (const auto& end : ends_) end->device().poll(now_, acks);
}

Instant Fabric::next_moment() {
  Instant next = kNever;
  for (const auto& end : ends_) {
    const bool more = end->device().output_pending();
    next = std::min({next, more ? now_ + 1us : end->device().next_timeout(), end->port().next_arrival()});
  }
  return std::max(next, now_);
}

bool Fabric::run_until(const std::function<bool()>& done, Duration limit) {
  const Instant end = now_ + limit;
  Instant last = now_ - 1ns;
  for (;;) {
    turn();
    if (done()) return true;
    if (now_ == end) return false;
    Instant next = next_moment();
    if (next == now_ && last == now_) next = now_ + 1us;
    last = now_;
    now_ = std::min(next, end);
  }
}

void Fabric::settle(Duration limit) {
  const Instant end = now_ + limit;
  run_until([&] { return next_moment() > end; }, limit);
}

// --- Pair

Half::Half(End& device_end, const PairConfig& pair_config) : end(device_end), config(pair_config) {
  QpInit init;
  init.type = config.type;
  init.cap = {config.depth, config.depth, config.sges, config.sges, config.inline_bytes};
  init.sq_sig_all = config.sq_sig_all;
  init.user = this;
  srq = config.srq;
  if (config.use_srq) srq = end.device().create_srq(end.pd(), {config.depth, config.sges, 0}, this).object;
  if (config.type == IBV_QPT_XRC_RECV) {
    Device& device = end.device();
    xrcd = config.xrcd != nullptr ? config.xrcd : device.open_xrcd(nullptr, true, false).object;
    if (srq == nullptr)
      srq = device.create_xrc_srq(end.pd(), *xrcd, end.cq(), {config.depth, config.sges, 0}, this).object;
    init.xrcd = xrcd;
  } else {
    init.srq = srq;
  }
  qp = &end.add_qp(init);
}

int Half::send(const SendRequest& request, std::span<const ibv_sge> sges) {
  SendRequest whole = request;
  whole.sges = sges;
  if (config.type == IBV_QPT_XRC_SEND) whole.remote_srqn = remote_srqn;
  return end.device().post_send(*qp, whole);
}

int Half::send(SendRequest request, std::size_t offset, std::size_t length) {
  const ibv_sge sge = end.sge(offset, length);
  return send(request, std::span{&sge, 1});
}

int Half::receive(std::uint64_t wr_id, std::size_t offset, std::size_t length) {
  const ibv_sge sge = end.sge(offset, length);
  const ReceiveRequest request{wr_id, {&sge, 1}};
  return srq != nullptr ? end.device().post_srq_receive(*srq, request) : end.device().post_receive(*qp, request);
}

int Half::to_state(ibv_qp_state state) {
  ibv_qp_attr attr{};
  attr.qp_state = state;
  return modify(attr, IBV_QP_STATE);
}

Pair::Pair(const PairConfig& pair_config, std::uint64_t seed)
    : config(pair_config),
      fabric(seed),
      a(fabric.add_end(config.end), config),
      b(fabric.add_end(config.end), peer_config(config)) {
  if (config.type == IBV_QPT_XRC_SEND) a.remote_srqn = Device::srq_number(*b.srq);
  for (Half* half : {&a, &b}) {
    Half& peer = half == &a ? b : a;
    if (init(*half) != 0 || to_rtr(*half, peer) != 0 || to_rts(*half) != 0) std::abort();
  }
}

int Pair::init(Half& half) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = 1;
  attr.qp_access_flags = half.config.access;
  attr.qkey = half.config.qkey;
  unsigned mask = IBV_QP_STATE | IBV_QP_PORT;
  if (half.config.type == IBV_QPT_UD) mask |= IBV_QP_PKEY_INDEX | IBV_QP_QKEY;
  if (is_connected(half.config.type)) mask |= IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS;
  return half.modify(attr, mask);
}

int Pair::to_rtr(Half& half, Half& peer) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTR;
  attr.ah_attr.is_global = 1;
  attr.ah_attr.port_num = 1;
  attr.ah_attr.grh.dgid = peer.end.gid(half.config.gid);
  attr.ah_attr.grh.sgid_index = static_cast<std::uint8_t>(half.config.gid);
  attr.path_mtu = half.config.mtu;
  attr.dest_qp_num = Device::qpn(*peer.qp);
  attr.rq_psn = half.config.psn;
  attr.max_dest_rd_atomic = half.config.rd_atomic;
  attr.min_rnr_timer = half.config.rnr_timer;
  unsigned mask = IBV_QP_STATE;
  if (is_connected(half.config.type)) mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  if (half.config.type == IBV_QPT_RC || half.config.type == IBV_QPT_XRC_RECV)
    mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  if (half.config.type == IBV_QPT_UD) half.ah = half.end.device().create_ah(half.end.pd(), attr.ah_attr).object;
  return half.modify(attr, mask);
}

int Pair::to_rts(Half& half) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTS;
  attr.sq_psn = half.config.psn;
  attr.timeout = half.config.timeout;
  attr.retry_cnt = half.config.retries;
  attr.rnr_retry = half.config.rnr_retries;
  attr.max_rd_atomic = half.config.rd_atomic;
  unsigned mask = IBV_QP_STATE;
  if (half.config.type != IBV_QPT_RAW_PACKET) mask |= IBV_QP_SQ_PSN;
  if (half.config.type == IBV_QPT_XRC_RECV) mask |= IBV_QP_TIMEOUT;
  if (half.config.type == IBV_QPT_RC || half.config.type == IBV_QPT_XRC_SEND)
    mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
  return half.modify(attr, mask);
}

ibv_wc only(End& end) {
  const std::vector<ibv_wc> all = end.poll();
  if (all.size() == 1) return all[0];
  ibv_wc none{};
  none.status = kNoStatus;
  none.byte_len = static_cast<std::uint32_t>(all.size());
  return none;
}

}  // namespace bypass::rdma::test
