// Between the structures of linux/rdma_user_cm.h and the connection manager's own.
#pragma once

#include <netinet/in.h>
#include <rdma/rdma_user_cm.h>

#include <cstdint>

#include "softverbs/cm/manager.h"

namespace bypass::softverbs {

/// An address of either IP family, as rdma_cm's calls for IP hold it. False: of another family.
bool read_address(const sockaddr_in6& from, Endpoint& out);
cm::Parameters read_parameters(const rdma_ucm_conn_param& from);

/// `device`: null if the id has none yet.
rdma_ucm_query_route_resp describe_route(const cm::Id& id, const cm::DeviceInfo* device);
/// What a queue pair needs to get into that state (rdma_init_qp_attr). False: there is no such state, or the connection
/// is not so far.
bool describe_queue_pair(const cm::Id& id, const cm::DeviceInfo& device, std::uint32_t state, ib_uverbs_qp_attr& attr);
/// `id`: null if it is gone.
rdma_ucm_event_resp describe_event(const cm::Happened& what, std::uint64_t uid, const cm::Id* id,
                                   const cm::DeviceInfo* device);

}  // namespace bypass::softverbs
