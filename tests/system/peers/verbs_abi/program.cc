// A verbs program that asks of a device what no tool asks. It links libibverbs like any other; what it runs on is the
// preload's business. Its queue pairs talk to each other through the device itself.
// verbs_abi CASE...   (no name: lists those that need nobody else)
#include "program.h"

#include <poll.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

namespace verbs_abi {

ibv_context* open_device(int number) {
  int count = 0;
  ibv_device** const list = ibv_get_device_list(&count);
  CHECK(list != nullptr && count > number);
  ibv_context* const context = ibv_open_device(list[number]);
  CHECK(context != nullptr);
  ibv_free_device_list(list);
  return context;
}

ibv_qp_init_attr rc_init(ibv_cq* cq, ibv_srq* srq) {
  ibv_qp_init_attr init{};
  init.send_cq = init.recv_cq = cq;
  init.srq = srq;
  init.cap = {16, 16, 4, 4, 64};
  init.qp_type = IBV_QPT_RC;
  return init;
}

void to_rtr(ibv_qp* qp, const ibv_gid& peer_gid, std::uint32_t peer) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = 1;
  attr.qp_access_flags = kAllRights;
  CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
  attr = {};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = IBV_MTU_1024;
  attr.dest_qp_num = peer;
  attr.max_dest_rd_atomic = 4;
  attr.min_rnr_timer = 1;
  attr.ah_attr.is_global = 1;
  attr.ah_attr.grh.dgid = peer_gid;
  attr.ah_attr.grh.sgid_index = kGid;
  attr.ah_attr.grh.hop_limit = 64;
  attr.ah_attr.port_num = 1;
  constexpr int kMask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                        IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  int error = ibv_modify_qp(qp, &attr, kMask);
  // The peer may still be starting: its address is asked for during some seconds only.
  while (error == EHOSTUNREACH || error == ETIMEDOUT) error = ibv_modify_qp(qp, &attr, kMask);
  CHECK(error == 0);
}

void to_rts(ibv_qp* qp, const ibv_gid& peer_gid, std::uint32_t peer, std::uint8_t timeout) {
  to_rtr(qp, peer_gid, peer);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTS;
  attr.timeout = timeout;
  attr.retry_cnt = attr.rnr_retry = 7;
  attr.max_rd_atomic = 4;
  CHECK(ibv_modify_qp(qp, &attr,
                      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                          IBV_QP_MAX_QP_RD_ATOMIC) == 0);
  CHECK(qp->state == IBV_QPS_RTS);
}

void to_rts(const Device& device, ibv_qp* qp, std::uint32_t peer) {
  to_rts(qp, device.gid, peer, 14);
}

void post_receive(ibv_qp* qp, std::uint64_t id, ibv_sge sge) {
  ibv_recv_wr wr{id, nullptr, &sge, 1}, *bad = nullptr;
  CHECK(ibv_post_recv(qp, &wr, &bad) == 0);
}

int post_send(ibv_qp* qp, std::uint64_t id, ibv_sge sge, unsigned flags) {
  ibv_send_wr wr{}, *bad = nullptr;
  wr.wr_id = id;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_SEND;
  wr.send_flags = flags;
  const int error = ibv_post_send(qp, &wr, &bad);
  CHECK(error == 0 || bad == &wr);
  return error;
}

ibv_wc_status write_to(ibv_qp* qp, ibv_sge from, const void* to, std::uint32_t rkey) {
  ibv_send_wr wr{}, *bad = nullptr;
  wr.sg_list = &from;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma = {reinterpret_cast<std::uintptr_t>(to), rkey};
  CHECK(ibv_post_send(qp, &wr, &bad) == 0);
  return completion(qp->send_cq).status;
}

ibv_wc completion(ibv_cq* cq) {
  ibv_wc wc{};
  int found = 0;
  while ((found = ibv_poll_cq(cq, 1, &wc)) == 0) {
  }
  CHECK(found == 1);
  return wc;
}

void exchange(const Device& device, Pair& pair, ibv_cq* cq) {
  post_receive(pair.b, 2, device.sge(1024, 64));
  CHECK(post_send(pair.a, 1, device.sge(0, 64)) == 0);
  const std::uint64_t ids = completion(cq).wr_id + completion(cq).wr_id;
  CHECK(ids == 3);
}

bool readable(int fd) {
  pollfd item{fd, POLLIN, 0};
  return poll(&item, 1, 0) == 1;
}

long descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return std::distance(begin(all), end(all));
}

}  // namespace verbs_abi

int main(int argc, char** argv) {
  using namespace verbs_abi;
  for (const auto cases :
       {extended_cases(), event_cases(), process_cases(), object_cases(), raw_cases(), real_cases()}) {
    for (const Case& known : cases) {
      if (argc < 2 && known.alone) std::printf("%s\n", known.name);
      for (int i = 1; i < argc; i++) {
        if (std::strcmp(argv[i], known.name) != 0) continue;
        known.run();
        std::printf("%s: ok\n", known.name);
      }
    }
  }
  return 0;
}
