// A verbs program that asks of a device what no tool asks. It links libibverbs like any other; what it runs on is the
// preload's business. Its queue pairs talk to each other through the device itself.
// verbs_abi CASE...   (no name: lists those that need nobody else)
#include <arpa/inet.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>
#include <vector>

namespace {

#define CHECK(condition)                                                    \
  do {                                                                      \
    if (!(condition)) {                                                     \
      std::printf("line %d: %s (errno %d)\n", __LINE__, #condition, errno); \
      std::exit(1);                                                         \
    }                                                                       \
  } while (0)

constexpr int kGid = 1;
constexpr int kPolling = 2, kLinkUp = 5;  // a port's physical state
constexpr unsigned kAllRights =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

ibv_context* open_device(int number = 0) {
  int count = 0;
  ibv_device** const list = ibv_get_device_list(&count);
  CHECK(list != nullptr && count > number);
  ibv_context* const context = ibv_open_device(list[number]);
  CHECK(context != nullptr);
  ibv_free_device_list(list);
  return context;
}

/// Device, domain, 4 KiB of registered memory.
struct Device {
  ibv_context* context;
  ibv_pd* pd = ibv_alloc_pd(context);
  alignas(8) char memory[4096] = {};
  ibv_mr* mr = ibv_reg_mr(pd, memory, sizeof memory, kAllRights);
  ibv_gid gid{};
  explicit Device(int number = 0) : context(open_device(number)) {
    CHECK(pd != nullptr && mr != nullptr);
    CHECK(ibv_query_gid(context, 1, kGid, &gid) == 0);
  }
  ~Device() { CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0); }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ibv_sge sge(std::size_t offset, std::uint32_t bytes) const {
    return {reinterpret_cast<std::uintptr_t>(memory) + offset, bytes, mr->lkey};
  }
};

ibv_qp_init_attr rc_init(ibv_cq* cq, ibv_srq* srq = nullptr) {
  ibv_qp_init_attr init{};
  init.send_cq = init.recv_cq = cq;
  init.srq = srq;
  init.cap = {16, 16, 4, 4, 64};
  init.qp_type = IBV_QPT_RC;
  return init;
}

void to_rts(ibv_qp* qp, const ibv_gid& peer_gid, std::uint32_t peer, std::uint8_t timeout) {
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
  CHECK(ibv_modify_qp(qp, &attr,
                      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
  attr = {};
  attr.qp_state = IBV_QPS_RTS;
  attr.timeout = timeout;
  attr.retry_cnt = attr.rnr_retry = 7;
  attr.max_rd_atomic = 4;
  CHECK(ibv_modify_qp(qp, &attr,
                      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                          IBV_QP_MAX_QP_RD_ATOMIC) == 0);
  CHECK(qp->state == IBV_QPS_RTS);
}

// To another of the same device.
void to_rts(const Device& device, ibv_qp* qp, std::uint32_t peer) {
  to_rts(qp, device.gid, peer, 14);
}

/// Two queue pairs of one device, connected to each other, over one completion queue.
struct Pair {
  ibv_qp *a, *b;
  Pair(const Device& device, ibv_cq* cq, ibv_srq* srq = nullptr) {
    ibv_qp_init_attr init = rc_init(cq, srq);
    a = ibv_create_qp(device.pd, &init);
    b = ibv_create_qp(device.pd, &init);
    CHECK(a != nullptr && b != nullptr && a->qp_num != b->qp_num);
    to_rts(device, a, b->qp_num);
    to_rts(device, b, a->qp_num);
  }
  ~Pair() { CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0); }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;
};

void post_receive(ibv_qp* qp, std::uint64_t id, ibv_sge sge) {
  ibv_recv_wr wr{id, nullptr, &sge, 1}, *bad = nullptr;
  CHECK(ibv_post_recv(qp, &wr, &bad) == 0);
}

int post_send(ibv_qp* qp, std::uint64_t id, ibv_sge sge, unsigned flags = IBV_SEND_SIGNALED) {
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

ibv_wc completion(ibv_cq* cq) {
  ibv_wc wc{};
  int found = 0;
  while ((found = ibv_poll_cq(cq, 1, &wc)) == 0) {
  }
  CHECK(found == 1);
  return wc;
}

// A message from `pair.a` to `pair.b`: two completions.
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

// --- Cases

void extended_interfaces() {
  Device device;
  ibv_cq_init_attr_ex cq_init{};
  cq_init.cqe = 16;
  cq_init.wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM | IBV_WC_EX_WITH_QP_NUM | IBV_WC_EX_WITH_SRC_QP |
                     IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
  ibv_cq_ex* const cq = ibv_create_cq_ex(device.context, &cq_init);
  CHECK(cq != nullptr);
  ibv_qp_init_attr_ex init{};
  const ibv_qp_init_attr plain = rc_init(ibv_cq_ex_to_cq(cq));
  std::memcpy(static_cast<void*>(&init), &plain, sizeof plain);
  init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  init.pd = device.pd;
  init.send_ops_flags = IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
  ibv_qp* const qp = ibv_create_qp_ex(device.context, &init);
  CHECK(qp != nullptr && init.cap.max_send_wr >= 16);
  ibv_qp_ex* const ex = ibv_qp_to_qp_ex(qp);
  CHECK(ex != nullptr);
  to_rts(device, qp, qp->qp_num);  // a queue pair may talk to itself

  ibv_values_ex before{IBV_VALUES_MASK_RAW_CLOCK, {}};
  CHECK(ibv_query_rt_values_ex(device.context, &before) == 0);
  post_receive(qp, 9, device.sge(1024, 256));
  std::strcpy(device.memory, "hello");
  *reinterpret_cast<std::uint64_t*>(device.memory + 512) = 40;
  ibv_wr_start(ex);
  ex->wr_id = 1;
  ex->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_send_imm(ex, 0x01020304);
  const ibv_sge halves[2] = {device.sge(0, 3), device.sge(3, 3)};
  ibv_wr_set_sge_list(ex, 2, halves);
  ex->wr_id = 2;
  ibv_wr_rdma_write(ex, device.mr->rkey, reinterpret_cast<std::uintptr_t>(device.memory) + 2048);
  char inlined[] = "inline";
  ibv_wr_set_inline_data(ex, inlined, sizeof inlined);
  std::memset(inlined, 'x', sizeof inlined);
  ex->wr_id = 3;
  ibv_wr_atomic_fetch_add(ex, device.mr->rkey, reinterpret_cast<std::uintptr_t>(device.memory) + 512, 2);
  ibv_wr_set_sge(ex, device.mr->lkey, reinterpret_cast<std::uintptr_t>(device.memory) + 520, 8);
  CHECK(ibv_wr_complete(ex) == 0);

  unsigned seen = 0;
  ibv_poll_cq_attr poll_attr{};
  while (seen != 0b1110 + (1U << 9)) {
    if (ibv_start_poll(cq, &poll_attr) == ENOENT) continue;
    do {
      CHECK(cq->status == IBV_WC_SUCCESS && ibv_wc_read_qp_num(cq) == qp->qp_num);
      seen |= 1U << cq->wr_id;
      CHECK(ibv_wc_read_completion_ts(cq) >= static_cast<std::uint64_t>(before.raw_clock.tv_sec) * 1'000'000'000U +
                                                 static_cast<std::uint64_t>(before.raw_clock.tv_nsec));
      CHECK(ibv_wc_read_completion_wallclock_ns(cq) > ibv_wc_read_completion_ts(cq));
      if (cq->wr_id == 9) {
        CHECK(ibv_wc_read_opcode(cq) == IBV_WC_RECV && ibv_wc_read_byte_len(cq) == 6);
        CHECK((ibv_wc_read_wc_flags(cq) & IBV_WC_WITH_IMM) != 0 && ibv_wc_read_imm_data(cq) == 0x01020304);
      }
    } while (ibv_next_poll(cq) == 0);
    ibv_end_poll(cq);
  }
  CHECK(std::strcmp(device.memory + 1024, "hello") == 0 && std::strcmp(device.memory + 2048, "inline") == 0);
  CHECK(*reinterpret_cast<std::uint64_t*>(device.memory + 512) == 42 &&
        *reinterpret_cast<std::uint64_t*>(device.memory + 520) == 40);

  // Abandoned, and more than there is room for: nothing is posted.
  ibv_wr_start(ex);
  ibv_wr_send_imm(ex, 0);
  ibv_wr_abort(ex);
  ibv_wr_start(ex);
  for (unsigned i = 0; i <= init.cap.max_send_wr; i++) ibv_wr_rdma_write(ex, device.mr->rkey, 0);
  CHECK(ibv_wr_complete(ex) == ENOMEM);
  CHECK(ibv_start_poll(cq, &poll_attr) == ENOENT);
  CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == 0);
}

/// A queue pair that talks to itself, all of it through the extended interfaces.
struct Extended {
  Device device;
  ibv_cq_ex* cq;
  ibv_qp* qp;
  ibv_qp_ex* ex;
  Extended() {
    ibv_cq_init_attr_ex cq_init{};
    cq_init.cqe = 256;
    cq = ibv_create_cq_ex(device.context, &cq_init);
    CHECK(cq != nullptr);
    ibv_qp_init_attr_ex init{};
    ibv_qp_init_attr plain = rc_init(ibv_cq_ex_to_cq(cq));
    plain.cap.max_send_wr = 128;
    std::memcpy(static_cast<void*>(&init), &plain, sizeof plain);
    init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    init.pd = device.pd;
    init.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
    qp = ibv_create_qp_ex(device.context, &init);
    CHECK(qp != nullptr);
    ex = ibv_qp_to_qp_ex(qp);
    to_rts(device, qp, qp->qp_num);
  }
  ~Extended() { CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == 0); }
  Extended(const Extended&) = delete;
  Extended& operator=(const Extended&) = delete;

  /// A byte of that value to that place of the memory's second half.
  void add_write(unsigned id, unsigned place, char value) {
    ex->wr_id = id;
    ex->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_rdma_write(ex, device.mr->rkey, reinterpret_cast<std::uintptr_t>(device.memory) + 2048 + place);
    ibv_wr_set_inline_data(ex, &value, 1);
  }
  void post_writes(unsigned first, unsigned count) {
    ibv_wr_start(ex);
    for (unsigned i = 0; i < count; i++) add_write(first + i, first + i, static_cast<char>(first + i + 1));
    CHECK(ibv_wr_complete(ex) == 0);
  }
};

// ibv_wr_complete(3): on an error nothing of the batch is posted, wherever in it the wrong request is.
void extended_batches_are_posted_whole() {
  Extended soft;
  for (const bool wrong_first : {true, false}) {
    ibv_wr_start(soft.ex);
    const auto add_wrong = [&] {  // an odd address
      ibv_wr_atomic_fetch_add(soft.ex, soft.device.mr->rkey, reinterpret_cast<std::uintptr_t>(soft.device.memory) + 1,
                              1);
      ibv_wr_set_sge(soft.ex, soft.device.mr->lkey, reinterpret_cast<std::uintptr_t>(soft.device.memory), 8);
    };
    if (wrong_first) add_wrong();
    soft.add_write(1, 0, 'x');
    soft.add_write(2, 1, 'y');
    if (!wrong_first) add_wrong();
    CHECK(ibv_wr_complete(soft.ex) == EINVAL);
    ibv_poll_cq_attr attr{};
    CHECK(ibv_start_poll(soft.cq, &attr) == ENOENT);
    CHECK(soft.device.memory[2048] == 0 && soft.device.memory[2049] == 0);
  }
  soft.post_writes(0, 100);  // more than there is room for at first
  for (unsigned i = 0; i < 100; i++) CHECK(completion(ibv_cq_ex_to_cq(soft.cq)).wr_id == i);
  for (unsigned i = 0; i < 100; i++) CHECK(soft.device.memory[2048 + i] == static_cast<char>(i + 1));
}

// What has been looked at is gone; the rest is there the next time, by either way of polling, in order.
void extended_polls_take_what_they_looked_at() {
  Extended soft;
  soft.post_writes(0, 50);
  ibv_poll_cq_attr attr{};
  for (unsigned next = 0; next < 50;) {
    while (ibv_start_poll(soft.cq, &attr) == ENOENT) {
    }
    CHECK(soft.cq->wr_id == next++);
    for (unsigned i = 0; i < 19 && next < 49; i++) {
      int error = 0;
      while ((error = ibv_next_poll(soft.cq)) == ENOENT) {
      }
      CHECK(error == 0 && soft.cq->wr_id == next++);
    }
    ibv_end_poll(soft.cq);
    if (next < 50) CHECK(completion(ibv_cq_ex_to_cq(soft.cq)).wr_id == next++);
  }
  CHECK(ibv_start_poll(soft.cq, &attr) == ENOENT);
}

// Several threads poll one queue: each completion is seen once.
void extended_polls_of_several_threads() {
  Extended soft;
  constexpr unsigned kAll = 2'000, kRound = 100;
  std::atomic<unsigned> seen{0};
  std::atomic<std::uint64_t> sum{0};
  const auto poll_all = [&] {
    ibv_poll_cq_attr attr{};
    while (seen < kAll) {
      if (ibv_start_poll(soft.cq, &attr) != 0) continue;
      do {
        sum += soft.cq->wr_id;
        seen++;
      } while (ibv_next_poll(soft.cq) == 0);
      ibv_end_poll(soft.cq);
    }
  };
  std::thread a(poll_all), b(poll_all);
  for (unsigned first = 0; first < kAll; first += kRound) {
    while (seen < first) std::this_thread::yield();
    ibv_wr_start(soft.ex);
    for (unsigned i = 0; i < kRound; i++) soft.add_write(first + i, i, 'z');
    CHECK(ibv_wr_complete(soft.ex) == 0);
  }
  a.join();
  b.join();
  CHECK(seen == kAll && sum == std::uint64_t{kAll} * (kAll - 1) / 2);
}

void channel_that_does_not_block() {
  Device device;
  ibv_comp_channel* const channel = ibv_create_comp_channel(device.context);
  CHECK(channel != nullptr && (fcntl(channel->fd, F_GETFD) & FD_CLOEXEC) != 0);
  CHECK(fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK) == 0);
  int mark = 0;
  ibv_cq* const cq = ibv_create_cq(device.context, 16, &mark, channel, 0);
  CHECK(cq != nullptr && ibv_destroy_comp_channel(channel) == EBUSY);
  {
    Pair pair(device, cq);
    ibv_cq* told = nullptr;
    void* context = nullptr;
    CHECK(ibv_get_cq_event(channel, &told, &context) == -1 && errno == EAGAIN);
    exchange(device, pair, cq);  // not armed: no event
    CHECK(!readable(channel->fd));
    CHECK(ibv_req_notify_cq(cq, 0) == 0);
    exchange(device, pair, cq);  // two completions, armed once: one event
    CHECK(readable(channel->fd));
    CHECK(ibv_get_cq_event(channel, &told, &context) == 0 && told == cq && context == &mark);
    CHECK(!readable(channel->fd));
    ibv_ack_cq_events(cq, 1);
    CHECK(ibv_req_notify_cq(cq, 1) == 0);
    exchange(device, pair, cq);  // nothing of it is solicited
    CHECK(!readable(channel->fd));
    CHECK(ibv_req_notify_cq(cq, 0) == 0);
    exchange(device, pair, cq);
    CHECK(readable(channel->fd));
  }
  CHECK(ibv_destroy_cq(cq) == 0);  // takes its unread event along
  CHECK(!readable(channel->fd) && ibv_destroy_comp_channel(channel) == 0);
}

// The program sleeps in poll() or in ibv_get_cq_event, and the device's own thread does the work.
void sleepers_are_woken() {
  Device device;
  ibv_comp_channel* const channel = ibv_create_comp_channel(device.context);
  ibv_cq* const cq = ibv_create_cq(device.context, 16, nullptr, channel, 0);
  {
    Pair pair(device, cq);
    for (const bool by_poll : {true, false}) {
      CHECK(ibv_req_notify_cq(cq, 0) == 0);
      std::atomic<bool> woken{false};
      std::thread sleeper([&] {
        pollfd item{channel->fd, POLLIN, 0};
        if (by_poll) CHECK(poll(&item, 1, -1) == 1);
        ibv_cq* told = nullptr;
        void* context = nullptr;
        CHECK(ibv_get_cq_event(channel, &told, &context) == 0 && told == cq);
        woken = true;
      });
      post_receive(pair.b, 2, device.sge(1024, 64));
      CHECK(post_send(pair.a, 1, device.sge(0, 64)) == 0);
      sleeper.join();  // nobody polls the completion queue meanwhile
      CHECK(woken && completion(cq).wr_id + completion(cq).wr_id == 3);
      ibv_ack_cq_events(cq, 1);
    }
  }
  CHECK(ibv_destroy_cq(cq) == 0 && ibv_destroy_comp_channel(channel) == 0);
}

void signals_interrupt_as_they_should() {
  Device device;
  for (const bool restart : {false, true}) {
    ibv_comp_channel* const channel = ibv_create_comp_channel(device.context);
    ibv_cq* const cq = ibv_create_cq(device.context, 16, nullptr, channel, 0);
    static std::atomic<int> handled;
    handled = 0;
    struct sigaction action {};
    action.sa_handler = [](int) { handled++; };
    action.sa_flags = restart ? SA_RESTART : 0;
    CHECK(sigaction(SIGUSR1, &action, nullptr) == 0);
    {
      Pair pair(device, cq);
      CHECK(ibv_req_notify_cq(cq, 0) == 0);
      std::atomic<int> result{1};
      std::thread sleeper([&] {
        ibv_cq* told = nullptr;
        void* context = nullptr;
        result = ibv_get_cq_event(channel, &told, &context) == 0 ? 0 : -errno;
      });
      // Asked for again and again: the thread may not sleep yet when the first one comes.
      while (restart ? handled < 20 : result == 1) {
        pthread_kill(sleeper.native_handle(), SIGUSR1);
        std::this_thread::yield();
      }
      CHECK(restart ? result == 1 : result == -EINTR);
      exchange(device, pair, cq);
      sleeper.join();
      CHECK(result == (restart ? 0 : -EINTR));
      if (restart) ibv_ack_cq_events(cq, 1);
    }
    CHECK(ibv_destroy_cq(cq) == 0 && ibv_destroy_comp_channel(channel) == 0);
  }
}

void destroying_waits_for_acknowledgements() {
  Device device;
  ibv_comp_channel* const channel = ibv_create_comp_channel(device.context);
  ibv_cq* const cq = ibv_create_cq(device.context, 16, nullptr, channel, 0);
  {
    Pair pair(device, cq);
    CHECK(ibv_req_notify_cq(cq, 0) == 0);
    exchange(device, pair, cq);
  }
  ibv_cq* told = nullptr;
  void* context = nullptr;
  CHECK(ibv_get_cq_event(channel, &told, &context) == 0);
  std::atomic<bool> destroyed{false};
  std::thread destroyer([&] {
    CHECK(ibv_destroy_cq(cq) == 0);
    destroyed = true;
  });
  for (int i = 0; i < 10'000 && !destroyed; i++) std::this_thread::yield();
  CHECK(!destroyed);
  ibv_ack_cq_events(told, 1);
  destroyer.join();
  CHECK(ibv_destroy_comp_channel(channel) == 0);
}

void asynchronous_events() {
  Device device;
  ibv_srq_init_attr srq_init{};
  srq_init.attr = {16, 4, 0};
  ibv_srq* const srq = ibv_create_srq(device.pd, &srq_init);
  ibv_cq* const cq = ibv_create_cq(device.context, 16, nullptr, nullptr, 0);
  CHECK(srq != nullptr && cq != nullptr && !readable(device.context->async_fd));
  {
    Pair pair(device, cq, srq);
    for (int i = 0; i < 2; i++) {
      ibv_sge sge = device.sge(1024, 64);
      ibv_recv_wr wr{2, nullptr, &sge, 1}, *bad = nullptr;
      CHECK(ibv_post_srq_recv(srq, &wr, &bad) == 0);
    }
    ibv_srq_attr limit{0, 0, 2};
    CHECK(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT) == 0);
    CHECK(post_send(pair.a, 1, device.sge(0, 64)) == 0);
    CHECK(completion(cq).wr_id + completion(cq).wr_id == 3);
    CHECK(readable(device.context->async_fd));
    ibv_async_event event{};
    CHECK(ibv_get_async_event(device.context, &event) == 0);
    CHECK(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && event.element.srq == srq);
    CHECK(!readable(device.context->async_fd));
    ibv_ack_async_event(&event);
    CHECK(fcntl(device.context->async_fd, F_SETFL, O_NONBLOCK) == 0);
    CHECK(ibv_get_async_event(device.context, &event) == -1 && errno == EAGAIN);
  }
  CHECK(ibv_destroy_cq(cq) == 0 && ibv_destroy_srq(srq) == 0);
}

// A queue pair belongs to the process that made it: the child's calls say so, and disturb nobody. A device whose wire
// is not the parent's is the child's to open.
void fork_leaves_the_parents_alone() {
  Device device;
  ibv_cq* const cq = ibv_create_cq(device.context, 16, nullptr, nullptr, 0);
  {
    Pair pair(device, cq);
    exchange(device, pair, cq);
    const pid_t child = fork();
    if (child == 0) {
      ibv_wc wc{};
      ibv_port_attr port{};
      CHECK(post_send(pair.a, 1, device.sge(0, 64)) == EIO);
      CHECK(ibv_poll_cq(cq, 1, &wc) == -1);
      CHECK(ibv_query_port(device.context, 1, &port) == EIO);
      CHECK(ibv_alloc_pd(device.context) == nullptr && errno == EIO);
      CHECK(ibv_destroy_qp(pair.a) == 0 && ibv_destroy_qp(pair.b) == 0 && ibv_destroy_cq(cq) == 0);
      CHECK(ibv_dereg_mr(device.mr) == 0 && ibv_dealloc_pd(device.pd) == 0 && ibv_close_device(device.context) == 0);
      Device own(1);
      ibv_cq* const own_cq = ibv_create_cq(own.context, 16, nullptr, nullptr, 0);
      {
        Pair own_pair(own, own_cq);
        for (int i = 0; i < 100; i++) exchange(own, own_pair, own_cq);
      }
      CHECK(ibv_destroy_cq(own_cq) == 0);
      _exit(0);
    }
    for (int i = 0; i < 1000; i++) exchange(device, pair, cq);
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    exchange(device, pair, cq);
  }
  CHECK(ibv_destroy_cq(cq) == 0);
}

// A parent that has closed its device leaves the wire to the child.
void forked_child_opens_the_device_itself() {
  ibv_context* const context = open_device();
  CHECK(ibv_close_device(context) == 0);
  const pid_t child = fork();
  if (child == 0) {
    {
      Device device;
      ibv_cq* const cq = ibv_create_cq(device.context, 16, nullptr, nullptr, 0);
      Pair pair(device, cq);
      exchange(device, pair, cq);
    }
    _exit(0);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
}

void closing_takes_everything_along() {
  long before = 0;
  for (int round = 0; round < 3; round++) {
    auto* const device = new Device;  // never taken down
    ibv_comp_channel* const channel = ibv_create_comp_channel(device->context);
    ibv_cq* const cq = ibv_create_cq(device->context, 16, nullptr, channel, 0);
    auto* const pair = new Pair(*device, cq);
    CHECK(ibv_req_notify_cq(cq, 0) == 0);
    exchange(*device, *pair, cq);
    ibv_ah_attr attr{};
    attr.is_global = 1;
    attr.grh.dgid = device->gid;
    attr.grh.sgid_index = kGid;
    attr.port_num = 1;
    CHECK(ibv_create_ah(device->pd, &attr) != nullptr);
    CHECK(ibv_close_device(device->context) == 0);
    if (round == 0) before = descriptors();
  }
  CHECK(descriptors() == before);
}

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
    to.grh.hop_limit = 9;
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
    CHECK(from.is_global == 1 && from.grh.sgid_index == gid_index && from.grh.hop_limit == 9);
    CHECK(std::memcmp(&from.grh.dgid, &to.grh.dgid, sizeof from.grh.dgid) == 0);
    ibv_ah* const back = ibv_create_ah_from_wc(device.pd, &wc, grh, 1);
    CHECK(back != nullptr && ibv_destroy_ah(back) == 0 && ibv_destroy_ah(ah) == 0);
  }
  CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
}

void memory_is_registered_anew() {
  Device device;
  const std::uint32_t old_key = device.mr->rkey;
  static char other[4096];
  CHECK(ibv_rereg_mr(device.mr, IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, other, sizeof other, 0) == 0);
  CHECK(device.mr->addr == other && device.mr->length == sizeof other && device.mr->rkey != old_key);
  CHECK(ibv_rereg_mr(device.mr, 1 << 9, nullptr, nullptr, 0, 0) == IBV_REREG_MR_ERR_INPUT && errno == EINVAL);
  CHECK(ibv_reg_mr(device.pd, other, sizeof other, IBV_ACCESS_REMOTE_WRITE) == nullptr && errno == EINVAL);
  ibv_mr* const mapped = ibv_reg_mr_iova(device.pd, other, sizeof other, 0x10000, IBV_ACCESS_LOCAL_WRITE);
  CHECK(mapped != nullptr && ibv_dealloc_pd(device.pd) == EBUSY && ibv_dereg_mr(mapped) == 0);
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
  for (const std::uint16_t size : {std::uint16_t{0}, std::uint16_t{4}, std::uint16_t{0xfff0}}) {  // none of a part's
    rule.tcp.size = size;
    CHECK(ibv_create_flow(qp, &rule.attr) == nullptr && errno == EINVAL);
  }
  CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
}

// What the port says, until the peer that comes has gone again. The caller makes both happen.
void port_states() {
  Device device;
  for (const ibv_event_type expected : {IBV_EVENT_PORT_ACTIVE, IBV_EVENT_PORT_ERR}) {
    ibv_async_event event{};
    std::puts("waiting");
    std::fflush(stdout);
    CHECK(ibv_get_async_event(device.context, &event) == 0 && event.event_type == expected);
    ibv_ack_async_event(&event);
    const bool up = expected == IBV_EVENT_PORT_ACTIVE;
    ibv_port_attr port{};
    CHECK(ibv_query_port(device.context, 1, &port) == 0);
    CHECK(port.state == (up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN) && port.phys_state == (up ? kLinkUp : kPolling));
  }
}

/// The first queue pair of two processes, connected to each other, with a receive request: PEER is the other's IPv4
/// address.
struct Remote {
  Device device;
  ibv_cq* cq = ibv_create_cq(device.context, 16, nullptr, nullptr, 0);
  ibv_qp* qp;
  explicit Remote(std::uint8_t timeout) {
    CHECK(cq != nullptr && std::getenv("PEER") != nullptr);
    ibv_qp_init_attr init = rc_init(cq);
    qp = ibv_create_qp(device.pd, &init);
    CHECK(qp != nullptr);
    std::puts("waiting");
    std::fflush(stdout);
    ibv_gid peer{};
    peer.raw[10] = peer.raw[11] = 0xff;
    CHECK(inet_pton(AF_INET, std::getenv("PEER"), peer.raw + 12) == 1);
    to_rts(qp, peer, qp->qp_num, timeout);
  }
  void receive() const { post_receive(qp, 7, device.sge(0, 64)); }
  ~Remote() { CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0); }
  Remote(const Remote&) = delete;
  Remote& operator=(const Remote&) = delete;
};

constexpr std::uint8_t kHalfASecond = 17, kNeverAgain = 0;

// Asks for a message, polls until it has got it, and calls nothing any more: the sender is answered all the same.
void receives_and_stays_away() {
  const Remote remote(kHalfASecond);
  remote.receive();
  ibv_wc none{};
  for (int i = 0; i < 20'000; i++) CHECK(ibv_poll_cq(remote.cq, 1, &none) == 0);  // the device's thread leaves it alone
  CHECK(post_send(remote.qp, 1, remote.device.sge(0, 64)) == 0);
  CHECK(completion(remote.cq).wr_id + completion(remote.cq).wr_id == 1 + 7);
  for (;;) pause();
}

// Sends once: what is not acknowledged is never sent again.
void sends_to_one_who_stays_away() {
  const Remote remote(kNeverAgain);
  remote.receive();
  CHECK(completion(remote.cq).wr_id == 7);
  CHECK(post_send(remote.qp, 8, remote.device.sge(0, 64)) == 0);
  const ibv_wc wc = completion(remote.cq);
  CHECK(wc.wr_id == 8 && wc.status == IBV_WC_SUCCESS);
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
  CHECK(ibv_alloc_mw(device.pd, IBV_MW_TYPE_1) == nullptr && errno == EOPNOTSUPP);
  ibv_xrcd_init_attr xrcd{};
  CHECK(ibv_open_xrcd(device.context, &xrcd) == nullptr && errno == EOPNOTSUPP);
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

struct Case {
  const char* name;
  void (*run)();
  bool alone = true;  // needs nobody else
};
#define CASE(name) \
  { #name, name }
constexpr Case kCases[] = {
    CASE(extended_interfaces),
    CASE(extended_batches_are_posted_whole),
    CASE(extended_polls_take_what_they_looked_at),
    CASE(extended_polls_of_several_threads),
    CASE(channel_that_does_not_block),
    CASE(sleepers_are_woken),
    CASE(signals_interrupt_as_they_should),
    CASE(destroying_waits_for_acknowledgements),
    CASE(asynchronous_events),
    CASE(fork_leaves_the_parents_alone),
    CASE(forked_child_opens_the_device_itself),
    CASE(closing_takes_everything_along),
    CASE(answers_to_datagrams),
    CASE(memory_is_registered_anew),
    CASE(raw_frames_are_steered),
    CASE(what_is_missing_is_refused),
    {"port_states", port_states, false},
    {"receives_and_stays_away", receives_and_stays_away, false},
    {"sends_to_one_who_stays_away", sends_to_one_who_stays_away, false},
};

}  // namespace

int main(int argc, char** argv) {
  for (const Case& known : kCases) {
    if (argc < 2 && known.alone) std::printf("%s\n", known.name);
    for (int i = 1; i < argc; i++) {
      if (std::strcmp(argv[i], known.name) != 0) continue;
      known.run();
      std::printf("%s: ok\n", known.name);
    }
  }
  return 0;
}
