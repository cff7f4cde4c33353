#include "engine_verbs.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace bypass::verbs {
namespace {

EngineVerbs* instance = nullptr;

void require(bool condition) {
  if (!condition) std::abort();  // the code under test misuses the device
}

template <typename T>
T* refuse(int error) {
  errno = error;
  return nullptr;
}

}  // namespace

template <typename Base, typename Object>
struct EngineVerbs::Wrapped {
  Base base{};  // first: what the code under test holds
  Object* engine = nullptr;
  static Wrapped& of(Base* handle) { return *reinterpret_cast<Wrapped*>(handle); }
};

struct EngineVerbs::Context {
  verbs_context base{};
  ibv_device device{};
  End* end = nullptr;
  bool open = false, gone = false;
  std::deque<ibv_async_event> events;
  std::vector<Pair*> pairs;
  std::vector<Queue*> queues;
  [[nodiscard]] rdma::Device& engine() const { return end->engine->device(); }
  static Context& of(ibv_context* handle) {
    for (const auto& each : instance->contexts_)
      if (&each->base.context == handle) return *each;
    std::abort();
  }
};

struct EngineVerbs::Channel {
  ibv_comp_channel base{};
  std::deque<Queue*> events;
  static Channel& of(ibv_comp_channel* handle) { return *reinterpret_cast<Channel*>(handle); }
};

struct EngineVerbs::Queue {
  ibv_cq base{};
  rdma::Cq* engine = nullptr;
  unsigned told = 0, acknowledged = 0;
  std::deque<ibv_wc> held;
  static Queue& of(ibv_cq* handle) { return *reinterpret_cast<Queue*>(handle); }
  /// Held completions come after the others, if at all.
  int poll(rdma::Device& device, std::span<ibv_wc> out, End::Hold hold) {
    std::size_t n = 0;
    for (ibv_wc one; n < out.size() && device.poll_cq(*engine, {&one, 1}) != 0;) {
      const bool receive = (one.opcode & IBV_WC_RECV) != 0;
      if (hold == (receive ? End::Hold::kReceives : End::Hold::kSends))
        held.push_back(one);
      else
        out[n++] = one;
    }
    for (; hold == End::Hold::kNothing && n < out.size() && !held.empty(); held.pop_front()) out[n++] = held.front();
    return static_cast<int>(n);
  }
};

struct EngineVerbs::Pair {
  ibv_qp base{};
  rdma::Qp* engine = nullptr;
  static Pair& of(ibv_qp* handle) { return *reinterpret_cast<Pair*>(handle); }
};

// The calls that the code under test makes.
struct EngineCalls {
  using Context = EngineVerbs::Context;
  using Channel = EngineVerbs::Channel;
  using Queue = EngineVerbs::Queue;
  using Pair = EngineVerbs::Pair;
  using Hold = EngineVerbs::End::Hold;
  using Domain = EngineVerbs::Wrapped<ibv_pd, rdma::Pd>;
  using Region = EngineVerbs::Wrapped<ibv_mr, rdma::Mr>;

  // --- Devices
  static ibv_device** get_device_list(int* count) {
    static std::array<ibv_device*, 8> list;
    std::size_t n = 0;
    for (const auto& each : instance->contexts_)
      if (!each->gone) list[n++] = &each->device;
    list[n] = nullptr;
    *count = static_cast<int>(n);
    return list.data();
  }
  static void free_device_list(ibv_device**) {}
  static Context& context_of(ibv_device* device) {
    for (const auto& each : instance->contexts_)
      if (&each->device == device) return *each;
    std::abort();
  }
  static const char* get_device_name(ibv_device* device) { return context_of(device).end->name.c_str(); }
  static ibv_context* open_device(ibv_device* device) {
    Context& context = context_of(device);
    if (context.end->errors.open != 0) return refuse<ibv_context>(context.end->errors.open);
    require(!context.open);
    context.open = true;
    context.base.context.async_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE);
    context.end->alive++;
    return &context.base.context;
  }
  static int close_device(ibv_context* handle) {
    Context& context = Context::of(handle);
    close(handle->async_fd);
    context.open = false;
    context.end->alive--;
    require(context.end->alive == 0);  // it is the last to go
    return 0;
  }
  static int query_port(ibv_context* handle, std::uint8_t, ibv_port_attr* out) {
    Context& context = Context::of(handle);
    *out = {};
    out->state = IBV_PORT_ACTIVE;
    out->active_mtu = context.engine().active_mtu();
    out->link_layer = context.end->link_layer;
    out->gid_tbl_len = static_cast<int>(context.engine().gids().size());
    return 0;
  }
  static int query_gid(ibv_context* handle, std::uint8_t, int index, ibv_gid* out) {
    *out = Context::of(handle).engine().gids()[static_cast<std::size_t>(index)];
    return 0;
  }

  // --- Memory
  static ibv_pd* alloc_pd(ibv_context* handle) {
    Context& context = Context::of(handle);
    if (context.end->errors.alloc_pd != 0) return refuse<ibv_pd>(context.end->errors.alloc_pd);
    auto* const made = new Domain;
    made->base.context = handle;
    made->engine = context.engine().alloc_pd().object;
    context.end->alive++;
    return &made->base;
  }
  static int dealloc_pd(ibv_pd* handle) {
    Context& context = Context::of(handle->context);
    require(context.engine().dealloc_pd(*Domain::of(handle).engine) == 0);
    context.end->alive--;
    delete &Domain::of(handle);
    return 0;
  }
  static ibv_mr* register_memory(ibv_pd* pd, void* at, std::size_t length, std::uint64_t iova, int access) {
    Context& context = Context::of(pd->context);
    if (context.end->errors.register_memory != 0) return refuse<ibv_mr>(context.end->errors.register_memory);
    const auto object =
        context.engine().reg_mr(*Domain::of(pd).engine, at, length, iova, static_cast<unsigned>(access));
    if (object.error != 0) return refuse<ibv_mr>(object.error);
    auto* const made = new Region;
    made->engine = object.object;
    made->base.context = pd->context;
    made->base.lkey = rdma::Device::lkey(*object.object);
    made->base.rkey = rdma::Device::rkey(*object.object);
    context.end->alive++;
    return &made->base;
  }
  static ibv_mr* reg_mr(ibv_pd* pd, void* at, std::size_t length, int access) {
    return register_memory(pd, at, length, reinterpret_cast<std::uintptr_t>(at), access);
  }
  static ibv_mr* reg_mr_iova(ibv_pd* pd, void* at, std::size_t length, std::uint64_t iova, int access) {
    if (!Context::of(pd->context).end->has_iova) return refuse<ibv_mr>(EOPNOTSUPP);
    return register_memory(pd, at, length, iova, access);
  }
  static int dereg_mr(ibv_mr* handle) {
    Context& context = Context::of(handle->context);
    require(context.engine().dereg_mr(*Region::of(handle).engine) == 0);
    context.end->alive--;
    delete &Region::of(handle);
    return 0;
  }

  // --- Completion queues
  static ibv_comp_channel* create_comp_channel(ibv_context* handle) {
    Context& context = Context::of(handle);
    if (context.end->errors.create_channel != 0) return refuse<ibv_comp_channel>(context.end->errors.create_channel);
    auto* const made = new Channel;
    made->base.context = handle;
    made->base.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE);
    context.end->alive++;
    return &made->base;
  }
  static int destroy_comp_channel(ibv_comp_channel* handle) {
    Context::of(handle->context).end->alive--;
    close(handle->fd);
    delete &Channel::of(handle);
    return 0;
  }
  static ibv_cq* create_cq(ibv_context* handle, int count, void* user, ibv_comp_channel* channel, int) {
    Context& context = Context::of(handle);
    if (context.end->errors.create_cq != 0) return refuse<ibv_cq>(context.end->errors.create_cq);
    auto* const made = new Queue;
    made->base.context = handle;
    made->base.channel = channel;
    made->base.cq_context = user;
    made->engine = context.engine().create_cq(static_cast<std::uint32_t>(count), made).object;
    context.queues.push_back(made);
    context.end->alive++;
    return &made->base;
  }
  static int destroy_cq(ibv_cq* handle) {
    Context& context = Context::of(handle->context);
    Queue& queue = Queue::of(handle);
    instance->hand_on_events();
    std::erase(Channel::of(handle->channel).events, &queue);
    require(queue.told == queue.acknowledged);  // libibverbs waits for that
    require(context.engine().destroy_cq(*queue.engine) == 0);
    std::erase(context.queues, &queue);
    context.end->alive--;
    delete &queue;
    return 0;
  }
  static int get_cq_event(ibv_comp_channel* handle, ibv_cq** queue, void** user) {
    Channel& channel = Channel::of(handle);
    eventfd_t one = 0;
    if (eventfd_read(handle->fd, &one) != 0) return -1;
    require(!channel.events.empty());
    channel.events.front()->told++;
    *queue = &channel.events.front()->base;
    *user = (*queue)->cq_context;
    channel.events.pop_front();
    return 0;
  }
  static void ack_cq_events(ibv_cq* handle, unsigned count) { Queue::of(handle).acknowledged += count; }
  static int poll_cq(ibv_cq* handle, int most, ibv_wc* out) {
    Context& context = Context::of(handle->context);
    context.end->polls++;
    if (context.end->poll_fails) return -1;
    if (context.end->silent) return 0;
    Queue& queue = Queue::of(handle);
    const std::span<ibv_wc> room(out, static_cast<std::size_t>(most));
    if (context.end->hold == Hold::kNothing && queue.held.empty())
      return static_cast<int>(context.engine().poll_cq(*queue.engine, room));
    return queue.poll(context.engine(), room, context.end->hold);
  }
  static int req_notify_cq(ibv_cq* handle, int solicited) {
    Context& context = Context::of(handle->context);
    if (context.end->errors.arm != 0) return context.end->errors.arm;
    return context.engine().request_notify(*Queue::of(handle).engine, solicited != 0);
  }

  // --- Queue pairs
  static ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* wanted) {
    Context& context = Context::of(pd->context);
    if (context.end->errors.create_qp != 0) return refuse<ibv_qp>(context.end->errors.create_qp);
    if (wanted->cap.max_inline_data > context.end->most_inline) return refuse<ibv_qp>(EINVAL);
    auto* const made = new Pair;
    rdma::QpInit init;
    init.pd = Domain::of(pd).engine;
    init.send_cq = Queue::of(wanted->send_cq).engine;
    init.receive_cq = Queue::of(wanted->recv_cq).engine;
    init.type = wanted->qp_type;
    init.cap = wanted->cap;
    init.user = made;
    made->engine = context.engine().create_qp(init).object;
    require(made->engine != nullptr);
    made->base.context = pd->context;
    made->base.qp_num = rdma::Device::qpn(*made->engine);
    context.pairs.push_back(made);
    context.end->alive++;
    return &made->base;
  }
  static int modify_qp(ibv_qp* handle, ibv_qp_attr* to, int mask) {
    Context& context = Context::of(handle->context);
    const EngineVerbs::Errors& errors = context.end->errors;
    if (to->qp_state == IBV_QPS_INIT && errors.to_init != 0) return errors.to_init;
    if (to->qp_state == IBV_QPS_RTR && errors.to_rtr != 0) return errors.to_rtr;
    if (to->qp_state == IBV_QPS_RTS && errors.to_rts != 0) return errors.to_rts;
    if (to->qp_state == IBV_QPS_ERR && errors.to_err != 0) return errors.to_err;
    if (to->qp_state == IBV_QPS_RTR) {
      context.end->rtr = *to;
      introduce(context, to->ah_attr.grh.dgid);
    }
    if (to->qp_state == IBV_QPS_RTS) {
      context.end->rts = *to;
      to->max_rd_atomic = std::max(to->max_rd_atomic, context.end->reads);
    }
    return context.engine().modify_qp(*Pair::of(handle).engine, *to, static_cast<unsigned>(mask));
  }
  // The kernel, or the software library, asks for the peer's MAC on the way to RTR.
  static void introduce(const Context& context, const ibv_gid& gid) {
    const IpAddress peer{std::to_array(gid.raw)};
    for (const auto& each : instance->contexts_)
      if (each->end->address() == peer) context.engine().set_neighbour(peer, each->engine().mac());
  }
  static int destroy_qp(ibv_qp* handle) {
    Context& context = Context::of(handle->context);
    require(context.engine().destroy_qp(*Pair::of(handle).engine) == 0);
    std::erase(context.pairs, &Pair::of(handle));
    std::erase_if(context.events, [&](const ibv_async_event& each) { return each.element.qp == handle; });
    context.end->alive--;
    delete &Pair::of(handle);
    return 0;
  }
  static int post_send(ibv_qp* handle, ibv_send_wr* each, ibv_send_wr** refused) {
    EngineVerbs::End& end = *Context::of(handle->context).end;
    end.doorbells++;
    for (; each != nullptr; each = each->next) {
      const int error = end.refuse_sends_after == std::size_t{0} ? EINVAL : post_one(handle, *each);
      if (error != 0) return *refused = each, error;
      if (end.refuse_sends_after) --*end.refuse_sends_after;
    }
    return 0;
  }
  static int post_one(ibv_qp* handle, const ibv_send_wr& wr) {
    Context& context = Context::of(handle->context);
    rdma::SendRequest request;
    request.wr_id = wr.wr_id;
    request.opcode = wr.opcode;
    request.flags = wr.send_flags;
    request.imm = wr.imm_data;
    request.sges = {wr.sg_list, static_cast<std::size_t>(wr.num_sge)};
    request.remote_addr = wr.wr.rdma.remote_addr;
    request.rkey = wr.wr.rdma.rkey;
    EngineVerbs::Posted posted{wr.opcode, wr.send_flags, 0, wr.num_sge};
    for (const ibv_sge& piece : request.sges) posted.bytes += piece.length;
    context.end->posted.push_back(posted);
    instance->count_request();
    return context.engine().post_send(*Pair::of(handle).engine, request);
  }
  static int post_recv(ibv_qp* handle, ibv_recv_wr* each, ibv_recv_wr** refused) {
    Context& context = Context::of(handle->context);
    auto& left = context.end->refuse_receives_after;
    for (; each != nullptr; each = each->next) {
      const rdma::ReceiveRequest request{each->wr_id, {each->sg_list, static_cast<std::size_t>(each->num_sge)}};
      const int error =
          left == std::size_t{0} ? EINVAL : context.engine().post_receive(*Pair::of(handle).engine, request);
      if (error != 0) return *refused = each, error;
      if (left) --*left;
    }
    return 0;
  }

  // --- Events
  static int get_async_event(ibv_context* handle, ibv_async_event* out) {
    Context& context = Context::of(handle);
    if (context.events.empty()) {
      errno = context.gone ? EIO : EAGAIN;
      return -1;
    }
    eventfd_t one = 0;
    (void)eventfd_read(handle->async_fd, &one);
    *out = context.events.front();
    context.events.pop_front();
    return 0;
  }
  static void ack_async_event(ibv_async_event*) {}
};

// --- EngineVerbs

EngineVerbs::EngineVerbs(std::uint64_t seed) : fabric_(seed) {
  instance = this;
}

EngineVerbs::~EngineVerbs() {
  for (const auto& each : contexts_) require(!each->open && each->end->alive == 0);
  if (instance == this) instance = nullptr;
}

EngineVerbs::End& EngineVerbs::add_device(const rdma::test::EndConfig& config) {
  End& end = *ends_.emplace_back(std::make_unique<End>());
  end.name = "end" + std::to_string(ends_.size() - 1);
  end.engine = &fabric_.add_end(config);
  Context& context = *contexts_.emplace_back(std::make_unique<Context>());
  context.end = &end;
  ibv_context& base = context.base.context;
  base.device = &context.device;
  base.cmd_fd = -1;
  base.async_fd = -1;
  base.ops.poll_cq = EngineCalls::poll_cq;
  base.ops.req_notify_cq = EngineCalls::req_notify_cq;
  base.ops.post_send = EngineCalls::post_send;
  base.ops.post_recv = EngineCalls::post_recv;
  return end;
}

void EngineVerbs::run_for(Duration time) {
  fabric_.run_for(time);
  hand_on_events();
}

void EngineVerbs::hand_on_events() {
  for (const auto& each : contexts_) {
    if (!each->open) continue;
    for (void* user = nullptr; each->engine().take_completion_event(user);) {
      const auto known = std::find(each->queues.begin(), each->queues.end(), user);
      if (known == each->queues.end()) continue;
      Channel& channel = Channel::of((*known)->base.channel);
      channel.events.push_back(*known);
      eventfd_write(channel.base.fd, 1);
    }
    for (rdma::AsyncEvent event; each->engine().take_async_event(event);) {
      const auto pair = std::find(each->pairs.begin(), each->pairs.end(), event.user);
      if (pair == each->pairs.end()) continue;
      ibv_async_event told{};
      told.event_type = event.type;
      told.element.qp = &(*pair)->base;
      each->events.push_back(told);
      eventfd_write(each->base.context.async_fd, 1);
    }
  }
}

void EngineVerbs::report(std::size_t end, ibv_event_type type, std::uint8_t port) {
  Context& context = *contexts_[end];
  ibv_async_event event{};
  event.event_type = type;
  if (type == IBV_EVENT_PORT_ERR || type == IBV_EVENT_PORT_ACTIVE)
    event.element.port_num = port;
  else if (type == IBV_EVENT_CQ_ERR)
    event.element.cq = &context.queues.back()->base;
  else if (type != IBV_EVENT_DEVICE_FATAL)
    event.element.qp = &context.pairs.back()->base;
  context.events.push_back(event);
  eventfd_write(context.base.context.async_fd, 1);
}

void EngineVerbs::take_away(std::size_t end) {
  contexts_[end]->gone = true;
  eventfd_write(contexts_[end]->base.context.async_fd, 1);
}

void EngineVerbs::bring_back(std::size_t end) {
  contexts_[end]->gone = false;
  contexts_[end]->end->silent = false;
}

void EngineVerbs::break_pair(std::size_t end) {
  ibv_qp_attr to{};
  to.qp_state = IBV_QPS_ERR;
  Context& context = *contexts_[end];
  require(context.engine().modify_qp(*context.pairs.back()->engine, to, IBV_QP_STATE) == 0);
}

void EngineVerbs::count_request() {
  if (!break_after || break_after->requests-- != 0) return;
  const std::size_t end = break_after->end;
  break_after.reset();
  break_pair(end);
}

// --- verbs.h

int Verbs::look_at_port(ibv_context* context, std::uint8_t number, ibv_port_attr& out) const {
  return EngineCalls::query_port(context, number, &out);
}

bool is_soft(const std::string&) {
  return false;
}

const Verbs* verbs_for(const std::string&, std::string&) {
  static const Verbs verbs = [] {
    Verbs v;
#define BYPASS_ENGINE_CALL(name) v.name = EngineCalls::name;
    BYPASS_ENGINE_CALL(get_device_list)
    BYPASS_ENGINE_CALL(free_device_list)
    BYPASS_ENGINE_CALL(get_device_name)
    BYPASS_ENGINE_CALL(open_device)
    BYPASS_ENGINE_CALL(close_device)
    BYPASS_ENGINE_CALL(query_gid)
    BYPASS_ENGINE_CALL(alloc_pd)
    BYPASS_ENGINE_CALL(dealloc_pd)
    BYPASS_ENGINE_CALL(reg_mr)
    BYPASS_ENGINE_CALL(reg_mr_iova)
    BYPASS_ENGINE_CALL(dereg_mr)
    BYPASS_ENGINE_CALL(create_comp_channel)
    BYPASS_ENGINE_CALL(destroy_comp_channel)
    BYPASS_ENGINE_CALL(create_cq)
    BYPASS_ENGINE_CALL(destroy_cq)
    BYPASS_ENGINE_CALL(get_cq_event)
    BYPASS_ENGINE_CALL(ack_cq_events)
    BYPASS_ENGINE_CALL(create_qp)
    BYPASS_ENGINE_CALL(modify_qp)
    BYPASS_ENGINE_CALL(destroy_qp)
    BYPASS_ENGINE_CALL(get_async_event)
    BYPASS_ENGINE_CALL(ack_async_event)
#undef BYPASS_ENGINE_CALL
    return v;
  }();
  return &verbs;
}

}  // namespace bypass::verbs
