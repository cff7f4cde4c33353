// The software devices as ibv_get_device_list shows them.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>

namespace bypass::softverbs {

/// A device, followed by zeros where libibverbs keeps its provider's operations: libmlx5 and libefa look there to see
/// whether a device is theirs.
struct SoftDevice : ibv_device {
  std::byte provider[512];
  std::size_t index;
  __be64 guid;
};

SoftDevice* soft_device(ibv_device* device);  // null: the real library's

/// The GUID of device `index` of BYPASS_SOFT, in network order.
__be64 device_guid(std::size_t index);

}  // namespace bypass::softverbs
