// The device's simpler objects: domains, memory, completion and shared receive queues, address handles, groups, rules.
#include <algorithm>
#include <bit>
#include <cerrno>

#include "softverbs/engine/engine.h"

namespace bypass::rdma {
namespace {

constexpr unsigned kKnownAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                                  IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND | IBV_ACCESS_HUGETLB |
                                  IBV_ACCESS_OPTIONAL_RANGE;

/// 0 or an errno, as Linux's ib_check_mr_access() has it. EOPNOTSUPP: memory on demand, which the device does not have.
int check_access(unsigned access) {
  const bool writes = (access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) != 0;
  if (writes && (access & IBV_ACCESS_LOCAL_WRITE) == 0) return EINVAL;
  if ((access & IBV_ACCESS_ON_DEMAND) != 0) return EOPNOTSUPP;
  return (access & ~kKnownAccess) == 0 ? 0 : EINVAL;
}

bool range_is_valid(const Engine& e, const void* addr, std::size_t length) {
  const auto start = reinterpret_cast<std::uintptr_t>(addr);
  return length <= e.config.limits.max_mr_size && start + length >= start;
}

constexpr std::uint32_t kMostShown = 16;  // completions shown at once, whose places are free before they are taken off

// Moves waiting completions to the front of a new ring.
/// Returns 0, or ENOMEM: a queue of the largest size needs some 170 MB.
int refit(Cq& cq, std::uint32_t cqe) {
  const std::uint32_t places = std::bit_ceil(cqe + kMostShown);
  std::unique_ptr<Completion[]> ring(new (std::nothrow) Completion[places]);
  if (ring == nullptr) return ENOMEM;
  const std::uint32_t count = cq.count();
  for (std::uint32_t i = 0; i < count; i++) ring[i] = cq.at(cq.head + i);
  cq.ring = std::move(ring);
  cq.places = places;
  cq.head = 0;
  cq.tail = count;
  cq.size = cqe;
  return 0;
}

bool same(const ibv_gid& a, const ibv_gid& b) {
  return std::ranges::equal(a.raw, b.raw);
}

}  // namespace

// --- Protection domains and memory

Made<Pd> Device::alloc_pd() {
  Engine& e = *engine_;
  if (e.pds.count() >= e.config.limits.max_pd) return {nullptr, ENOMEM};
  return {e.pds.add(std::make_unique<Pd>()), 0};
}

int Device::dealloc_pd(Pd& pd) {
  if (pd.references != 0) return EBUSY;
  engine_->pds.remove(pd);
  return 0;
}

Made<Mr> Device::reg_mr(Pd& pd, void* addr, std::size_t length, std::uint64_t iova, unsigned access) {
  Engine& e = *engine_;
  if (const int error = check_access(access); error != 0) return {nullptr, error};
  if (!range_is_valid(e, addr, length)) return {nullptr, EINVAL};
  Mr* mr = e.memory.add({&pd, static_cast<std::byte*>(addr), length, iova, access, 0});
  if (mr == nullptr) return {nullptr, ENOMEM};
  pd.references++;
  return {mr, 0};
}

int Device::rereg_mr(Mr& mr, unsigned flags, Pd* pd, void* addr, std::size_t length, unsigned access) {
  Engine& e = *engine_;
  const bool new_access = (flags & IBV_REREG_MR_CHANGE_ACCESS) != 0;
  const bool new_pd = (flags & IBV_REREG_MR_CHANGE_PD) != 0;
  const bool new_range = (flags & IBV_REREG_MR_CHANGE_TRANSLATION) != 0;
  if (flags == 0 || (flags & ~unsigned{IBV_REREG_MR_FLAGS_SUPPORTED}) != 0) return EINVAL;
  if (new_pd && pd == nullptr) return EINVAL;
  if (const int error = new_access ? check_access(access) : 0; error != 0) return error;
  if (new_range && !range_is_valid(e, addr, length)) return EINVAL;
  if (mr.windows != 0) return EINVAL;
  if (new_access) mr.access = access;
  if (new_range) {
    mr.addr = static_cast<std::byte*>(addr);
    mr.length = length;
    mr.iova = reinterpret_cast<std::uintptr_t>(addr);
  }
  if (new_pd) {
    mr.pd->references--;
    mr.pd = pd;
    pd->references++;
  }
  if (new_range) e.memory.rekey(mr);  // a peer's key is not for other memory
  return 0;
}

int Device::dereg_mr(Mr& mr) {
  if (mr.windows != 0) return EINVAL;
  mr.pd->references--;
  engine_->memory.remove(mr);
  return 0;
}

std::uint32_t Device::lkey(const Mr& mr) {
  return mr.key;
}

std::uint32_t Device::rkey(const Mr& mr) {
  return mr.key;
}

// --- Completion queues

Made<Cq> Device::create_cq(std::uint32_t cqe, void* user) {
  Engine& e = *engine_;
  if (cqe == 0 || cqe > e.config.limits.max_cqe) return {nullptr, EINVAL};
  if (e.cqs.count() >= e.config.limits.max_cq) return {nullptr, ENOMEM};
  auto made = std::make_unique<Cq>();
  if (const int error = refit(*made, cqe); error != 0) return {nullptr, error};
  Cq* const cq = e.cqs.add(std::move(made));
  cq->user = user;
  return {cq, 0};
}

int Device::resize_cq(Cq& cq, std::uint32_t cqe) {
  if (cqe == 0 || cqe > engine_->config.limits.max_cqe || cqe < cq.count()) return EINVAL;
  return refit(cq, cqe);
}

int Device::destroy_cq(Cq& cq) {
  Engine& e = *engine_;
  if (cq.references != 0) return EBUSY;
  e.notifications.remove(cq);
  e.events.remove(cq);
  e.cqs.remove(cq);
  return 0;
}

std::uint32_t Device::cqe(const Cq& cq) {
  return cq.size;
}

bool Device::overrun(const Cq& cq) {
  return cq.overrun;
}

std::size_t Device::poll_cq(Cq& cq, std::span<ibv_wc> out) {
  const std::size_t n = std::min<std::size_t>(out.size(), cq.count());
  for (std::size_t i = 0; i < n; i++) out[i] = cq.at(cq.head + static_cast<std::uint32_t>(i)).wc;
  pop(cq, n);
  return n;
}

std::size_t Device::peek(Cq& cq, std::span<Completion> out) {
  const auto n = static_cast<std::uint32_t>(std::min<std::size_t>(out.size(), cq.count()));
  for (std::uint32_t i = 0; i < n; i++) out[i] = cq.at(cq.head + i);
  for (; cq.shown < n; cq.shown++) give_place_back(*engine_, cq.at(cq.head + cq.shown));
  return n;
}

void Device::pop(Cq& cq, std::size_t count) {
  const auto n = static_cast<std::uint32_t>(count);
  for (std::uint32_t i = cq.shown; i < n; i++) give_place_back(*engine_, cq.at(cq.head + i));
  cq.head += n;
  cq.shown -= std::min(cq.shown, n);
}

int Device::request_notify(Cq& cq, bool solicited_only) {
  if (!solicited_only) {
    cq.notify = Notify::kAny;
  } else if (cq.notify == Notify::kNo) {
    cq.notify = Notify::kSolicited;
  }
  return 0;
}

bool Device::owes_notification() const {
  return engine_->cqs.any([](const Cq& cq) { return cq.notify != Notify::kNo; });
}

// --- Shared receive queues

Made<Srq> Device::create_srq(Pd& pd, const ibv_srq_attr& attr, void* user) {
  Engine& e = *engine_;
  const Limits& limits = e.config.limits;
  if (attr.max_wr == 0 || attr.max_wr > limits.max_srq_wr || attr.max_sge > limits.max_sge) return {nullptr, EINVAL};
  if (e.srqs.count() >= limits.max_srq) return {nullptr, ENOMEM};
  Srq* srq = e.srqs.add(std::make_unique<Srq>());
  srq->user = user;
  srq->pd = &pd;
  srq->queue.create(attr.max_wr, std::max(attr.max_sge, 1U));
  pd.references++;
  return {srq, 0};
}

int Device::modify_srq(Srq& srq, const ibv_srq_attr& attr, unsigned mask) {
  const bool new_size = (mask & IBV_SRQ_MAX_WR) != 0, new_limit = (mask & IBV_SRQ_LIMIT) != 0;
  const std::uint32_t size = new_size ? attr.max_wr : srq.queue.max_wr();
  if ((mask & ~unsigned{IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT}) != 0) return EINVAL;
  if (size == 0 || size > engine_->config.limits.max_srq_wr || size < srq.queue.count()) return EINVAL;
  if (new_limit && attr.srq_limit > size) return EINVAL;
  if (new_size) srq.queue.resize(size);
  if (new_limit) srq.limit = attr.srq_limit;
  return 0;
}

ibv_srq_attr Device::query_srq(const Srq& srq) {
  return {srq.queue.max_wr(), srq.queue.max_sge(), srq.limit};
}

int Device::destroy_srq(Srq& srq) {
  Engine& e = *engine_;
  if (srq.references != 0) return EBUSY;
  if (srq.xrcd != nullptr) {
    leave_receive_queue(e, srq);
    e.xrc_srqs[srq.number - 1] = nullptr;
    srq.xrcd->references--;
    srq.cq->references--;
  }
  e.events.remove(srq);
  srq.pd->references--;
  e.srqs.remove(srq);
  return 0;
}

int Device::post_srq_receive(Srq& srq, const ReceiveRequest& request) {
  return srq.queue.post(request);
}

// --- Addresses of datagrams, groups, steering

Made<Ah> Device::create_ah(Pd& pd, const ibv_ah_attr& attr) {
  Engine& e = *engine_;
  if (e.ahs.count() >= e.config.limits.max_ah) return {nullptr, ENOMEM};
  Path path;
  if (const int error = make_path(e, attr, 0, path)) return {nullptr, error};
  Ah* ah = e.ahs.add(std::make_unique<Ah>(Ah{&pd, path, attr}));
  pd.references++;
  return {ah, 0};
}

int Device::destroy_ah(Ah& ah) {
  Engine& e = *engine_;
  release_path(e, ah.path);
  ah.pd->references--;
  e.ahs.remove(ah);
  return 0;
}

int Device::attach_multicast(Qp& qp, const ibv_gid& gid) {
  Engine& e = *engine_;
  const IpAddress address = address_of(gid);
  if (qp.type != IBV_QPT_UD || !address.is_multicast()) return EINVAL;
  const auto found = std::ranges::find_if(e.groups, [&](const Group& g) { return g.qp == &qp && same(g.gid, gid); });
  if (found != e.groups.end()) return 0;
  if (e.groups.size() >= e.config.limits.max_multicast) return ENOMEM;
  e.groups.push_back({gid, &qp});
  qp.references++;
  return 0;
}

int Device::detach_multicast(Qp& qp, const ibv_gid& gid) {
  const auto is_it = [&](const Group& g) { return g.qp == &qp && same(g.gid, gid); };
  if (std::erase_if(engine_->groups, is_it) == 0) return EINVAL;
  qp.references--;
  return 0;
}

void Device::leave_groups(Qp& qp) {
  const auto left = std::erase_if(engine_->groups, [&](const Group& g) { return g.qp == &qp; });
  qp.references -= static_cast<std::uint32_t>(left);
}

Made<Flow> Device::create_flow(Qp& qp, const FlowRule& rule) {
  Engine& e = *engine_;
  if (qp.type != IBV_QPT_RAW_PACKET) return {nullptr, EINVAL};
  if (e.steering.size() >= e.config.limits.max_flow) return {nullptr, ENOMEM};
  std::vector<FlowSpec> steered;
  if (e.port_steering.is_needed()) {
    if (const int error = flows_of(rule, e.mac, e.gids, steered)) return {nullptr, error};
    if (const int error = e.port_steering.add(steered)) return {nullptr, error};
  }
  Flow* flow = e.flows.add(std::make_unique<Flow>(Flow{&qp, rule, std::move(steered)}));
  e.steering.add(*flow);
  qp.references++;
  return {flow, 0};
}

int Device::destroy_flow(Flow& flow) {
  engine_->steering.remove(flow);
  engine_->port_steering.remove(flow.steered);
  flow.qp->references--;
  engine_->flows.remove(flow);
  return 0;
}

}  // namespace bypass::rdma
