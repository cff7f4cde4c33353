#include "fake_device.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "backends/verbs/verbs.h"

namespace bypass::verbs {
namespace {

FakeDevice* fake = nullptr;

void require(bool condition) {
  if (!condition) std::abort();  // the port misuses the device
}

template <typename T>
T* refuse(int error) {
  errno = error;
  return nullptr;
}

std::string bytes_at(const void* from, std::size_t length) {
  return {static_cast<const char*>(from), length};
}

}  // namespace

// The calls that the port makes.
struct FakeVerbs {
  static ibv_device** get_device_list(int* count) {
    static ibv_device* list[2];
    fake->looks_++;
    if (fake->errors.list != 0) return refuse<ibv_device*>(fake->errors.list);
    list[0] = &fake->device_;
    *count = fake->present_ ? 1 : 0;
    return list;
  }
  static void free_device_list(ibv_device**) {}
  static const char* get_device_name(ibv_device*) { return FakeDevice::kName; }
  static ibv_context* open_device(ibv_device*) {
    fake->opening_ += "open ";
    if (fake->errors.open != 0) return refuse<ibv_context>(fake->errors.open);
    require(pipe2(fake->async_, O_CLOEXEC) == 0);
    fake->context_.context.async_fd = fake->async_[0];
    fake->alive_++;
    return &fake->context_.context;
  }
  static int close_device(ibv_context*) {
    for (int& fd : fake->async_) {
      if (fd >= 0) close(fd);
      fd = -1;
    }
    fake->alive_--;
    require(fake->alive_ == 0);  // it is the last to go
    return 0;
  }
  static int fork_init() {
    fake->opening_ += "fork_init ";
    return fake->errors.fork_init;
  }
  static ibv_fork_status is_fork_initialized() { return fake->fork_status; }

  static int query_device(ibv_context*, ibv_device_attr* out) {
    *out = {};
    out->phys_port_cnt = fake->can.ports;
    out->max_qp_wr = out->max_cqe = 4096;
    out->max_sge = 16;
    if (fake->can.checksums) out->device_cap_flags = IBV_DEVICE_RAW_IP_CSUM;
    return 0;
  }
  static int query_device_ex(ibv_context* context, const ibv_query_device_ex_input*, ibv_device_attr_ex* out,
                             std::size_t) {
    *out = {};
    query_device(context, &out->orig_attr);
    out->tso_caps.max_tso = fake->can.max_tso;
    if (fake->can.max_tso != 0) out->tso_caps.supported_qpts = 1U << IBV_QPT_RAW_PACKET;
    if (fake->can.checksums) out->raw_packet_caps = IBV_RAW_PACKET_CAP_IP_CSUM;
    if (!fake->can.timestamps) return 0;
    out->completion_timestamp_mask = (std::uint64_t{1} << 48) - 1;
    out->hca_core_clock = 500'000;  // kHz: two nanoseconds a tick
    return 0;
  }
  static int query_rt_values(ibv_context*, ibv_values_ex* out) {
    out->comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
    out->raw_clock = {0, static_cast<long>(fake->clock)};
    return 0;
  }
  static int query_port(ibv_context*, std::uint8_t, ibv_port_attr* out, std::size_t) {
    out->state = fake->carrier ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
    out->phys_state = fake->carrier ? 5 : 3;  // LinkUp, Disabled
    out->link_layer = fake->can.link_layer;
    return 0;
  }
  static void problem(char* out, std::size_t room) { out[fake->problem.copy(out, room - 1)] = 0; }
  static std::uint32_t wire_mtu(ibv_context*) { return fake->mtu; }
  static int query_gid(ibv_context*, std::uint8_t, int, ibv_gid* out) {
    const std::uint8_t link_local[16] = {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, 0, 1};
    std::memcpy(out->raw, link_local, sizeof link_local);
    return 0;
  }

  static ibv_pd* alloc_pd(ibv_context* context) {
    fake->domain_.context = context;
    fake->alive_++;
    return &fake->domain_;
  }
  static int dealloc_pd(ibv_pd*) { return give_back(); }
  static ibv_mr* reg_mr(ibv_pd*, void*, std::size_t, int) {
    fake->registrations_++;
    if (fake->errors.register_memory != 0) return refuse<ibv_mr>(fake->errors.register_memory);
    fake->alive_++;
    return &fake->memory_;
  }
  static int dereg_mr(ibv_mr*) { return give_back(); }
  static ibv_comp_channel* create_comp_channel(ibv_context* context) {
    fake->channel_.context = context;
    fake->channel_.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    fake->alive_++;
    return &fake->channel_;
  }
  static int destroy_comp_channel(ibv_comp_channel*) {
    close(fake->channel_.fd);
    return give_back();
  }

  static FakeDevice::Queue* add_queue(ibv_context* context, ibv_comp_channel* channel) {
    if (fake->errors.create_cq != 0) return refuse<FakeDevice::Queue>(fake->errors.create_cq);
    FakeDevice::Queue& made = fake->queues_.emplace_back();
    made.base.context = context;
    made.base.channel = channel;
    fake->alive_++;
    return &made;
  }
  static ibv_cq* create_cq(ibv_context* context, int, void*, ibv_comp_channel* channel, int) {
    FakeDevice::Queue* const made = add_queue(context, channel);
    return made == nullptr ? nullptr : ibv_cq_ex_to_cq(&made->base);
  }
  static ibv_cq_ex* create_cq_ex(ibv_context* context, ibv_cq_init_attr_ex* wanted) {
    const bool timed = (wanted->wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP) != 0;
    if (timed && !fake->can.timestamps) return refuse<ibv_cq_ex>(EOPNOTSUPP);
    FakeDevice::Queue* const made = add_queue(context, wanted->channel);
    if (made == nullptr) return nullptr;
    ibv_cq_ex& cq = made->base;
    cq.start_poll = start_poll;
    cq.next_poll = next_poll;
    cq.end_poll = [](ibv_cq_ex* ended) { FakeDevice::queue_of(ended).polling = false; };
    cq.read_wc_flags = [](ibv_cq_ex* of) -> unsigned { return FakeDevice::queue_of(of).current.wc.wc_flags; };
    if ((wanted->wc_flags & IBV_WC_EX_WITH_BYTE_LEN) != 0)
      cq.read_byte_len = [](ibv_cq_ex* of) { return FakeDevice::queue_of(of).current.wc.byte_len; };
    if (timed) cq.read_completion_ts = [](ibv_cq_ex* of) { return FakeDevice::queue_of(of).current.time; };
    return &cq;
  }
  static int start_poll(ibv_cq_ex* cq, ibv_poll_cq_attr*) {
    FakeDevice::Queue& queue = FakeDevice::queue_of(cq);
    require(!queue.polling);
    const int error = advance(queue);
    queue.polling = error == 0;
    return error;
  }
  static int next_poll(ibv_cq_ex* cq) {
    require(FakeDevice::queue_of(cq).polling);
    return advance(FakeDevice::queue_of(cq));
  }
  static int advance(FakeDevice::Queue& queue) {
    if (queue.completions.empty()) return ENOENT;
    queue.current = queue.completions.front();
    queue.completions.pop_front();
    queue.base.wr_id = queue.current.wc.wr_id;
    queue.base.status = queue.current.wc.status;
    return 0;
  }
  static int destroy_cq(ibv_cq* cq) {
    require(!fake->queues_.empty());
    fake->queues_.remove_if([&](const auto& each) { return static_cast<const void*>(&each) == cq; });
    return give_back();
  }
  static int get_cq_event(ibv_comp_channel* channel, ibv_cq** cq, void**) {
    eventfd_t count = 0;
    *cq = ibv_cq_ex_to_cq(&fake->queues_.front().base);
    return eventfd_read(channel->fd, &count);
  }
  static void ack_cq_events(ibv_cq*, unsigned) {}

  static ibv_qp* create_qp(ibv_pd* domain, ibv_qp_init_attr* wanted) {
    if (fake->errors.create_qp != 0) return refuse<ibv_qp>(fake->errors.create_qp);
    return make_pair(domain->context, wanted->cap, false);
  }
  static ibv_qp* create_qp_ex(ibv_context* context, ibv_qp_init_attr_ex* wanted) {
    const bool extended = (wanted->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) != 0;
    if (fake->errors.create_qp != 0) return refuse<ibv_qp>(fake->errors.create_qp);
    if (!fake->can.extended_pair) return refuse<ibv_qp>(ENOSYS);
    if (extended && !fake->can.extended_requests) return refuse<ibv_qp>(EOPNOTSUPP);
    return make_pair(context, wanted->cap, extended);
  }
  static ibv_qp* make_pair(ibv_context* context, ibv_qp_cap& cap, bool extended) {
    cap.max_inline_data = fake->can.inline_bytes;
    fake->pair_.qp_base.context = context;
    fake->pair_is_extended_ = extended;
    fake->alive_++;
    return &fake->pair_.qp_base;
  }
  static ibv_qp_ex* qp_to_qp_ex(ibv_qp*) { return fake->pair_is_extended_ ? &fake->pair_ : nullptr; }
  static int modify_qp(ibv_qp* pair, ibv_qp_attr* to, int) {
    if (fake->errors.modify_qp != 0) return fake->errors.modify_qp;
    if (to->qp_state == IBV_QPS_RESET) fake->reset();
    pair->state = to->qp_state;
    return 0;
  }
  static int destroy_qp(ibv_qp*) {
    fake->reset();
    return give_back();
  }

  static int get_async_event(ibv_context* context, ibv_async_event* out) {
    std::uint8_t type = 0;
    const ssize_t got = read(context->async_fd, &type, 1);
    if (got == 0) errno = EIO;
    if (got <= 0) return -1;
    *out = {};
    out->event_type = static_cast<ibv_event_type>(type);
    if (type == IBV_EVENT_PORT_ACTIVE || type == IBV_EVENT_PORT_ERR) out->element.port_num = 1;
    fake->alive_++;
    return 0;
  }
  static void ack_async_event(ibv_async_event*) { give_back(); }
  static ibv_flow* create_flow(ibv_qp* pair, ibv_flow_attr*) {
    fake->flow_threads.insert(std::this_thread::get_id());
    errno = fake->errors.create_flow;
    if (errno != 0) return nullptr;
    fake->flow_.context = pair->context;
    fake->flows_++;
    fake->flows_made_++;
    fake->alive_++;
    return &fake->flow_;
  }
  static int destroy_flow(ibv_flow*) {
    fake->flows_--;
    return give_back();
  }
  static int give_back() {
    fake->alive_--;
    return 0;
  }

  // --- Posting

  static FakeDevice::Send request(const ibv_send_wr& from) {
    FakeDevice::Send made;
    made.id = from.wr_id;
    made.flags = from.send_flags;
    made.large = from.opcode == IBV_WR_TSO;
    if (made.large) made.headers = bytes_at(from.tso.hdr, from.tso.hdr_sz);
    if (made.large) made.mss = from.tso.mss;
    for (int i = 0; i < from.num_sge; i++) made.pieces.push_back(piece(from.sg_list[i]));
    return made;
  }
  static std::string piece(const ibv_sge& from) { return bytes_at(reinterpret_cast<void*>(from.addr), from.length); }
  static int post_send(ibv_qp*, ibv_send_wr* first, ibv_send_wr** refused) {
    std::vector<FakeDevice::Send> batch;
    for (const ibv_send_wr* each = first; each != nullptr; each = each->next) batch.push_back(request(*each));
    std::size_t taken = 0;
    const int error = fake->post(std::move(batch), &taken);
    if (!fake->names_refused) return error;
    *refused = first;
    while (taken-- > 0) *refused = (*refused)->next;
    return error;
  }
  static int post_recv(ibv_qp*, ibv_recv_wr* each, ibv_recv_wr** refused) {
    fake->receive_lists_++;
    for (; each != nullptr; each = each->next) {
      if (fake->refuse_receives) return *refused = fake->names_refused ? each : nullptr, EINVAL;
      fake->receives_.push_back({each->wr_id, *each->sg_list});
    }
    return 0;
  }

  static FakeDevice::Send& last() {
    require(fake->building_ && !fake->building_->empty());
    return fake->building_->back();
  }
  static FakeDevice::Send& begin(ibv_qp_ex* pair) {
    require(fake->building_.has_value());
    FakeDevice::Send& made = fake->building_->emplace_back();
    made.id = pair->wr_id;
    made.flags = pair->wr_flags;
    return made;
  }
  static void wr_start(ibv_qp_ex*) {
    require(!fake->building_);
    fake->building_.emplace();
  }
  static void wr_send(ibv_qp_ex* pair) { begin(pair); }
  static void wr_send_tso(ibv_qp_ex* pair, void* headers, std::uint16_t bytes, std::uint16_t mss) {
    FakeDevice::Send& made = begin(pair);
    made.large = true;
    made.headers = bytes_at(headers, bytes);
    made.mss = mss;
  }
  static void wr_set_sge_list(ibv_qp_ex*, std::size_t count, const ibv_sge* list) {
    for (std::size_t i = 0; i < count; i++) last().pieces.push_back(piece(list[i]));
  }
  static void wr_set_inline_data(ibv_qp_ex*, void* data, std::size_t bytes) {
    last().pieces.push_back(bytes_at(data, bytes));
    last().flags |= IBV_SEND_INLINE;
  }
  static void wr_set_inline_data_list(ibv_qp_ex* pair, std::size_t count, const ibv_data_buf* list) {
    for (std::size_t i = 0; i < count; i++) wr_set_inline_data(pair, list[i].addr, list[i].length);
  }
  static int wr_complete(ibv_qp_ex*) {
    require(fake->building_.has_value());
    std::vector<FakeDevice::Send> batch = std::move(*fake->building_);
    fake->building_.reset();
    return fake->post(std::move(batch), nullptr);
  }

  static int poll_cq(ibv_cq* cq, int most, ibv_wc* out) {
    FakeDevice::Queue& queue = *reinterpret_cast<FakeDevice::Queue*>(cq);
    require(queue.base.start_poll == nullptr);  // an extended one is polled as such
    int n = 0;
    for (; n < most && advance(queue) == 0; n++) out[n] = queue.current.wc;
    return n;
  }
  static int req_notify_cq(ibv_cq* cq, int) {
    reinterpret_cast<FakeDevice::Queue*>(cq)->armed = true;
    return 0;
  }
};

std::string FakeDevice::Send::bytes() const {
  std::string all = headers;
  for (const std::string& piece : pieces) all += piece;
  return all;
}

FakeDevice::FakeDevice() {
  fake = this;
  ibv_context& base = context_.context;
  base.device = &device_;
  base.cmd_fd = -1;
  base.abi_compat = __VERBS_ABI_IS_EXTENDED;
  base.ops.poll_cq = FakeVerbs::poll_cq;
  base.ops.req_notify_cq = FakeVerbs::req_notify_cq;
  base.ops.post_send = FakeVerbs::post_send;
  base.ops.post_recv = FakeVerbs::post_recv;
  context_.sz = sizeof context_;
  context_.query_port = FakeVerbs::query_port;
  context_.query_device_ex = FakeVerbs::query_device_ex;
  context_.query_rt_values = FakeVerbs::query_rt_values;
  context_.create_cq_ex = [](ibv_context* context, ibv_cq_init_attr_ex* wanted) {
    return fake->can.extended_queues ? FakeVerbs::create_cq_ex(context, wanted) : refuse<ibv_cq_ex>(ENOSYS);
  };
  context_.create_qp_ex = FakeVerbs::create_qp_ex;
  context_.ibv_create_flow = FakeVerbs::create_flow;
  context_.ibv_destroy_flow = FakeVerbs::destroy_flow;
  pair_.wr_start = FakeVerbs::wr_start;
  pair_.wr_send = FakeVerbs::wr_send;
  pair_.wr_send_tso = FakeVerbs::wr_send_tso;
  pair_.wr_set_sge_list = FakeVerbs::wr_set_sge_list;
  pair_.wr_set_inline_data = FakeVerbs::wr_set_inline_data;
  pair_.wr_set_inline_data_list = FakeVerbs::wr_set_inline_data_list;
  pair_.wr_complete = FakeVerbs::wr_complete;
}

FakeDevice::~FakeDevice() {
  require(alive_ == 0);
  fake = nullptr;
}

void FakeDevice::complete(Queue& queue, std::uint64_t id, ibv_wc_status status, std::uint32_t bytes,
                          bool checksums_good, std::uint64_t time) {
  ibv_wc completion{};
  completion.wr_id = id;
  completion.status = status;
  completion.byte_len = bytes;
  if (checksums_good) completion.wc_flags = IBV_WC_IP_CSUM_OK;
  queue.completions.push_back({completion, time});
  if (queue.armed) eventfd_write(channel_.fd, 1);
  queue.armed = false;
}

int FakeDevice::post(std::vector<Send> batch, std::size_t* taken) {
  doorbells_++;
  const std::size_t fits = std::min(batch.size(), refuse_send_after.value_or(batch.size()));
  const bool all = fits == batch.size();
  const std::size_t n = all || taken != nullptr ? fits : 0;  // a list's beginning, or all or nothing
  for (std::size_t i = 0; i < n; i++) sends_.push_back(std::move(batch[i]));
  if (refuse_send_after) *refuse_send_after -= n;
  if (taken != nullptr) *taken = n;
  return all ? 0 : EINVAL;
}

bool FakeDevice::arrive(const std::string& frame, bool checksums_good, std::uint64_t time) {
  if (receives_.empty() || receives_.front().room.length < frame.size()) return false;
  const Receive request = receives_.front();
  receives_.pop_front();
  std::memcpy(reinterpret_cast<void*>(request.room.addr), frame.data(), frame.size());
  complete(queues_.front(), request.id, IBV_WC_SUCCESS, static_cast<std::uint32_t>(frame.size()), checksums_good, time);
  return true;
}

void FakeDevice::send_all() {
  for (Send& each : sends_) {
    sent.push_back(each.bytes());
    if (each.is_signaled()) complete(queues_.back(), each.id, IBV_WC_SUCCESS, 0);
  }
  sends_.clear();
}

void FakeDevice::fail() {
  for (const Send& each : sends_) complete(queues_.back(), each.id, IBV_WC_WR_FLUSH_ERR, 0);
  for (const Receive& each : receives_) complete(queues_.front(), each.id, IBV_WC_WR_FLUSH_ERR, 0);
  reset();
}

void FakeDevice::report(ibv_event_type type) const {
  const auto byte = static_cast<std::uint8_t>(type);
  require(write(async_[1], &byte, 1) == 1);
}

void FakeDevice::disappear() {
  present_ = false;
  close(async_[1]);
  async_[1] = -1;
}

void FakeDevice::come_back() {
  present_ = true;
}

// Completions stay where they are, as on a real device.
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
  return fake->soft;
}

const Verbs* verbs_for(const std::string&, std::string&) {
  static const Verbs verbs = [] {
    Verbs v;
#define BYPASS_VERBS_FAKE(name) v.name = FakeVerbs::name;
    BYPASS_VERBS_CALLS(BYPASS_VERBS_FAKE)
    BYPASS_VERBS_NEWER_CALLS(BYPASS_VERBS_FAKE)
#undef BYPASS_VERBS_FAKE
    v.wire_mtu = FakeVerbs::wire_mtu;
    v.problem = FakeVerbs::problem;
    return v;
  }();
  return &verbs;
}

}  // namespace bypass::verbs
