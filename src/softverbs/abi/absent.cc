// Functions that the software devices do not have: refused as a device without them refuses.
#include <cerrno>

#include "softverbs/abi/objects.h"
#include "softverbs/abi/real.h"

namespace bypass::softverbs {

extern "C" {

ibv_pd* ibv_import_pd(ibv_context* context, std::uint32_t handle) {
  if (Context::find(context) == nullptr) return BYPASS_REAL(ibv_import_pd)(context, handle);
  return refuse<ibv_pd>(EOPNOTSUPP);
}

void ibv_unimport_pd(ibv_pd* pd) {
  if (Context::find(pd->context) == nullptr) BYPASS_REAL(ibv_unimport_pd)(pd);
}

ibv_mr* ibv_import_mr(ibv_pd* pd, std::uint32_t handle) {
  if (Context::find(pd->context) == nullptr) return BYPASS_REAL(ibv_import_mr)(pd, handle);
  return refuse<ibv_mr>(EOPNOTSUPP);
}

void ibv_unimport_mr(ibv_mr* mr) {
  if (Context::find(mr->context) == nullptr) BYPASS_REAL(ibv_unimport_mr)(mr);
}

ibv_dm* ibv_import_dm(ibv_context* context, std::uint32_t handle) {
  if (Context::find(context) == nullptr) return BYPASS_REAL(ibv_import_dm)(context, handle);
  return refuse<ibv_dm>(EOPNOTSUPP);
}

ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* pd, std::uint64_t offset, std::size_t length, std::uint64_t iova, int fd,
                          int access) {
  if (Context::find(pd->context) == nullptr)
    return BYPASS_REAL(ibv_reg_dmabuf_mr)(pd, offset, length, iova, fd, access);
  return refuse<ibv_mr>(EOPNOTSUPP);
}

int ibv_set_ece(ibv_qp* qp, ibv_ece* ece) {
  if (Context::find(qp->context) == nullptr) return BYPASS_REAL(ibv_set_ece)(qp, ece);
  errno = EOPNOTSUPP;
  return EOPNOTSUPP;
}

int ibv_query_ece(ibv_qp* qp, ibv_ece* ece) {
  if (Context::find(qp->context) == nullptr) return BYPASS_REAL(ibv_query_ece)(qp, ece);
  return EOPNOTSUPP;
}

}  // extern "C"

}  // namespace bypass::softverbs
