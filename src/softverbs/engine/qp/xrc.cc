// XRC, the extended reliable connection (InfiniBand specification, annex A14). A queue pair sends (XRC_SEND) or
// receives (XRC_RECV). What receives has no receive queue: each request names one by its number, which must be of the
// same XRC domain. That queue's protection domain holds for the request's keys, and its completion queue gets the
// completion.
#include <algorithm>
#include <cerrno>

#include "softverbs/engine/engine.h"

namespace bypass::rdma {
namespace {

// The index of a free number. Numbers go round, so that late packets for a destroyed queue reach no other.
std::uint32_t free_number(Engine& e) {
  const std::uint32_t most = e.config.limits.max_srq;
  const auto size = static_cast<std::uint32_t>(e.xrc_srqs.size());
  if (e.next_xrc_srq >= most) e.next_xrc_srq = 0;
  while (e.next_xrc_srq < size && e.xrc_srqs[e.next_xrc_srq] != nullptr) e.next_xrc_srq = (e.next_xrc_srq + 1) % most;
  if (e.next_xrc_srq >= size) e.xrc_srqs.resize(e.next_xrc_srq + 1);
  return e.next_xrc_srq++;
}

}  // namespace

Srq* find_xrc_srq(const Engine& e, const Xrcd& xrcd, std::uint32_t srqn) {
  const std::uint32_t index = srqn - 1;
  Srq* const srq = index < e.xrc_srqs.size() ? e.xrc_srqs[index] : nullptr;
  return srq != nullptr && srq->xrcd == &xrcd ? srq : nullptr;
}

std::uint8_t choose_receive_queue(const Engine& e, Qp& qp, const RocePacket& packet) {
  Responder& r = qp.resp;
  if (r.message != Message::kNone) return packet.srqn == r.srqn ? 0 : kNakInvalidRequest;
  r.srq = find_xrc_srq(e, *qp.xrcd, packet.srqn);
  r.srqn = packet.srqn;
  return r.srq != nullptr ? 0 : kNakInvalidRdRequest;
}

const Pd* pd_of(const Engine& e, const Qp& qp, const Resource& resource) {
  if (qp.type != IBV_QPT_XRC_RECV) return qp.pd;
  const Srq* const srq = find_xrc_srq(e, *qp.xrcd, resource.srqn);
  return srq != nullptr ? srq->pd : nullptr;
}

// The rest of a message finds no beginning, and is refused.
void leave_receive_queue(Engine& e, const Srq& srq) {
  for (const std::unique_ptr<Qp>& qp : e.qps) {
    if (qp == nullptr || qp->resp.srq != &srq) continue;
    qp->resp.srq = nullptr;
    qp->resp.message = Message::kNone;
    qp->resp.has_receive = false;
  }
}

Made<Xrcd> Device::open_xrcd(const XrcFile* file, bool create, bool exclusive) {
  Engine& e = *engine_;
  Xrcd* found = nullptr;
  if (file != nullptr) {
    found = e.xrcds.find([&](const Xrcd& each) { return each.has_file && each.file == *file; });
    if (found == nullptr && !create) return {nullptr, EAGAIN};
    if (found != nullptr && exclusive) return {nullptr, EINVAL};
  }
  if (found == nullptr) {
    if (e.xrcds.count() >= e.config.limits.max_pd) return {nullptr, ENOMEM};
    found = e.xrcds.add(std::make_unique<Xrcd>());
    found->has_file = file != nullptr;
    if (file != nullptr) found->file = *file;
  }
  found->openings++;
  return {found, 0};
}

int Device::close_xrcd(Xrcd& xrcd) {
  if (xrcd.openings == 1 && xrcd.references != 0) return EBUSY;
  if (--xrcd.openings == 0) engine_->xrcds.remove(xrcd);
  return 0;
}

Made<Srq> Device::create_xrc_srq(Pd& pd, Xrcd& xrcd, Cq& cq, const ibv_srq_attr& attr, void* user) {
  Engine& e = *engine_;
  const Made<Srq> made = create_srq(pd, attr, user);
  if (made.error != 0) return made;
  const std::uint32_t index = free_number(e);
  e.xrc_srqs[index] = made.object;
  made.object->number = index + 1;
  made.object->xrcd = &xrcd;
  made.object->cq = &cq;
  xrcd.references++;
  cq.references++;
  return made;
}

std::uint32_t Device::srq_number(const Srq& srq) {
  return srq.number;
}

Made<Qp> Device::open_qp(const Xrcd& xrcd, std::uint32_t qpn) {
  Qp* const qp = engine_->find_qp(qpn);
  if (qp == nullptr || qp->type != IBV_QPT_XRC_RECV || qp->xrcd != &xrcd) return {nullptr, EINVAL};
  qp->openings++;
  return {qp, 0};
}

}  // namespace bypass::rdma
