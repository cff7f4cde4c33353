// The properties of a device and its port.
#include <cerrno>
#include <cstring>

#include "os/log/log.h"
#include "softverbs/abi/adapter/setup.h"
#include "softverbs/abi/device_list.h"
#include "softverbs/abi/objects.h"
#include "softverbs/abi/operations.h"
#include "softverbs/abi/real.h"

#undef ibv_query_port  // the macro hides the function that older programs call

/// As in libibverbs' private header.
enum ibv_gid_type_sysfs { IBV_GID_TYPE_SYSFS_IB_ROCE_V1, IBV_GID_TYPE_SYSFS_ROCE_V2 };

extern "C" int ibv_query_gid_type(ibv_context* context, std::uint8_t port, unsigned index, ibv_gid_type_sysfs* type);

namespace bypass::softverbs {
namespace {

constexpr std::uint8_t kPort = 1;
constexpr std::uint16_t kDefaultPkey = 0xffff;

template <typename T>
void copy_out(const T& from, T* to, std::size_t bytes) {
  std::memset(static_cast<void*>(to), 0, bytes);
  std::memcpy(static_cast<void*>(to), &from, std::min(bytes, sizeof from));
}

int as_int(std::uint32_t value) {
  return static_cast<int>(value);
}

ibv_device_attr describe(const rdma::Limits& limits, __be64 guid) {
  ibv_device_attr attr{};
  std::strncpy(attr.fw_ver, BYPASS_VERSION, sizeof attr.fw_ver - 1);
  attr.node_guid = attr.sys_image_guid = guid;
  attr.vendor_id = 0xffffff;  // as soft-RoCE's: programs take 0 for a device that cannot be asked
  attr.max_mr_size = limits.max_mr_size;
  attr.page_size_cap = 0xfffff000;
  attr.max_qp = as_int(limits.max_qp);
  attr.max_qp_wr = as_int(limits.max_qp_wr);
  attr.device_cap_flags = IBV_DEVICE_BAD_PKEY_CNTR | IBV_DEVICE_BAD_QKEY_CNTR | IBV_DEVICE_CHANGE_PHY_PORT |
                          IBV_DEVICE_PORT_ACTIVE_EVENT | IBV_DEVICE_SYS_IMAGE_GUID | IBV_DEVICE_RC_RNR_NAK_GEN |
                          IBV_DEVICE_SRQ_RESIZE | IBV_DEVICE_RAW_IP_CSUM | IBV_DEVICE_MANAGED_FLOW_STEERING |
                          IBV_DEVICE_XRC | IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B |
                          IBV_DEVICE_MEM_MGT_EXTENSIONS;
  attr.max_sge = attr.max_sge_rd = as_int(limits.max_sge);
  attr.max_cq = as_int(limits.max_cq);
  attr.max_cqe = as_int(limits.max_cqe);
  attr.max_mr = as_int(limits.max_mr);
  attr.max_mw = as_int(limits.max_mr);
  attr.max_pd = as_int(limits.max_pd);
  attr.max_qp_rd_atom = attr.max_qp_init_rd_atom = as_int(limits.max_rd_atomic);
  attr.max_res_rd_atom = as_int(limits.max_rd_atomic * limits.max_qp);
  attr.atomic_cap = IBV_ATOMIC_HCA;
  attr.max_raw_ethy_qp = as_int(limits.max_qp);
  attr.max_mcast_grp = attr.max_total_mcast_qp_attach = attr.max_mcast_qp_attach = as_int(limits.max_multicast);
  attr.max_ah = as_int(limits.max_ah);
  attr.max_srq = as_int(limits.max_srq);
  attr.max_srq_wr = as_int(limits.max_srq_wr);
  attr.max_srq_sge = as_int(limits.max_sge);
  attr.max_pkeys = 1;
  attr.phys_port_cnt = 1;
  return attr;
}

ibv_port_attr describe_port(Adapter::Turn& turn) {
  ibv_port_attr attr{};
  attr.state = turn.port_state();
  attr.max_mtu = turn->max_mtu();
  attr.active_mtu = turn->active_mtu();
  attr.gid_tbl_len = static_cast<int>(turn->gids().size());
  attr.max_msg_sz = turn->limits().max_message;
  attr.pkey_tbl_len = 1;
  attr.max_vl_num = 1;
  // A wire in memory has no speed, but tools want to see one (4X EDR).
  attr.active_width = 2;
  attr.active_speed = 32;
  attr.phys_state = static_cast<std::uint8_t>(turn.physical_state());
  attr.link_layer = IBV_LINK_LAYER_ETHERNET;
  return attr;
}

// RoCE v2's GIDs are the addresses. Index 0 is the link-local address, which each device has.
void say_that_there_is_no_address(std::uint32_t index) {
  static const bool said = [index] {
    BYPASS_LOG_WARN(
        "a software RDMA device has no GID %u, as it has no address; BYPASS_SOFT_ADDR gives it one "
        "(BYPASS_SOFT_ADDR=10.9.0.1/24, say), its GID 1",
        index);
    return true;
  }();
  (void)said;
}

// Returns 0, EINVAL (no such port), ENODATA (no such entry), or EIO.
int find_gid(Context& context, std::uint32_t port, std::uint32_t index, ibv_gid_entry& entry, bool says = true) {
  Adapter::Turn turn(*context.adapter);
  if (!turn) return EIO;
  if (port != kPort) return EINVAL;
  const auto gids = turn->gids();
  if (index >= gids.size()) {
    if (says && gids.size() == 1 && !is_hosted()) say_that_there_is_no_address(index);
    return EINVAL;
  }
  entry = {};
  entry.gid = gids[index];
  entry.gid_index = index;
  entry.port_num = port;
  entry.gid_type = IBV_GID_TYPE_ROCE_V2;
  entry.ndev_ifindex = turn.interface();
  return 0;
}

}  // namespace

int query_port(ibv_context* context, std::uint8_t port, ibv_port_attr* attr, std::size_t bytes) {
  Adapter::Turn turn(*Context::of(context).adapter);
  if (!turn) return EIO;
  if (port != kPort) return EINVAL;
  copy_out(describe_port(turn), attr, bytes);
  return 0;
}

int query_device_ex(ibv_context* context, const ibv_query_device_ex_input* input, ibv_device_attr_ex* attr,
                    std::size_t bytes) {
  if (input != nullptr && input->comp_mask != 0) return EINVAL;
  Adapter::Turn turn(*Context::of(context).adapter);
  if (!turn) return EIO;
  ibv_device_attr_ex all{};
  all.orig_attr = describe(turn->limits(), soft_device(context->device)->guid);
  all.completion_timestamp_mask = ~std::uint64_t{0};
  all.hca_core_clock = 1'000'000;  // kHz: timestamps are nanoseconds
  all.device_cap_flags_ex = all.orig_attr.device_cap_flags;
  all.tso_caps.max_tso = turn->max_tso();
  if (all.tso_caps.max_tso != 0) all.tso_caps.supported_qpts = 1U << IBV_QPT_RAW_PACKET;
  all.raw_packet_caps = IBV_RAW_PACKET_CAP_IP_CSUM;
  all.phys_port_cnt_ex = 1;
  copy_out(all, attr, bytes);
  return 0;
}

int query_rt_values(ibv_context* context, ibv_values_ex* values) {
  const std::uint32_t known = values->comp_mask & IBV_VALUES_MASK_RAW_CLOCK;
  values->comp_mask = known;
  if (known == 0) return EINVAL;
  const Duration now = Context::of(context).adapter->now().time_since_epoch();
  values->raw_clock.tv_sec = now / std::chrono::seconds{1};
  values->raw_clock.tv_nsec = (now % std::chrono::seconds{1}).count();
  return 0;
}

extern "C" {

int ibv_query_device(ibv_context* context, ibv_device_attr* attr) {
  if (Context::find(context) == nullptr) return BYPASS_REAL(ibv_query_device)(context, attr);
  ibv_device_attr_ex all;
  const int error = query_device_ex(context, nullptr, &all, sizeof all);
  if (error == 0) *attr = all.orig_attr;
  return error;
}

int ibv_query_port(ibv_context* context, std::uint8_t port, _compat_ibv_port_attr* attr) {
  if (Context::find(context) == nullptr) return BYPASS_REAL(ibv_query_port)(context, port, attr);
  // The older structure ended before port_cap_flags2.
  return query_port(context, port, reinterpret_cast<ibv_port_attr*>(attr), offsetof(ibv_port_attr, port_cap_flags2));
}

int ibv_query_gid(ibv_context* context, std::uint8_t port, int index, ibv_gid* gid) {
  Context* const ours = Context::find(context);
  if (ours == nullptr) return BYPASS_REAL(ibv_query_gid)(context, port, index, gid);
  ibv_gid_entry entry;
  const int error = find_gid(*ours, port, static_cast<std::uint32_t>(index), entry);
  if (error != 0) {
    errno = error;
    return -1;
  }
  *gid = entry.gid;
  return 0;
}

int ibv_query_gid_type(ibv_context* context, std::uint8_t port, unsigned index, ibv_gid_type_sysfs* type) {
  Context* const ours = Context::find(context);
  if (ours == nullptr) return BYPASS_REAL(ibv_query_gid_type)(context, port, index, type);
  ibv_gid_entry entry;
  if (find_gid(*ours, port, index, entry) != 0) return -1;
  *type = IBV_GID_TYPE_SYSFS_ROCE_V2;
  return 0;
}

int _ibv_query_gid_ex(ibv_context* context, std::uint32_t port, std::uint32_t index, ibv_gid_entry* entry,
                      std::uint32_t flags, std::size_t bytes) {
  Context* const ours = Context::find(context);
  if (ours == nullptr) return BYPASS_REAL(_ibv_query_gid_ex)(context, port, index, entry, flags, bytes);
  if (flags != 0) return EINVAL;
  ibv_gid_entry found;
  const int error = find_gid(*ours, port, index, found);
  if (error == 0) copy_out(found, entry, bytes);
  return error;
}

ssize_t _ibv_query_gid_table(ibv_context* context, ibv_gid_entry* entries, std::size_t count, std::uint32_t flags,
                             std::size_t bytes) {
  Context* const ours = Context::find(context);
  if (ours == nullptr) return BYPASS_REAL(_ibv_query_gid_table)(context, entries, count, flags, bytes);
  if (flags != 0) return -EINVAL;
  ibv_gid_entry found;
  std::uint32_t filled = 0;
  auto* to = reinterpret_cast<std::byte*>(entries);
  for (; filled < count && find_gid(*ours, kPort, filled, found) == 0; filled++, to += bytes)
    copy_out(found, reinterpret_cast<ibv_gid_entry*>(to), bytes);
  // As the kernel refuses a table that is too small for all.
  if (filled == count && find_gid(*ours, kPort, filled, found, false) == 0) return -EINVAL;
  return filled;
}

int ibv_query_pkey(ibv_context* context, std::uint8_t port, int index, __be16* pkey) {
  if (Context::find(context) == nullptr) return BYPASS_REAL(ibv_query_pkey)(context, port, index, pkey);
  if (port != kPort || index != 0) {
    errno = EINVAL;
    return -1;
  }
  *pkey = kDefaultPkey;  // the same in either byte order
  return 0;
}

int ibv_get_pkey_index(ibv_context* context, std::uint8_t port, __be16 pkey) {
  if (Context::find(context) == nullptr) return BYPASS_REAL(ibv_get_pkey_index)(context, port, pkey);
  return port == kPort && pkey == kDefaultPkey ? 0 : -1;
}

}  // extern "C"

}  // namespace bypass::softverbs

std::uint32_t bypass_softverbs_mtu(ibv_context* context) {
  using namespace bypass::softverbs;
  Adapter::Turn turn(*Context::of(context).adapter);
  return turn ? turn->wire_mtu() : 0;
}

std::uint64_t bypass_softverbs_lost(ibv_context* context) {
  using namespace bypass::softverbs;
  Adapter::Turn turn(*Context::of(context).adapter);
  return turn ? turn.lost() : 0;
}
