// Protection domains and memory regions.
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

#include "softverbs/abi/adapter/setup.h"
#include "softverbs/abi/objects.h"
#include "softverbs/abi/real.h"

#undef ibv_reg_mr
#undef ibv_reg_mr_iova

namespace bypass::softverbs {
namespace {

int populate(std::uintptr_t begin, std::uintptr_t end, int advice) {
  int result = 0;
  do result = madvise(reinterpret_cast<void*>(begin), end - begin, advice);
  while (result != 0 && (errno == EINTR || errno == EAGAIN));
  return result;
}

// Linux before 5.14 does not have this advice; it returns EINVAL as for a range without the permission.
bool can_populate(std::uintptr_t page) {
  static const bool can = [page] {
    const std::uintptr_t begin = reinterpret_cast<std::uintptr_t>(&can) & ~(page - 1);
    return populate(begin, begin + page, MADV_POPULATE_READ) == 0;
  }();
  return can;
}

// As a driver pins memory: a missing page, or one that the device may write but the process may not, is refused now,
// and causes no signal when the first message comes. libbypass registers its arena, which exists and stays sparse.
// Called without a lock, as a large range takes long.
bool is_there(const void* addr, std::size_t length, unsigned access) {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(addr);
  const std::uintptr_t end = begin + length;
  if (is_hosted() || length == 0 || end < begin || !can_populate(page)) return true;
  return populate(begin & ~(page - 1), end,
                  (access & IBV_ACCESS_LOCAL_WRITE) != 0 ? MADV_POPULATE_WRITE : MADV_POPULATE_READ) == 0;
}

ibv_mr* register_memory(Context& context, ibv_pd* pd, void* addr, std::size_t length, std::uint64_t iova,
                        unsigned access) {
  // Optional rights may be left out.
  access &= ~static_cast<unsigned>(IBV_ACCESS_OPTIONAL_RANGE);
  if (!is_there(addr, length, access)) return refuse<ibv_mr>(EFAULT);
  Adapter::Turn turn(*context.adapter);
  if (!turn) return refuse<ibv_mr>(EIO);
  const auto made = turn->reg_mr(*ProtectionDomain::of(pd).engine, addr, length, iova, access);
  if (made.error != 0) return refuse<ibv_mr>(made.error);
  auto* const mr = new MemoryRegion;
  mr->engine = made.object;
  mr->access = access;
  mr->context = pd->context;
  mr->pd = pd;
  mr->addr = addr;
  mr->length = length;
  mr->lkey = mr->handle = rdma::Device::lkey(*made.object);
  mr->rkey = rdma::Device::rkey(*made.object);
  context.mrs.push_back(*mr);
  return mr;
}

}  // namespace

extern "C" {

ibv_pd* ibv_alloc_pd(ibv_context* context) {
  Context* const ours = Context::find(context);
  if (ours == nullptr) return BYPASS_REAL(ibv_alloc_pd)(context);
  Adapter::Turn turn(*ours->adapter);
  if (!turn) return refuse<ibv_pd>(EIO);
  const auto made = turn->alloc_pd();
  if (made.error != 0) return refuse<ibv_pd>(made.error);
  auto* const pd = new ProtectionDomain;
  pd->engine = made.object;
  pd->context = context;
  ours->pds.push_back(*pd);
  return pd;
}

int ibv_dealloc_pd(ibv_pd* pd) {
  Context* const ours = Context::find(pd->context);
  if (ours == nullptr) return BYPASS_REAL(ibv_dealloc_pd)(pd);
  Adapter::Turn turn(*ours->adapter);
  auto* const object = &ProtectionDomain::of(pd);
  const int error = turn ? turn->dealloc_pd(*object->engine) : 0;
  if (error == 0) delete object;
  return error;
}

ibv_mr* ibv_reg_mr(ibv_pd* pd, void* addr, std::size_t length, int access) {
  Context* const ours = Context::find(pd->context);
  if (ours == nullptr) return BYPASS_REAL(ibv_reg_mr)(pd, addr, length, access);
  return register_memory(*ours, pd, addr, length, reinterpret_cast<std::uintptr_t>(addr),
                         static_cast<unsigned>(access));
}

ibv_mr* ibv_reg_mr_iova(ibv_pd* pd, void* addr, std::size_t length, std::uint64_t iova, int access) {
  Context* const ours = Context::find(pd->context);
  if (ours == nullptr) return BYPASS_REAL(ibv_reg_mr_iova)(pd, addr, length, iova, access);
  return register_memory(*ours, pd, addr, length, iova, static_cast<unsigned>(access));
}

ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* addr, std::size_t length, std::uint64_t iova, unsigned access) {
  Context* const ours = Context::find(pd->context);
  if (ours == nullptr) return BYPASS_REAL(ibv_reg_mr_iova2)(pd, addr, length, iova, access);
  return register_memory(*ours, pd, addr, length, iova, access);
}

int ibv_rereg_mr(ibv_mr* mr, int flags, ibv_pd* pd, void* addr, std::size_t length, int access) {
  Context* const ours = Context::find(mr->context);
  if (ours == nullptr) return BYPASS_REAL(ibv_rereg_mr)(mr, flags, pd, addr, length, access);
  MemoryRegion& region = MemoryRegion::of(mr);
  const bool moves = (flags & IBV_REREG_MR_CHANGE_PD) != 0;
  const bool translation = (flags & IBV_REREG_MR_CHANGE_TRANSLATION) != 0;
  const bool foreign = moves && (pd == nullptr || pd->context != mr->context);
  const bool sound = (flags & ~IBV_REREG_MR_FLAGS_SUPPORTED) == 0 && !foreign &&
                     (!translation || (addr != nullptr && length != 0)) &&
                     (access == 0 || (flags & IBV_REREG_MR_CHANGE_ACCESS) != 0);
  if (!sound) {
    errno = EINVAL;
    return IBV_REREG_MR_ERR_INPUT;
  }
  const unsigned rights = (flags & IBV_REREG_MR_CHANGE_ACCESS) != 0
                              ? static_cast<unsigned>(access) & ~static_cast<unsigned>(IBV_ACCESS_OPTIONAL_RANGE)
                              : region.access;
  rdma::Pd* const domain = moves ? ProtectionDomain::of(pd).engine : nullptr;
  const bool there = translation ? is_there(addr, length, rights) : is_there(mr->addr, mr->length, rights);
  Adapter::Turn turn(*ours->adapter);
  int error = EIO;
  if (turn)
    error = there ? turn->rereg_mr(*region.engine, static_cast<unsigned>(flags), domain, addr, length, rights) : EFAULT;
  if (error != 0) {
    errno = error;
    return IBV_REREG_MR_ERR_CMD;
  }
  region.access = rights;
  if ((flags & IBV_REREG_MR_CHANGE_PD) != 0) mr->pd = pd;
  if (translation) {
    mr->addr = addr;
    mr->length = length;
  }
  mr->lkey = rdma::Device::lkey(*region.engine);
  mr->rkey = rdma::Device::rkey(*region.engine);
  return 0;
}

int ibv_dereg_mr(ibv_mr* mr) {
  Context* const ours = Context::find(mr->context);
  if (ours == nullptr) return BYPASS_REAL(ibv_dereg_mr)(mr);
  Adapter::Turn turn(*ours->adapter);
  auto* const region = &MemoryRegion::of(mr);
  const int error = turn ? turn->dereg_mr(*region->engine) : 0;
  if (error == 0) delete region;
  return error;
}

}  // extern "C"

}  // namespace bypass::softverbs
