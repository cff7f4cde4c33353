// XRC domains: private ones, and those that are named by a file (ibv_open_xrcd(3)). The device is the process's, and so
// are its domains: the file names one among the contexts of a process.
#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>

#include "softverbs/abi/objects.h"
#include "softverbs/abi/operations.h"

namespace bypass::softverbs {

ibv_xrcd* open_xrcd(ibv_context* context, ibv_xrcd_init_attr* attr) {
  constexpr std::uint32_t kNeeded = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
  if ((attr->comp_mask & ~kNeeded) != 0) return refuse<ibv_xrcd>(EOPNOTSUPP);
  if ((attr->comp_mask & kNeeded) != kNeeded) return refuse<ibv_xrcd>(EINVAL);
  struct stat file {};
  if (attr->fd != -1 && fstat(attr->fd, &file) != 0) return nullptr;
  const rdma::XrcFile name{file.st_dev, file.st_ino};
  Context& ours = Context::of(context);
  const Adapter::Turn turn(*ours.adapter);
  if (!turn) return refuse<ibv_xrcd>(EIO);
  const auto made =
      turn->open_xrcd(attr->fd != -1 ? &name : nullptr, (attr->oflags & O_CREAT) != 0, (attr->oflags & O_EXCL) != 0);
  if (made.error != 0) return refuse<ibv_xrcd>(made.error);
  auto* const xrcd = new XrcDomain;
  xrcd->engine = made.object;
  xrcd->context = context;
  ours.xrcds.push_back(*xrcd);
  return xrcd;
}

int close_xrcd(ibv_xrcd* xrcd) {
  const Adapter::Turn turn(*Context::of(xrcd->context).adapter);
  XrcDomain* const domain = &XrcDomain::of(xrcd);
  if (domain->users != 0) return EBUSY;
  const int error = turn ? turn->close_xrcd(*domain->engine) : 0;
  if (error == 0) delete domain;
  return error;
}

}  // namespace bypass::softverbs
