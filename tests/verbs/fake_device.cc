#include "fake_device.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "backends/verbs/verbs.h"

namespace bypass::verbs {
namespace {

FakeDevice* fake = nullptr;

}  // namespace

// The calls, as the port makes them.
struct FakeVerbs {
  static ibv_device** get_device_list(int* count) {
    static ibv_device* list[2];
    list[0] = &fake->device_;
    *count = 1;
    return list;
  }
  static void free_device_list(ibv_device**) {}
  static const char* get_device_name(ibv_device*) { return FakeDevice::kName; }
  static ibv_context* open_device(ibv_device*) { return &fake->context_.context; }
  static int close_device(ibv_context*) { return 0; }
  static int query_device(ibv_context*, ibv_device_attr* out) {
    *out = {};
    out->phys_port_cnt = 1;
    out->max_qp_wr = out->max_cqe = 4096;
    return 0;
  }
  static int query_port(ibv_context*, std::uint8_t, ibv_port_attr* out, std::size_t) {
    out->state = fake->carrier ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
    out->phys_state = fake->carrier ? 5 : 3;  // LinkUp, Disabled
    out->link_layer = IBV_LINK_LAYER_ETHERNET;
    return 0;
  }
  static std::uint32_t wire_mtu(ibv_context*) { return fake->mtu; }
  static int query_gid(ibv_context*, std::uint8_t, int, ibv_gid* out) {
    const std::uint8_t link_local[16] = {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, 0, 1};
    std::memcpy(out->raw, link_local, sizeof link_local);
    return 0;
  }
  static ibv_pd* alloc_pd(ibv_context* context) {
    fake->domain_.context = context;
    return &fake->domain_;
  }
  static int dealloc_pd(ibv_pd*) { return 0; }
  static ibv_mr* reg_mr(ibv_pd*, void*, std::size_t, int) { return &fake->memory_; }
  static int dereg_mr(ibv_mr*) { return 0; }
  static ibv_comp_channel* create_comp_channel(ibv_context* context) {
    fake->channel_.context = context;
    return &fake->channel_;
  }
  static int destroy_comp_channel(ibv_comp_channel*) { return 0; }
  static ibv_cq* create_cq(ibv_context* context, int, void*, ibv_comp_channel* channel, int) {
    ibv_cq& cq = fake->queues_.emplace_back().base;
    cq.context = context;
    cq.channel = channel;
    return &cq;
  }
  static int destroy_cq(ibv_cq*) { return 0; }
  static int get_cq_event(ibv_comp_channel* channel, ibv_cq** cq, void**) {
    eventfd_t count = 0;
    *cq = &fake->queues_.front().base;
    return eventfd_read(channel->fd, &count);
  }
  static void ack_cq_events(ibv_cq*, unsigned) {}
  static ibv_qp* create_qp(ibv_pd* domain, ibv_qp_init_attr* wanted) {
    wanted->cap.max_inline_data = 0;
    fake->pair_.context = domain->context;
    return &fake->pair_;
  }
  static int modify_qp(ibv_qp* pair, ibv_qp_attr* to, int) {
    if (fake->refuse_modify) return EIO;
    if (to->qp_state == IBV_QPS_RESET) fake->reset();
    pair->state = to->qp_state;
    return 0;
  }
  static int destroy_qp(ibv_qp*) {
    fake->reset();
    return 0;
  }
  static int get_async_event(ibv_context* context, ibv_async_event*) {
    char byte = 0;
    if (read(context->async_fd, &byte, 1) == 0) errno = EIO;
    return -1;
  }
  static void ack_async_event(ibv_async_event*) {}
  static ibv_flow* create_flow(ibv_qp* pair, ibv_flow_attr*) {
    fake->flow_.context = pair->context;
    return &fake->flow_;
  }
  static int destroy_flow(ibv_flow*) { return 0; }

  static int post_send(ibv_qp*, ibv_send_wr* request, ibv_send_wr** refused) {
    for (; request != nullptr; request = request->next) {
      if (fake->refuse_send_after == 0U) {
        *refused = request;
        return EINVAL;
      }
      if (fake->refuse_send_after) --*fake->refuse_send_after;
      std::string bytes;
      for (int i = 0; i < request->num_sge; i++)
        bytes.append(reinterpret_cast<const char*>(request->sg_list[i].addr), request->sg_list[i].length);
      fake->sends_.push_back({request->wr_id, (request->send_flags & IBV_SEND_SIGNALED) != 0, std::move(bytes)});
    }
    return 0;
  }
  static int post_recv(ibv_qp*, ibv_recv_wr* request, ibv_recv_wr**) {
    for (; request != nullptr; request = request->next) fake->receives_.push_back({request->wr_id, *request->sg_list});
    return 0;
  }
  static int poll_cq(ibv_cq* cq, int most, ibv_wc* out) {
    auto& completions = reinterpret_cast<FakeDevice::Queue*>(cq)->completions;
    const auto n = std::min(completions.size(), static_cast<std::size_t>(most));
    std::copy_n(completions.begin(), n, out);
    completions.erase(completions.begin(), completions.begin() + static_cast<std::ptrdiff_t>(n));
    return static_cast<int>(n);
  }
  static int req_notify_cq(ibv_cq* cq, int) {
    reinterpret_cast<FakeDevice::Queue*>(cq)->armed = true;
    return 0;
  }
};

FakeDevice::FakeDevice() {
  fake = this;
  channel_.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (pipe2(async_, O_CLOEXEC | O_NONBLOCK) != 0) std::abort();
  ibv_context& base = context_.context;
  base.device = &device_;
  base.cmd_fd = -1;
  base.async_fd = async_[0];
  base.abi_compat = __VERBS_ABI_IS_EXTENDED;
  base.ops.poll_cq = FakeVerbs::poll_cq;
  base.ops.req_notify_cq = FakeVerbs::req_notify_cq;
  base.ops.post_send = FakeVerbs::post_send;
  base.ops.post_recv = FakeVerbs::post_recv;
  context_.sz = sizeof context_;
  context_.query_port = FakeVerbs::query_port;
  context_.ibv_create_flow = FakeVerbs::create_flow;
  context_.ibv_destroy_flow = FakeVerbs::destroy_flow;
}

FakeDevice::~FakeDevice() {
  close(channel_.fd);
  close(async_[0]);
  if (async_[1] >= 0) close(async_[1]);
  fake = nullptr;
}

void FakeDevice::complete(Queue& queue, std::uint64_t id, ibv_wc_status status, std::uint32_t bytes) {
  ibv_wc completion{};
  completion.wr_id = id;
  completion.status = status;
  completion.byte_len = bytes;
  queue.completions.push_back(completion);
  if (queue.armed) eventfd_write(channel_.fd, 1);
  queue.armed = false;
}

bool FakeDevice::arrive(const std::string& frame) {
  if (receives_.empty() || receives_.front().room.length < frame.size()) return false;
  const Receive request = receives_.front();
  receives_.pop_front();
  std::memcpy(reinterpret_cast<void*>(request.room.addr), frame.data(), frame.size());
  complete(queues_.front(), request.id, IBV_WC_SUCCESS, static_cast<std::uint32_t>(frame.size()));
  return true;
}

void FakeDevice::send_all() {
  for (Send& each : sends_) {
    sent.push_back(std::move(each.bytes));
    if (each.signaled) complete(queues_.back(), each.id, IBV_WC_SUCCESS, 0);
  }
  sends_.clear();
}

void FakeDevice::fail() {
  for (const Send& each : sends_) complete(queues_.back(), each.id, IBV_WC_WR_FLUSH_ERR, 0);
  for (const Receive& each : receives_) complete(queues_.front(), each.id, IBV_WC_WR_FLUSH_ERR, 0);
  reset();
}

void FakeDevice::disappear() {
  refuse_modify = true;
  close(async_[1]);
  async_[1] = -1;
}

// Completions stay where they are, as on a device.
void FakeDevice::reset() {
  sends_.clear();
  receives_.clear();
}

// --- verbs.h

int Verbs::look_at_port(ibv_context* context, std::uint8_t number, ibv_port_attr& out) const {
  out = {};
  return FakeVerbs::query_port(context, number, &out, sizeof out);
}

bool is_soft(const std::string&) {
  return false;
}

const Verbs* verbs_for(const std::string&, std::string&) {
  static const Verbs verbs = [] {
    Verbs v;
#define BYPASS_VERBS_FAKE(name) v.name = FakeVerbs::name;
    BYPASS_VERBS_CALLS(BYPASS_VERBS_FAKE)
#undef BYPASS_VERBS_FAKE
    v.wire_mtu = FakeVerbs::wire_mtu;
    return v;
  }();
  return &verbs;
}

}  // namespace bypass::verbs
