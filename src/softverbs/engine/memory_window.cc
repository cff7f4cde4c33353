// Memory windows (InfiniBand specification, 10.6.7 and 10.6.7.2): a key for a part of a region, with rights of its own,
// that is bound and invalidated by requests. A window of type 1 is for its domain. One of type 2 is for the peer of the
// queue pair that has bound it (type 2B: of the same domain), and the peer may invalidate it.
#include <cerrno>

#include "softverbs/engine/engine.h"

namespace bypass::rdma {
namespace {

constexpr unsigned kRemoteWrites = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
// The right to write locally means nothing for a window, but programs name it.
constexpr unsigned kWindowAccess =
    kRemoteWrites | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ZERO_BASED;

// C10-73 to C10-75.
bool covers(const Mr& region, const SendWqe& w) {
  const std::uint64_t access = w.swap, length = w.compare_add;
  if ((region.access & IBV_ACCESS_MW_BIND) == 0 || (access & ~std::uint64_t{kWindowAccess}) != 0) return false;
  if ((access & kRemoteWrites) != 0 && (region.access & IBV_ACCESS_LOCAL_WRITE) == 0) return false;
  const std::uint64_t offset = w.remote_addr - region.iova;  // huge for an address below the region
  return offset <= region.length && length <= region.length - offset;
}

}  // namespace

ibv_wc_status bind_window(Engine& e, const Qp& qp, const SendWqe& w) {
  Mr* const window = e.memory.window_at(w.window_place);
  if (window == nullptr || window->pd != qp.pd || MemoryTable::place(w.rkey) != w.window_place)
    return IBV_WC_MW_BIND_ERR;
  const bool of_type_2 = window->type == IBV_MW_TYPE_2;
  if (of_type_2 && window->region != nullptr) return IBV_WC_MW_BIND_ERR;  // it must be invalidated first (o10-37.2.30)
  Mr* const region = e.memory.region(w.region_key);
  const bool unbinds = !of_type_2 && (w.region_key == 0 || w.compare_add == 0);
  if (!unbinds && (region == nullptr || region->pd != qp.pd || w.compare_add == 0 || !covers(*region, w)))
    return IBV_WC_MW_BIND_ERR;
  MemoryTable::unbind(*window);
  e.memory.rekey_window(*window, w.rkey);
  if (unbinds) return IBV_WC_SUCCESS;
  region->windows++;
  window->region = region;
  window->qpn = of_type_2 ? qp.qpn : 0;
  window->addr = region->addr + (w.remote_addr - region->iova);
  window->length = w.compare_add;
  window->iova = (w.swap & IBV_ACCESS_ZERO_BASED) != 0 ? 0 : w.remote_addr;
  window->access = static_cast<unsigned>(w.swap);
  return IBV_WC_SUCCESS;
}

bool invalidate(Engine& e, const Qp& qp, std::uint32_t key) {
  Mr* const window = e.memory.window_at(MemoryTable::place(key));
  const bool its_own = window != nullptr && window->key == key && window->type == IBV_MW_TYPE_2 &&
                       window->region != nullptr && window->qpn == qp.qpn;
  if (its_own) MemoryTable::unbind(*window);
  return its_own;
}

Made<Mr> Device::alloc_mw(Pd& pd, ibv_mw_type type) {
  if (type != IBV_MW_TYPE_1 && type != IBV_MW_TYPE_2) return {nullptr, EINVAL};
  Mr* const window = engine_->memory.add_window(pd, type);
  if (window == nullptr) return {nullptr, ENOMEM};
  pd.references++;
  return {window, 0};
}

void Device::dealloc_mw(Mr& window) {
  window.pd->references--;
  engine_->memory.remove(window);
}

}  // namespace bypass::rdma
