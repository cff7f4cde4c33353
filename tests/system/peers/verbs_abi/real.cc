// Every call of libibverbs' on a device of another library's (one_device_library.cc), beside a software device in use.
#include <endian.h>

#include <cerrno>
#include <cstring>

#include "program.h"

#undef ibv_reg_mr
#undef ibv_reg_mr_iova
#undef ibv_query_port

/// As libibverbs' private header has it.
enum ibv_gid_type_sysfs { IBV_GID_TYPE_SYSFS_IB_ROCE_V1, IBV_GID_TYPE_SYSFS_ROCE_V2 };
extern "C" int ibv_query_gid_type(ibv_context* context, std::uint8_t port, unsigned index, ibv_gid_type_sysfs* type);

namespace verbs_abi {
namespace {

constexpr int kAnswer = EXDEV;  // its, to everything
constexpr std::uint64_t kGuid = 0x0200000000000077;

void ask_context(ibv_context* context) {
  ibv_device_attr device{};
  _compat_ibv_port_attr* const port = nullptr;
  ibv_gid gid{};
  ibv_gid_entry entry{};
  ibv_gid_type_sysfs type{};
  __be16 pkey = 0;
  ibv_ah_attr address{};
  ibv_wc wc{};
  CHECK(ibv_query_device(context, &device) == kAnswer && ibv_query_port(context, 1, port) == kAnswer);
  CHECK(ibv_query_gid(context, 1, 0, &gid) == kAnswer && ibv_query_gid_type(context, 1, 0, &type) == kAnswer);
  CHECK(_ibv_query_gid_ex(context, 1, 0, &entry, 0, sizeof entry) == kAnswer);
  CHECK(_ibv_query_gid_table(context, &entry, 1, 0, sizeof entry) == kAnswer);
  CHECK(ibv_query_pkey(context, 1, 0, &pkey) == kAnswer && ibv_get_pkey_index(context, 1, 0) == kAnswer);
  CHECK(ibv_resolve_eth_l2_from_gid(context, &address, nullptr, nullptr) == kAnswer);
  CHECK(ibv_init_ah_from_wc(context, 1, &wc, nullptr, &address) == kAnswer);
  CHECK(ibv_import_dm(context, 1) != nullptr);
}

void use_memory(ibv_context* context, ibv_pd* pd) {
  char memory[64];
  ibv_mr* const mr = ibv_reg_mr(pd, memory, sizeof memory, 0);
  CHECK(mr != nullptr && mr->context == context);
  CHECK(ibv_reg_mr_iova(pd, memory, sizeof memory, 0, 0) == mr && ibv_import_mr(pd, 1) == mr);
  CHECK(ibv_reg_mr_iova2(pd, memory, sizeof memory, 0, 0) == mr && ibv_reg_dmabuf_mr(pd, 0, 1, 0, 0, 0) == mr);
  CHECK(ibv_rereg_mr(mr, 0, nullptr, nullptr, 0, 0) == kAnswer);
  ibv_unimport_mr(mr);
  CHECK(ibv_dereg_mr(mr) == kAnswer && ibv_import_pd(context, 1) == pd);
  ibv_unimport_pd(pd);
  ibv_ah_attr attr{};
  ibv_wc wc{};
  ibv_ah* const ah = ibv_create_ah(pd, &attr);
  CHECK(ah != nullptr && ah->context == context && ibv_create_ah_from_wc(pd, &wc, nullptr, 1) == ah);
  CHECK(ibv_destroy_ah(ah) == kAnswer);
}

void use_queues(ibv_context* context, ibv_pd* pd) {
  ibv_comp_channel* const channel = ibv_create_comp_channel(context);
  ibv_cq* const cq = ibv_create_cq(context, 1, nullptr, channel, 0);
  CHECK(channel != nullptr && channel->context == context && cq != nullptr && cq->context == context);
  ibv_cq* told = nullptr;
  void* user = nullptr;
  CHECK(ibv_get_cq_event(channel, &told, &user) == 0 && told == cq);
  ibv_ack_cq_events(cq, 3);
  CHECK(cq->comp_events_completed == 3);
  ibv_async_event event{};
  CHECK(ibv_get_async_event(context, &event) == 0 && event.element.cq == cq);
  ibv_ack_async_event(&event);
  CHECK(cq->async_events_completed == 1);

  ibv_srq_init_attr srq_init{};
  ibv_srq_attr srq_attr{};
  ibv_srq* const srq = ibv_create_srq(pd, &srq_init);
  CHECK(srq != nullptr && srq->context == context && ibv_modify_srq(srq, &srq_attr, 0) == kAnswer);
  CHECK(ibv_query_srq(srq, &srq_attr) == kAnswer && ibv_destroy_srq(srq) == kAnswer);

  ibv_qp_init_attr init{};
  ibv_qp_attr attr{};
  ibv_gid gid{};
  ibv_ece ece{};
  ibv_qp* const qp = ibv_create_qp(pd, &init);
  CHECK(qp != nullptr && qp->context == context && ibv_qp_to_qp_ex(qp) != nullptr);
  CHECK(ibv_query_qp(qp, &attr, 0, &init) == kAnswer && ibv_modify_qp(qp, &attr, 0) == kAnswer);
  CHECK(ibv_query_qp_data_in_order(qp, IBV_WR_SEND, 0) == kAnswer);
  CHECK(ibv_set_ece(qp, &ece) == kAnswer && ibv_query_ece(qp, &ece) == kAnswer);
  CHECK(ibv_attach_mcast(qp, &gid, 0) == kAnswer && ibv_detach_mcast(qp, &gid, 0) == kAnswer);
  CHECK(ibv_destroy_qp(qp) == kAnswer);
  CHECK(ibv_resize_cq(cq, 1) == kAnswer && ibv_destroy_cq(cq) == kAnswer);
  CHECK(ibv_destroy_comp_channel(channel) == kAnswer);
}

// soft0 comes first; what is done with the other device is no business of its.
void a_real_device() {
  int count = 0;
  ibv_device** const list = ibv_get_device_list(&count);
  CHECK(list != nullptr && count == 2 && list[2] == nullptr);
  CHECK(std::strcmp(ibv_get_device_name(list[0]), "soft0") == 0);
  CHECK(std::strcmp(ibv_get_device_name(list[1]), "real0") == 0);
  CHECK(be64toh(ibv_get_device_guid(list[1])) == kGuid && be64toh(ibv_get_device_guid(list[0])) != kGuid);
  CHECK(ibv_get_device_index(list[1]) == 77 && ibv_get_device_index(list[0]) == -1);
  ibv_context* const context = ibv_open_device(list[1]);
  CHECK(context != nullptr && context->device == list[1]);
  ibv_free_device_list(list);
  {
    Device soft;
    ibv_cq* const cq = ibv_create_cq(soft.context, 16, nullptr, nullptr, 0);
    {
      Pair pair(soft, cq);
      exchange(soft, pair, cq);
      ask_context(context);
      ibv_pd* const pd = ibv_alloc_pd(context);
      CHECK(pd != nullptr && pd->context == context);
      use_memory(context, pd);
      use_queues(context, pd);
      CHECK(ibv_dealloc_pd(pd) == kAnswer);
      exchange(soft, pair, cq);
    }
    CHECK(ibv_destroy_cq(cq) == 0);
  }
  CHECK(ibv_close_device(context) == kAnswer);
}

constexpr Case kCases[] = {
    {"a_real_device", a_real_device, false},
};

}  // namespace

std::span<const Case> real_cases() {
  return kCases;
}

}  // namespace verbs_abi
