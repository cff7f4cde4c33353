// What the kinds of objects do that no tool asks for, and how what is not there is refused.

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "program.h"

namespace verbs_abi {
namespace {

void answers_to_datagrams() {
  Device device;
  ibv_cq* const cq = ibv_create_cq(device.context, 16, nullptr, nullptr, 0);
  ibv_qp_init_attr init = rc_init(cq);
  init.qp_type = IBV_QPT_UD;
  ibv_qp* const qp = ibv_create_qp(device.pd, &init);
  CHECK(qp != nullptr);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = 1;
  attr.qkey = 0x11;
  CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) == 0);
  attr.qp_state = IBV_QPS_RTR;
  CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
  attr.qp_state = IBV_QPS_RTS;
  CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);

  for (int gid_index = 0; gid_index < 2; gid_index++) {  // IPv6, IPv4
    ibv_ah_attr to{};
    to.is_global = 1;
    to.grh.sgid_index = static_cast<std::uint8_t>(gid_index);
    to.grh.hop_limit = 9;  // the route's is used: 64
    to.port_num = 1;
    CHECK(ibv_query_gid(device.context, 1, gid_index, &to.grh.dgid) == 0);
    ibv_ah* const ah = ibv_create_ah(device.pd, &to);
    CHECK(ah != nullptr);
    post_receive(qp, 2, device.sge(1024, 256));
    ibv_sge sge = device.sge(0, 16);
    ibv_send_wr wr{}, *bad = nullptr;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND;
    wr.wr.ud.ah = ah;
    wr.wr.ud.remote_qpn = qp->qp_num;
    wr.wr.ud.remote_qkey = 0x11;
    CHECK(ibv_post_send(qp, &wr, &bad) == 0);
    ibv_wc wc = completion(cq);
    CHECK(wc.opcode == IBV_WC_RECV && wc.byte_len == 56 && (wc.wc_flags & IBV_WC_GRH) != 0);
    auto* const grh = reinterpret_cast<ibv_grh*>(device.memory + 1024);
    ibv_ah_attr from{};
    CHECK(ibv_init_ah_from_wc(device.context, 1, &wc, grh, &from) == 0);
    CHECK(from.is_global == 1 && from.grh.sgid_index == gid_index && from.grh.hop_limit == 64 && from.sl == 0);
    CHECK(std::memcmp(&from.grh.dgid, &to.grh.dgid, sizeof from.grh.dgid) == 0);
    ibv_ah* const back = ibv_create_ah_from_wc(device.pd, &wc, grh, 1);
    CHECK(back != nullptr && ibv_destroy_ah(back) == 0 && ibv_destroy_ah(ah) == 0);
  }
  CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
}

// Each opening of a queue pair that receives by XRC has its events. It lives until the last one is destroyed.
void xrc_queue_pairs_are_opened_again() {
  Device device;
  ibv_xrcd_init_attr domain{};
  domain.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
  domain.fd = -1;
  ibv_xrcd* const xrcd = ibv_open_xrcd(device.context, &domain);
  CHECK(xrcd != nullptr);
  ibv_qp_init_attr_ex init{};
  init.qp_type = IBV_QPT_XRC_RECV;
  init.comp_mask = IBV_QP_INIT_ATTR_PD;
  init.pd = device.pd;
  CHECK(ibv_create_qp_ex(device.context, &init) == nullptr && errno == EINVAL);
  init.comp_mask = IBV_QP_INIT_ATTR_XRCD;
  init.xrcd = xrcd;
  ibv_qp* const first = ibv_create_qp_ex(device.context, &init);
  CHECK(first != nullptr && first->pd == nullptr);
  ibv_qp_open_attr open{};
  open.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
  open.qp_num = first->qp_num + 1;
  open.xrcd = xrcd;
  open.qp_type = IBV_QPT_XRC_RECV;
  CHECK(ibv_open_qp(device.context, &open) == nullptr && errno == EINVAL);
  open.qp_num--;
  ibv_qp* const second = ibv_open_qp(device.context, &open);
  CHECK(second != nullptr && second->qp_num == first->qp_num);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = 1;
  CHECK(ibv_modify_qp(first, &attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS) == 0);
  attr.qp_state = IBV_QPS_ERR;
  CHECK(ibv_modify_qp(second, &attr, IBV_QP_STATE) == 0);
  bool told[2] = {};
  for (int i = 0; i < 2; i++) {
    ibv_async_event event;
    CHECK(ibv_get_async_event(device.context, &event) == 0 && event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED);
    told[event.element.qp == first ? 0 : 1] = true;
    ibv_ack_async_event(&event);
  }
  CHECK(told[0] && told[1]);
  CHECK(ibv_destroy_qp(first) == 0 && ibv_close_xrcd(xrcd) == EBUSY);
  ibv_qp_init_attr given;
  CHECK(ibv_query_qp(second, &attr, 0, &given) == 0 && attr.qp_state == IBV_QPS_ERR);
  CHECK(ibv_destroy_qp(second) == 0 && ibv_close_xrcd(xrcd) == 0);
}

void memory_is_registered_anew() {
  Device device;
  const std::uint32_t old_key = device.mr->rkey;
  static char other[4096];
  CHECK(ibv_rereg_mr(device.mr, IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, other, sizeof other, 0) == 0);
  CHECK(device.mr->addr == other && device.mr->length == sizeof other && device.mr->rkey != old_key);
  CHECK(ibv_rereg_mr(device.mr, 1 << 9, nullptr, nullptr, 0, 0) == IBV_REREG_MR_ERR_INPUT && errno == EINVAL);
  {
    Device second;  // another context's domain, and none
    for (ibv_pd* const wrong : {second.pd, static_cast<ibv_pd*>(nullptr)})
      CHECK(ibv_rereg_mr(device.mr, IBV_REREG_MR_CHANGE_PD, wrong, nullptr, 0, 0) == IBV_REREG_MR_ERR_INPUT &&
            errno == EINVAL);
  }
  CHECK(ibv_reg_mr(device.pd, other, sizeof other, IBV_ACCESS_REMOTE_WRITE) == nullptr && errno == EINVAL);
  ibv_mr* const mapped = ibv_reg_mr_iova(device.pd, other, sizeof other, 0x10000, IBV_ACCESS_LOCAL_WRITE);
  CHECK(mapped != nullptr && ibv_dealloc_pd(device.pd) == EBUSY && ibv_dereg_mr(mapped) == 0);
}

// Messages go where the region lies now, under its new key; the old key is nobody's.
void memory_is_registered_anew_under_traffic() {
  Device device;
  ibv_cq* const cq = ibv_create_cq(device.context, 16, nullptr, nullptr, 0);
  static char first[256], second[256];
  ibv_mr* const region = ibv_reg_mr(device.pd, first, sizeof first, kAllRights);
  CHECK(region != nullptr);
  std::strcpy(device.memory, "one");
  std::strcpy(device.memory + 16, "two");
  // Each refusal is the end of a queue pair.
  const auto write = [&](std::size_t from, const void* to, std::uint32_t rkey) {
    Pair pair(device, cq);
    return write_to(pair.a, device.sge(from, 4), to, rkey);
  };
  CHECK(write(0, first, region->rkey) == IBV_WC_SUCCESS && std::strcmp(first, "one") == 0);

  const std::uint32_t first_key = region->rkey;
  CHECK(ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, second, sizeof second, 0) == 0);
  CHECK(write(16, second, region->rkey) == IBV_WC_SUCCESS && std::strcmp(second, "two") == 0);
  CHECK(write(16, first, region->rkey) == IBV_WC_REM_ACCESS_ERR);
  CHECK(write(16, first, first_key) == IBV_WC_REM_ACCESS_ERR && std::strcmp(first, "one") == 0);

  CHECK(ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, IBV_ACCESS_LOCAL_WRITE) == 0);
  CHECK(write(0, second, region->rkey) == IBV_WC_REM_ACCESS_ERR && std::strcmp(second, "two") == 0);

  ibv_pd* const other = ibv_alloc_pd(device.context);
  {
    Pair pair(device, cq);
    ibv_sge sge = {reinterpret_cast<std::uintptr_t>(second), 4, region->lkey};
    CHECK(write_to(pair.a, sge, device.memory + 32, device.mr->rkey) == IBV_WC_SUCCESS);
    CHECK(std::strcmp(device.memory + 32, "two") == 0);
    CHECK(ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_PD, other, nullptr, 0, 0) == 0 && region->pd == other);
    sge.lkey = region->lkey;  // another domain's than the queue pair's
    CHECK(write_to(pair.a, sge, device.memory + 48, device.mr->rkey) == IBV_WC_LOC_PROT_ERR);
    CHECK(device.memory[48] == 0);
  }
  CHECK(ibv_dealloc_pd(other) == EBUSY && ibv_dereg_mr(region) == 0 && ibv_dealloc_pd(other) == 0);
  CHECK(ibv_destroy_cq(cq) == 0);
}

void memory_that_is_not_there_is_refused() {
  Device device;
  constexpr std::size_t kPage = 4096;
  char* const pages =
      static_cast<char*>(mmap(nullptr, 3 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  CHECK(pages != MAP_FAILED && mprotect(pages + kPage, kPage, PROT_READ) == 0);
  CHECK(munmap(pages + 2 * kPage, kPage) == 0);
  const auto refused = [&](std::size_t page, std::size_t count, int access) {
    errno = 0;
    ibv_mr* const made = ibv_reg_mr(device.pd, pages + page * kPage + 1, count * kPage - 1, access);
    if (made != nullptr) CHECK(ibv_dereg_mr(made) == 0);
    return made == nullptr && errno == EFAULT;
  };
  CHECK(!refused(0, 1, IBV_ACCESS_LOCAL_WRITE) && !refused(0, 2, 0) && !refused(1, 1, IBV_ACCESS_REMOTE_READ));
  CHECK(refused(0, 2, IBV_ACCESS_LOCAL_WRITE) && refused(1, 1, IBV_ACCESS_LOCAL_WRITE));
  CHECK(refused(1, 2, 0) && refused(2, 1, 0));
  ibv_mr* const read = ibv_reg_mr(device.pd, pages + kPage, kPage, 0);
  CHECK(read != nullptr);
  CHECK(ibv_rereg_mr(read, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, IBV_ACCESS_LOCAL_WRITE) ==
            IBV_REREG_MR_ERR_CMD &&
        errno == EFAULT);
  CHECK(ibv_rereg_mr(read, IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, pages + 2 * kPage, kPage, 0) ==
            IBV_REREG_MR_ERR_CMD &&
        errno == EFAULT);
  CHECK(ibv_rereg_mr(read, IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, pages, 2 * kPage, 0) == 0);
  CHECK(read->addr == pages && read->length == 2 * kPage && ibv_dereg_mr(read) == 0 && munmap(pages, 2 * kPage) == 0);
}

void raw_frames_are_steered() {
  Device device;
  ibv_cq* const cq = ibv_create_cq(device.context, 16, nullptr, nullptr, 0);
  ibv_qp_init_attr init = rc_init(cq);
  init.qp_type = IBV_QPT_RAW_PACKET;
  ibv_qp* const qp = ibv_create_qp(device.pd, &init);
  CHECK(qp != nullptr);
  struct {
    ibv_flow_attr attr;
    ibv_flow_spec_eth eth;
    ibv_flow_spec_ipv4 ip;
    ibv_flow_spec_tcp_udp tcp;
  } rule{};
  rule.attr.type = IBV_FLOW_ATTR_NORMAL;
  rule.attr.size = sizeof rule;
  rule.attr.num_of_specs = 3;
  rule.attr.port = 1;
  rule.eth.type = IBV_FLOW_SPEC_ETH;
  rule.eth.size = sizeof rule.eth;
  std::memset(rule.eth.mask.dst_mac, 0xff, sizeof rule.eth.mask.dst_mac);
  rule.ip.type = IBV_FLOW_SPEC_IPV4;
  rule.ip.size = sizeof rule.ip;
  rule.tcp.type = IBV_FLOW_SPEC_TCP;
  rule.tcp.size = sizeof rule.tcp;
  rule.tcp.mask.dst_port = 0xffff;
  ibv_flow* const flow = ibv_create_flow(qp, &rule.attr);
  CHECK(flow != nullptr && ibv_destroy_qp(qp) == EBUSY && ibv_destroy_flow(flow) == 0);
  rule.eth.mask.vlan_tag = 0xffff;
  CHECK(ibv_create_flow(qp, &rule.attr) == nullptr && errno == EOPNOTSUPP);
  rule.eth.mask.vlan_tag = 0;
  const unsigned unknown = IBV_FLOW_ATTR_SNIFFER + 1;
  std::memcpy(&rule.attr.type, &unknown, sizeof unknown);
  CHECK(ibv_create_flow(qp, &rule.attr) == nullptr && errno == EINVAL);
  rule.attr.type = IBV_FLOW_ATTR_NORMAL;
  for (const std::uint16_t size : {std::uint16_t{0}, std::uint16_t{4}, std::uint16_t{0xfff0}}) {  // none of a part's
    rule.tcp.size = size;
    CHECK(ibv_create_flow(qp, &rule.attr) == nullptr && errno == EINVAL);
  }
  CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
}

void what_is_missing_is_refused() {
  Device device;
  ibv_port_attr port{};
  ibv_gid gid{};
  __be16 pkey = 0;
  CHECK(ibv_query_port(device.context, 2, &port) == EINVAL);
  CHECK(ibv_query_port(device.context, 1, &port) == 0 && port.gid_tbl_len >= 2);
  CHECK(ibv_query_gid(device.context, 1, port.gid_tbl_len, &gid) == -1);
  CHECK(ibv_query_pkey(device.context, 1, 0, &pkey) == 0 && pkey == 0xffff);
  std::vector<ibv_gid_entry> table(8);
  CHECK(ibv_query_gid_table(device.context, table.data(), table.size(), 0) == port.gid_tbl_len);
  CHECK(table[1].gid_index == 1 && table[1].gid_type == IBV_GID_TYPE_ROCE_V2);
  CHECK(ibv_alloc_mw(device.pd, static_cast<ibv_mw_type>(3)) == nullptr && errno == EINVAL);
  ibv_xrcd_init_attr xrcd{};
  CHECK(ibv_open_xrcd(device.context, &xrcd) == nullptr && errno == EINVAL);
  ibv_wq_init_attr wq{};
  CHECK(ibv_create_wq(device.context, &wq) == nullptr && errno == EOPNOTSUPP);
  CHECK(ibv_reg_dmabuf_mr(device.pd, 0, 4096, 0, -1, 0) == nullptr && errno == EOPNOTSUPP);
  ibv_cq_init_attr_ex cq{};
  cq.cqe = 1;
  cq.wc_flags = IBV_WC_EX_WITH_TM_INFO;
  CHECK(ibv_create_cq_ex(device.context, &cq) == nullptr && errno == EOPNOTSUPP);
  CHECK(ibv_create_cq(device.context, 0, nullptr, nullptr, 0) == nullptr && errno == EINVAL);
  CHECK(ibv_create_cq(device.context, 1, nullptr, nullptr, 7) == nullptr && errno == EINVAL);
  ibv_ece ece{};
  ibv_cq* const plain = ibv_create_cq(device.context, 1, nullptr, nullptr, 0);
  ibv_qp_init_attr init = rc_init(plain);
  ibv_qp* const qp = ibv_create_qp(device.pd, &init);
  CHECK(ibv_query_ece(qp, &ece) == EOPNOTSUPP && ibv_qp_to_qp_ex(qp) == nullptr);
  CHECK(ibv_destroy_cq(plain) == EBUSY && ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(plain) == 0);
}

// Two contexts of one device, as two devices, have nothing in common.
void other_contexts_objects_are_refused() {
  Device device, other, second(1);
  for (Device* const there : {&other, &second}) {
    ibv_comp_channel* const channel = ibv_create_comp_channel(there->context);
    CHECK(ibv_create_cq(device.context, 16, nullptr, channel, 0) == nullptr && errno == EBADF);
    ibv_cq* const cq = ibv_create_cq(device.context, 16, nullptr, nullptr, 0);
    ibv_cq* const foreign = ibv_create_cq(there->context, 16, nullptr, channel, 0);
    ibv_qp_init_attr init = rc_init(cq);
    init.recv_cq = foreign;
    CHECK(ibv_create_qp(device.pd, &init) == nullptr && errno == EINVAL);
    init = rc_init(foreign);
    init.recv_cq = cq;
    CHECK(ibv_create_qp(device.pd, &init) == nullptr && errno == EINVAL);
    CHECK(ibv_destroy_cq(foreign) == 0 && ibv_destroy_cq(cq) == 0 && ibv_destroy_comp_channel(channel) == 0);
  }
}

void negative_counts_are_nothing() {
  Device device;
  ibv_cq* const cq = ibv_create_cq(device.context, 16, nullptr, nullptr, 0);
  {
    Pair pair(device, cq);
    post_receive(pair.b, 2, device.sge(1024, 256));
    ibv_sge sge = device.sge(0, 16);
    ibv_send_wr wr{}, *bad = nullptr;
    wr.sg_list = &sge;
    wr.num_sge = -1;
    wr.opcode = IBV_WR_SEND;
    CHECK(ibv_post_send(pair.a, &wr, &bad) == EINVAL && bad == &wr);
    ibv_recv_wr receive{}, *bad_receive = nullptr;
    receive.sg_list = &sge;
    receive.num_sge = -1;
    CHECK(ibv_post_recv(pair.a, &receive, &bad_receive) != 0 && bad_receive == &receive);
    CHECK(post_send(pair.a, 1, device.sge(0, 16)) == 0);
    ibv_wc wc[2];
    wc[0] = completion(cq);
    CHECK(ibv_poll_cq(cq, -1, wc) == 0 && ibv_poll_cq(cq, 0, wc) == 0);
    (void)completion(cq);
  }
  CHECK(ibv_destroy_cq(cq) == 0);
}

// A request has its place until its completion has been polled: who posts until there is none left, whatever is done
// meanwhile, never overruns a completion queue with room for all of them.
void places_are_free_when_polled() {
  Device device;
  ibv_cq* const cq = ibv_create_cq(device.context, 16, nullptr, nullptr, 0);
  {
    Pair pair(device, cq);
    ibv_sge from = device.sge(0, 64);
    ibv_send_wr wr{}, *bad = nullptr;
    wr.sg_list = &from;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_RDMA_WRITE;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma = {reinterpret_cast<std::uintptr_t>(device.memory) + 1024, device.mr->rkey};
    for (int round = 0; round < 3; round++) {
      for (int i = 0; i < 16; i++) CHECK(ibv_post_send(pair.a, &wr, &bad) == 0);
      for (int i = 0; i < 50; i++) {
        usleep(1000);
        CHECK(ibv_post_send(pair.a, &wr, &bad) == ENOMEM);
      }
      CHECK(completion(cq).status == IBV_WC_SUCCESS && ibv_post_send(pair.a, &wr, &bad) == 0);
      for (int i = 0; i < 16; i++) CHECK(completion(cq).status == IBV_WC_SUCCESS);
    }
  }
  CHECK(ibv_destroy_cq(cq) == 0);
}

constexpr Case kCases[] = {
    {"other_contexts_objects_are_refused", other_contexts_objects_are_refused},
    {"negative_counts_are_nothing", negative_counts_are_nothing},
    {"places_are_free_when_polled", places_are_free_when_polled},
    {"answers_to_datagrams", answers_to_datagrams},
    {"xrc_queue_pairs_are_opened_again", xrc_queue_pairs_are_opened_again},
    {"memory_is_registered_anew", memory_is_registered_anew},
    {"memory_is_registered_anew_under_traffic", memory_is_registered_anew_under_traffic},
    {"memory_that_is_not_there_is_refused", memory_that_is_not_there_is_refused},
    {"raw_frames_are_steered", raw_frames_are_steered},
    {"what_is_missing_is_refused", what_is_missing_is_refused},
};

}  // namespace

std::span<const Case> object_cases() {
  return kCases;
}

}  // namespace verbs_abi
