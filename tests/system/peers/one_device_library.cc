// A libibverbs with one device, real0, for programs that have a software device beside a real one. It does nothing but
// to name each call in the file ONE_DEVICE_LOG and to answer with what is its own; a call with what is not its own ends
// the program.
#include <endian.h>
#include <infiniband/verbs.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#undef ibv_reg_mr
#undef ibv_reg_mr_iova
#undef ibv_query_port

/// As libibverbs' private header has it.
enum ibv_gid_type_sysfs { IBV_GID_TYPE_SYSFS_IB_ROCE_V1, IBV_GID_TYPE_SYSFS_ROCE_V2 };
extern "C" int ibv_query_gid_type(ibv_context* context, std::uint8_t port, unsigned index, ibv_gid_type_sysfs* type);

namespace {

/// Everything that it ever gives.
struct RealDevice {
  ibv_device device{};
  ibv_device* list[2] = {&device, nullptr};
  verbs_context context{};
  ibv_comp_channel channel{};
  ibv_pd pd{};
  ibv_mr mr{};
  ibv_dm dm{};
  ibv_cq cq{};
  ibv_srq srq{};
  ibv_qp_ex qp{};
  ibv_ah ah{};
  RealDevice() {
    std::strcpy(device.name, "real0");
    std::strcpy(device.dev_name, "uverbs0");
    device.node_type = IBV_NODE_CA;
    device.transport_type = IBV_TRANSPORT_IB;
    ibv_context* const base = &context.context;
    base->device = &device;
    base->cmd_fd = base->async_fd = channel.fd = -1;
    channel.context = pd.context = mr.context = cq.context = srq.context = qp.qp_base.context = ah.context = base;
    dm.context = base;
    pthread_mutex_init(&cq.mutex, nullptr);
    pthread_mutex_init(&qp.qp_base.mutex, nullptr);
    pthread_mutex_init(&srq.mutex, nullptr);
  }
};
RealDevice& real() {
  static RealDevice made;
  return made;
}

void note(const char* name) {
  const char* const path = std::getenv("ONE_DEVICE_LOG");
  std::FILE* const log = path != nullptr ? std::fopen(path, "a") : nullptr;
  if (log == nullptr) std::abort();
  std::fprintf(log, "%s\n", name);
  std::fclose(log);
}

// `given` must be this library's.
template <typename T>
void reached(const char* name, const T* given, const T* own) {
  note(name);
  if (given == own) return;
  std::fprintf(stderr, "%s: another library's object\n", name);
  std::abort();
}

/// What functions answer that have nothing to give: no error that anybody else would make up.
constexpr int kAnswer = EXDEV;

}  // namespace

#define REACHED(given, own) reached(__func__, given, &real().own)

extern "C" {

ibv_device** ibv_get_device_list(int* count) {
  note(__func__);
  if (count != nullptr) *count = 1;
  return real().list;
}
void ibv_free_device_list(ibv_device** list) {
  REACHED(list, list[0]);
}
const char* ibv_get_device_name(ibv_device* device) {
  REACHED(device, device);
  return device->name;
}
__be64 ibv_get_device_guid(ibv_device* device) {
  REACHED(device, device);
  return htobe64(0x0200000000000077);
}
int ibv_get_device_index(ibv_device* device) {
  REACHED(device, device);
  return 77;
}
ibv_context* ibv_open_device(ibv_device* device) {
  REACHED(device, device);
  return &real().context.context;
}
int ibv_close_device(ibv_context* context) {
  REACHED(context, context.context);
  return kAnswer;
}
int ibv_get_async_event(ibv_context* context, ibv_async_event* event) {
  REACHED(context, context.context);
  event->event_type = IBV_EVENT_CQ_ERR;
  event->element.cq = &real().cq;
  return 0;
}
void ibv_ack_async_event(ibv_async_event*) {
  note(__func__);
}
int ibv_query_device(ibv_context* context, ibv_device_attr*) {
  REACHED(context, context.context);
  return kAnswer;
}
int ibv_query_port(ibv_context* context, std::uint8_t, _compat_ibv_port_attr*) {
  REACHED(context, context.context);
  return kAnswer;
}
int ibv_query_gid(ibv_context* context, std::uint8_t, int, ibv_gid*) {
  REACHED(context, context.context);
  return kAnswer;
}
int _ibv_query_gid_ex(ibv_context* context, std::uint32_t, std::uint32_t, ibv_gid_entry*, std::uint32_t, std::size_t) {
  REACHED(context, context.context);
  return kAnswer;
}
ssize_t _ibv_query_gid_table(ibv_context* context, ibv_gid_entry*, std::size_t, std::uint32_t, std::size_t) {
  REACHED(context, context.context);
  return kAnswer;
}
int ibv_query_gid_type(ibv_context* context, std::uint8_t, unsigned, ibv_gid_type_sysfs*) {
  REACHED(context, context.context);
  return kAnswer;
}
int ibv_query_pkey(ibv_context* context, std::uint8_t, int, __be16*) {
  REACHED(context, context.context);
  return kAnswer;
}
int ibv_get_pkey_index(ibv_context* context, std::uint8_t, __be16) {
  REACHED(context, context.context);
  return kAnswer;
}
int ibv_resolve_eth_l2_from_gid(ibv_context* context, ibv_ah_attr*, std::uint8_t*, std::uint16_t*) {
  REACHED(context, context.context);
  return kAnswer;
}

ibv_pd* ibv_alloc_pd(ibv_context* context) {
  REACHED(context, context.context);
  return &real().pd;
}
int ibv_dealloc_pd(ibv_pd* pd) {
  REACHED(pd, pd);
  return kAnswer;
}
ibv_pd* ibv_import_pd(ibv_context* context, std::uint32_t) {
  REACHED(context, context.context);
  return &real().pd;
}
void ibv_unimport_pd(ibv_pd* pd) {
  REACHED(pd, pd);
}
ibv_mr* ibv_reg_mr(ibv_pd* pd, void*, std::size_t, int) {
  REACHED(pd, pd);
  return &real().mr;
}
ibv_mr* ibv_reg_mr_iova(ibv_pd* pd, void*, std::size_t, std::uint64_t, int) {
  REACHED(pd, pd);
  return &real().mr;
}
ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void*, std::size_t, std::uint64_t, unsigned) {
  REACHED(pd, pd);
  return &real().mr;
}
ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* pd, std::uint64_t, std::size_t, std::uint64_t, int, int) {
  REACHED(pd, pd);
  return &real().mr;
}
ibv_mr* ibv_import_mr(ibv_pd* pd, std::uint32_t) {
  REACHED(pd, pd);
  return &real().mr;
}
void ibv_unimport_mr(ibv_mr* mr) {
  REACHED(mr, mr);
}
int ibv_rereg_mr(ibv_mr* mr, int, ibv_pd*, void*, std::size_t, int) {
  REACHED(mr, mr);
  return kAnswer;
}
int ibv_dereg_mr(ibv_mr* mr) {
  REACHED(mr, mr);
  return kAnswer;
}
ibv_dm* ibv_import_dm(ibv_context* context, std::uint32_t) {
  REACHED(context, context.context);
  return &real().dm;
}

ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) {
  REACHED(context, context.context);
  return &real().channel;
}
int ibv_destroy_comp_channel(ibv_comp_channel* channel) {
  REACHED(channel, channel);
  return kAnswer;
}
ibv_cq* ibv_create_cq(ibv_context* context, int, void*, ibv_comp_channel*, int) {
  REACHED(context, context.context);
  return &real().cq;
}
int ibv_resize_cq(ibv_cq* cq, int) {
  REACHED(cq, cq);
  return kAnswer;
}
int ibv_destroy_cq(ibv_cq* cq) {
  REACHED(cq, cq);
  return kAnswer;
}
int ibv_get_cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** cq_context) {
  REACHED(channel, channel);
  *cq = &real().cq;
  *cq_context = nullptr;
  return 0;
}
void ibv_ack_cq_events(ibv_cq*, unsigned) {
  note(__func__);
}

ibv_srq* ibv_create_srq(ibv_pd* pd, ibv_srq_init_attr*) {
  REACHED(pd, pd);
  return &real().srq;
}
int ibv_modify_srq(ibv_srq* srq, ibv_srq_attr*, int) {
  REACHED(srq, srq);
  return kAnswer;
}
int ibv_query_srq(ibv_srq* srq, ibv_srq_attr*) {
  REACHED(srq, srq);
  return kAnswer;
}
int ibv_destroy_srq(ibv_srq* srq) {
  REACHED(srq, srq);
  return kAnswer;
}

ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr*) {
  REACHED(pd, pd);
  return &real().qp.qp_base;
}
ibv_qp_ex* ibv_qp_to_qp_ex(ibv_qp* qp) {
  REACHED(qp, qp.qp_base);
  return &real().qp;
}
int ibv_query_qp(ibv_qp* qp, ibv_qp_attr*, int, ibv_qp_init_attr*) {
  REACHED(qp, qp.qp_base);
  return kAnswer;
}
int ibv_query_qp_data_in_order(ibv_qp* qp, ibv_wr_opcode, std::uint32_t) {
  REACHED(qp, qp.qp_base);
  return kAnswer;
}
int ibv_modify_qp(ibv_qp* qp, ibv_qp_attr*, int) {
  REACHED(qp, qp.qp_base);
  return kAnswer;
}
int ibv_set_ece(ibv_qp* qp, ibv_ece*) {
  REACHED(qp, qp.qp_base);
  return kAnswer;
}
int ibv_query_ece(ibv_qp* qp, ibv_ece*) {
  REACHED(qp, qp.qp_base);
  return kAnswer;
}
int ibv_attach_mcast(ibv_qp* qp, const ibv_gid*, std::uint16_t) {
  REACHED(qp, qp.qp_base);
  return kAnswer;
}
int ibv_detach_mcast(ibv_qp* qp, const ibv_gid*, std::uint16_t) {
  REACHED(qp, qp.qp_base);
  return kAnswer;
}
int ibv_destroy_qp(ibv_qp* qp) {
  REACHED(qp, qp.qp_base);
  return kAnswer;
}

ibv_ah* ibv_create_ah(ibv_pd* pd, ibv_ah_attr*) {
  REACHED(pd, pd);
  return &real().ah;
}
int ibv_init_ah_from_wc(ibv_context* context, std::uint8_t, ibv_wc*, ibv_grh*, ibv_ah_attr*) {
  REACHED(context, context.context);
  return kAnswer;
}
ibv_ah* ibv_create_ah_from_wc(ibv_pd* pd, ibv_wc*, ibv_grh*, std::uint8_t) {
  REACHED(pd, pd);
  return &real().ah;
}
int ibv_destroy_ah(ibv_ah* ah) {
  REACHED(ah, ah);
  return kAnswer;
}

}  // extern "C"
