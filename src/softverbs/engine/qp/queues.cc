// The rare operations of a receive queue (objects.h): adding a request, changing its size.
#include <cerrno>

#include "softverbs/engine/qp/objects.h"

namespace bypass::rdma {

int ReceiveQueue::post(const ReceiveRequest& request) {
  if (request.sges.size() > max_sge_) return EINVAL;
  if (count() >= max_wr_) return ENOMEM;
  const std::uint32_t place = index(tail_++);
  ring_[place] = {request.wr_id, static_cast<std::uint16_t>(request.sges.size())};
  std::ranges::copy(request.sges, sges_.begin() + std::ptrdiff_t{place} * max_sge_);
  return 0;
}

void ReceiveQueue::resize(std::uint32_t max_wr) {
  ReceiveQueue other;
  other.create(max_wr, max_sge_);
  for (; !empty(); pop()) static_cast<void>(other.post({front().wr_id, front_sges()}));
  *this = std::move(other);
}

}  // namespace bypass::rdma
