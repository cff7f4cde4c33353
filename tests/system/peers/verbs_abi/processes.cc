// Forks, a device's end, and programs of two processes.
#include <arpa/inet.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "program.h"

namespace verbs_abi {
namespace {

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

void fork_leaves_the_parents_events() {
  Device device;
  ibv_comp_channel* const channel = ibv_create_comp_channel(device.context);
  ibv_cq* const cq = ibv_create_cq(device.context, 16, nullptr, channel, 0);
  ibv_cq* told = nullptr;
  void* context = nullptr;
  {
    Pair pair(device, cq);
    CHECK(ibv_req_notify_cq(cq, 0) == 0);
    exchange(device, pair, cq);
    const pid_t child = fork();
    if (child == 0) {
      CHECK(ibv_get_cq_event(channel, &told, &context) == -1 && errno == EIO);
      CHECK(ibv_destroy_qp(pair.a) == 0 && ibv_destroy_qp(pair.b) == 0 && ibv_destroy_cq(cq) == 0);
      _exit(0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(readable(channel->fd) && ibv_get_cq_event(channel, &told, &context) == 0 && told == cq);
    ibv_ack_cq_events(cq, 1);
  }
  CHECK(ibv_destroy_cq(cq) == 0 && ibv_destroy_comp_channel(channel) == 0);
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

/// The environment's address of that name, as a GID.
ibv_gid gid_in(const char* variable) {
  CHECK(std::getenv(variable) != nullptr);
  ibv_gid gid{};
  gid.raw[10] = gid.raw[11] = 0xff;
  CHECK(inet_pton(AF_INET, std::getenv(variable), gid.raw + 12) == 1);
  return gid;
}

void say(const char* text) {
  std::puts(text);
  std::fflush(stdout);
}

/// The first queue pair of two processes, connected to each other, with a receive request: PEER is the other's IPv4
/// address.
struct Remote {
  Device device;
  ibv_cq* cq = ibv_create_cq(device.context, 16, nullptr, nullptr, 0);
  ibv_qp* qp;
  explicit Remote(std::uint8_t timeout) {
    CHECK(cq != nullptr);
    ibv_qp_init_attr init = rc_init(cq);
    qp = ibv_create_qp(device.pd, &init);
    CHECK(qp != nullptr);
    say("waiting");
    to_rts(qp, gid_in("PEER"), qp->qp_num, timeout);
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

// The PLACE-th queue pair of the device takes whatever the one of the same number of PEER's sends.
void receives_for_ever() {
  const Device device;
  ibv_cq* const cq = ibv_create_cq(device.context, 16, nullptr, nullptr, 0);
  ibv_qp* qp = nullptr;
  CHECK(std::getenv("PLACE") != nullptr);
  for (int place = std::atoi(std::getenv("PLACE")); place >= 0; place--) {
    ibv_qp_init_attr init = rc_init(cq);
    qp = ibv_create_qp(device.pd, &init);
    CHECK(qp != nullptr);
  }
  say("waiting");
  to_rts(qp, gid_in("PEER"), qp->qp_num, kHalfASecond);
  for (int i = 0; i < 8; i++) post_receive(qp, 7, device.sge(0, 64));
  for (;;) {
    CHECK(completion(cq).status == IBV_WC_SUCCESS);
    post_receive(qp, 7, device.sge(0, 64));
  }
}

// Sends to PEER, which dies when both have answered for a while, and to OTHER, which does not.
void sends_to_two() {
  const Device device;
  ibv_cq* const cq = ibv_create_cq(device.context, 16, nullptr, nullptr, 0);
  ibv_qp* qps[2];
  for (ibv_qp*& qp : qps) {
    ibv_qp_init_attr init = rc_init(cq);
    qp = ibv_create_qp(device.pd, &init);
    CHECK(qp != nullptr);
  }
  to_rts(qps[0], gid_in("PEER"), qps[0]->qp_num, kHalfASecond);
  to_rts(qps[1], gid_in("OTHER"), qps[1]->qp_num, kHalfASecond);
  unsigned answers[2] = {}, since_then = 0;
  for (const std::uint64_t to : {0, 1}) CHECK(post_send(qps[to], to, device.sge(0, 64)) == 0);
  bool both = false, dead = false;
  while (since_then < 1000) {
    const ibv_wc wc = completion(cq);
    if (wc.status != IBV_WC_SUCCESS) {
      CHECK(both && !dead && wc.wr_id == 0 && wc.status == IBV_WC_RETRY_EXC_ERR);
      dead = true;
      continue;
    }
    answers[wc.wr_id]++;
    if (dead) since_then++;
    if (!both && answers[0] >= 100 && answers[1] >= 100) {
      both = true;
      say("both answer");
    }
    CHECK(post_send(qps[wc.wr_id], wc.wr_id, device.sge(0, 64)) == 0);
  }
  ibv_qp_attr attr{};
  ibv_qp_init_attr init{};
  for (const int which : {0, 1}) {
    CHECK(ibv_query_qp(qps[which], &attr, IBV_QP_STATE, &init) == 0);
    CHECK(attr.qp_state == (which == 0 ? IBV_QPS_ERR : IBV_QPS_RTS));
    CHECK(ibv_destroy_qp(qps[which]) == 0);
  }
  CHECK(ibv_destroy_cq(cq) == 0);
  say("one answers");
}

// In the call that waits for a completion, which never comes.
void sleeps_for_ever() {
  Device device;
  ibv_comp_channel* const channel = ibv_create_comp_channel(device.context);
  ibv_cq* const cq = ibv_create_cq(device.context, 16, nullptr, channel, 0);
  Pair pair(device, cq);
  exchange(device, pair, cq);
  CHECK(ibv_req_notify_cq(cq, 0) == 0);
  say("sleeps");
  ibv_cq* told = nullptr;
  void* context = nullptr;
  CHECK(ibv_get_cq_event(channel, &told, &context) == 0);
  CHECK(!"an event of which nobody knows");
}

// GCC 12's AddressSanitizer does not release its allocator's locks in a forked child: one that another thread held at
// the fork is never released there, and the child waits for ever when it allocates.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kForks = false;
#else
constexpr bool kForks = true;
#endif

constexpr Case kCases[] = {
    {"fork_leaves_the_parents_alone", fork_leaves_the_parents_alone, kForks},
    {"fork_leaves_the_parents_events", fork_leaves_the_parents_events, kForks},
    {"forked_child_opens_the_device_itself", forked_child_opens_the_device_itself, kForks},
    {"closing_takes_everything_along", closing_takes_everything_along},
    {"receives_and_stays_away", receives_and_stays_away, false},
    {"sends_to_one_who_stays_away", sends_to_one_who_stays_away, false},
    {"receives_for_ever", receives_for_ever, false},
    {"sends_to_two", sends_to_two, false},
    {"sleeps_for_ever", sleeps_for_ever, false},
};

}  // namespace

std::span<const Case> process_cases() {
  return kCases;
}

}  // namespace verbs_abi
