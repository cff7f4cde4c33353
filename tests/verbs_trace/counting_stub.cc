// Counts verbs in a way of its own, behind the trace: each call is passed on as six words, whatever its arguments are.
// At the process's end the counts go to the file that COUNTING_STUB names.
#include <dlfcn.h>
#include <infiniband/verbs.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace {

using Word = long;
using Any = Word (*)(Word, Word, Word, Word, Word, Word);

struct Counter {
  const char* name;
  std::atomic<unsigned long> calls{0};
  void* next = nullptr;
};

#define EXPORTED(each)                                                                                                \
  each(ibv_get_device_list) each(ibv_free_device_list) each(ibv_close_device) each(ibv_alloc_pd) each(ibv_dealloc_pd) \
      each(ibv_reg_mr_iova2) each(ibv_dereg_mr) each(ibv_create_cq) each(ibv_destroy_cq) each(ibv_create_qp)          \
          each(ibv_modify_qp) each(ibv_query_qp) each(ibv_destroy_qp) each(ibv_create_comp_channel)                   \
              each(ibv_destroy_comp_channel) each(ibv_get_cq_event) each(ibv_ack_cq_events) each(ibv_query_gid)

Counter open_device{"ibv_open_device"}, poll_cq{"ibv_poll_cq"}, post_send{"ibv_post_send"}, post_recv{"ibv_post_recv"},
    req_notify_cq{"ibv_req_notify_cq"}, reg_mr{"ibv_reg_mr"};
#define DEFINE(name) Counter name##_counter{#name};
EXPORTED(DEFINE)

ibv_context_ops before;

int counted_poll(ibv_cq* queue, int room, ibv_wc* completions) {
  poll_cq.calls++;
  return before.poll_cq(queue, room, completions);
}

int counted_send(ibv_qp* pair, ibv_send_wr* requests, ibv_send_wr** bad) {
  post_send.calls++;
  return before.post_send(pair, requests, bad);
}

int counted_receive(ibv_qp* pair, ibv_recv_wr* requests, ibv_recv_wr** bad) {
  post_recv.calls++;
  return before.post_recv(pair, requests, bad);
}

int counted_notify(ibv_cq* queue, int solicited) {
  req_notify_cq.calls++;
  return before.req_notify_cq(queue, solicited);
}

Word pass_on(Counter& counter, Word a, Word b, Word c, Word d, Word e, Word f) {
  counter.calls++;
  if (counter.next == nullptr) counter.next = dlsym(RTLD_NEXT, counter.name);
  return reinterpret_cast<Any>(counter.next)(a, b, c, d, e, f);
}

__attribute__((destructor)) void write_counts() {
  const char* const path = getenv("COUNTING_STUB");
  std::FILE* const file = path != nullptr ? std::fopen(path, "w") : nullptr;
  if (file == nullptr) return;
  const auto tell = [file](const Counter& counter) {
    if (counter.calls != 0) std::fprintf(file, "%s %lu\n", counter.name, counter.calls.load());
  };
  for (const Counter* counter : {&open_device, &poll_cq, &post_send, &post_recv, &req_notify_cq, &reg_mr})
    tell(*counter);
#define TELL(name) tell(name##_counter);
  EXPORTED(TELL)
  std::fclose(file);
}

}  // namespace

#undef ibv_reg_mr

extern "C" {

#define FORWARD(name)                                                                 \
  __attribute__((visibility("default")))                                              \
  Word counted_##name(Word a, Word b, Word c, Word d, Word e, Word f) __asm__(#name); \
  Word counted_##name(Word a, Word b, Word c, Word d, Word e, Word f) {               \
    return pass_on(name##_counter, a, b, c, d, e, f);                                 \
  }
EXPORTED(FORWARD)

__attribute__((visibility("default"))) ibv_mr* ibv_reg_mr(ibv_pd* domain, void* address, std::size_t length,
                                                          int access) {
  reg_mr.calls++;
  return reinterpret_cast<decltype(&ibv_reg_mr)>(dlsym(RTLD_NEXT, "ibv_reg_mr"))(domain, address, length, access);
}

__attribute__((visibility("default"))) ibv_context* ibv_open_device(ibv_device* device) {
  open_device.calls++;
  ibv_context* const context =
      reinterpret_cast<decltype(&ibv_open_device)>(dlsym(RTLD_NEXT, "ibv_open_device"))(device);
  if (context == nullptr) return nullptr;
  before = context->ops;
  context->ops.poll_cq = counted_poll;
  context->ops.post_send = counted_send;
  context->ops.post_recv = counted_receive;
  context->ops.req_notify_cq = counted_notify;
  return context;
}

}  // extern "C"
