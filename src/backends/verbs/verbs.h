// Verbs: libibverbs as this plugin uses it. It has the functions of the library that has the device, resolved by name.
// What libibverbs' header has inline (posting, polling, steering) goes through the device's own tables and needs no
// library.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace bypass::verbs {

// X(name): the library's ibv_name. (Its header hides some of them behind macros that look like calls.)
#define BYPASS_VERBS_CALLS(X) \
  X(get_device_list)          \
  X(free_device_list)         \
  X(get_device_name)          \
  X(open_device)              \
  X(close_device)             \
  X(query_device)             \
  X(query_gid)                \
  X(alloc_pd)                 \
  X(dealloc_pd)               \
  X(reg_mr)                   \
  X(dereg_mr)                 \
  X(create_comp_channel)      \
  X(destroy_comp_channel)     \
  X(create_cq)                \
  X(destroy_cq)               \
  X(get_cq_event)             \
  X(ack_cq_events)            \
  X(create_qp)                \
  X(modify_qp)                \
  X(destroy_qp)               \
  X(get_async_event)          \
  X(ack_async_event)

// Older libraries do not have these: then they are null.
#define BYPASS_VERBS_NEWER_CALLS(X) \
  X(qp_to_qp_ex)                    \
  X(fork_init)                      \
  X(is_fork_initialized)

struct Verbs {
#define BYPASS_VERBS_MEMBER(name) decltype(&::ibv_##name) name = nullptr;
  BYPASS_VERBS_CALLS(BYPASS_VERBS_MEMBER)
  BYPASS_VERBS_NEWER_CALLS(BYPASS_VERBS_MEMBER)
#undef BYPASS_VERBS_MEMBER
  int (*query_port)(ibv_context*, std::uint8_t, _compat_ibv_port_attr*) = nullptr;
  /// The first registers memory under an address of our choice, by which the peer names it. The second tells which
  /// version of RoCE an address is for. Both are null in older libraries.
  decltype(&::ibv_reg_mr_iova) reg_mr_iova = nullptr;
  decltype(&::_ibv_query_gid_ex) query_gid_ex = nullptr;
  /// For a software device: the bytes of the largest IP packet that its wire takes. Null: the device is another
  /// library's.
  std::uint32_t (*wire_mtu)(ibv_context*) = nullptr;
  /// … and how many frames for it were lost on this side of the wire.
  std::uint64_t (*lost)(ibv_context*) = nullptr;
  /// Why a software device could not be opened, ended by a zero; empty: it does not say. Null: the device is another
  /// library's.
  void (*problem)(char* out, std::size_t room) = nullptr;

  /// Reads the port's state. 0 or an errno.
  int look_at_port(ibv_context* context, std::uint8_t number, ibv_port_attr& out) const;
};

/// The functions of the library that has the device with this name: the software library (softN), else libibverbs.
/// Null: `problem` says what to install.
const Verbs* verbs_for(const std::string& device, std::string& problem);

/// Called in a forked child: the software library closes what it has inherited. Async-signal-safe.
void drop_soft_in_child();
/// Backend::protect_descriptors() for the software library's wires.
void protect_soft_descriptors(bool on);

/// Whether the device is one of the software library (BYPASS_SOFT).
bool is_soft(const std::string& device);

}  // namespace bypass::verbs
