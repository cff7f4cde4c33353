// The extended interfaces: requests that are built call by call, completions that are looked at one by one.
#include <arpa/inet.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <thread>

#include "program.h"

namespace verbs_abi {
namespace {

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

// What is gathered from several places, and a write that tells the receiver of itself.
void extended_lists_and_writes_with_immediate() {
  Device device;
  ibv_cq* const cq = ibv_create_cq(device.context, 16, nullptr, nullptr, 0);
  ibv_qp_init_attr_ex init{};
  const ibv_qp_init_attr plain = rc_init(cq);
  std::memcpy(static_cast<void*>(&init), &plain, sizeof plain);
  init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  init.pd = device.pd;
  init.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
  ibv_qp* const qp = ibv_create_qp_ex(device.context, &init);
  CHECK(qp != nullptr);
  ibv_qp_ex* const ex = ibv_qp_to_qp_ex(qp);
  to_rts(device, qp, qp->qp_num);
  const std::uint64_t target = reinterpret_cast<std::uintptr_t>(device.memory) + 2048;
  const auto next = [&](std::uint64_t id) {
    const ibv_wc wc = completion(cq);
    CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == id);
    return wc;
  };

  post_receive(qp, 9, device.sge(1024, 256));
  char one[] = "from ", two[] = "three ", three[] = "places";
  const ibv_data_buf buffers[] = {{one, 5}, {two, 6}, {one, 0}, {three, 7}};
  ibv_wr_start(ex);
  ex->wr_id = 1;
  ex->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_send(ex);
  ibv_wr_set_inline_data_list(ex, 4, buffers);
  for (char* const each : {one, two, three}) each[0] = 'x';  // it has its own copy
  CHECK(ibv_wr_complete(ex) == 0);
  CHECK(next(9).byte_len == 18 && next(1).opcode == IBV_WC_SEND);
  CHECK(std::strcmp(device.memory + 1024, "from three places") == 0);

  post_receive(qp, 9, device.sge(1024, 256));
  std::strcpy(device.memory, "a write of its own");
  ibv_wr_start(ex);
  ex->wr_id = 2;
  ibv_wr_rdma_write_imm(ex, device.mr->rkey, target, htonl(0x01020304));
  const ibv_sge pieces[] = {device.sge(0, 8), device.sge(8, 11)};
  ibv_wr_set_sge_list(ex, 2, pieces);
  ex->wr_id = 3;  // a list of bytes behind it, in the same batch
  ibv_wr_rdma_write_imm(ex, device.mr->rkey, target + 64, htonl(5));
  char last[] = "last";
  const ibv_data_buf tail[] = {{last, 2}, {last + 2, 3}};
  ibv_wr_set_inline_data_list(ex, 2, tail);
  post_receive(qp, 10, device.sge(1024, 0));
  CHECK(ibv_wr_complete(ex) == 0);
  for (unsigned seen = 0; seen != (1U << 2 | 1U << 3 | 1U << 9 | 1U << 10);) {
    const ibv_wc wc = completion(cq);
    CHECK(wc.status == IBV_WC_SUCCESS && (seen & 1U << wc.wr_id) == 0);
    seen |= 1U << wc.wr_id;
    if (wc.wr_id < 9) {
      CHECK(wc.opcode == IBV_WC_RDMA_WRITE);
      continue;
    }
    CHECK(wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && (wc.wc_flags & IBV_WC_WITH_IMM) != 0);
    CHECK(wc.imm_data == htonl(wc.wr_id == 9 ? 0x01020304 : 5) && wc.byte_len == (wc.wr_id == 9 ? 19 : 5));
  }
  CHECK(std::strcmp(device.memory + 2048, "a write of its own") == 0);
  CHECK(std::strcmp(device.memory + 2048 + 64, "last") == 0);
  CHECK(std::strcmp(device.memory + 1024, "from three places") == 0);  // a write takes the request and not its room

  char much[65] = {};
  const ibv_data_buf too_much[] = {{much, 32}, {much, 33}};
  CHECK(init.cap.max_inline_data == 64);
  ibv_wr_start(ex);
  ibv_wr_send(ex);
  ibv_wr_set_inline_data_list(ex, 2, too_much);
  CHECK(ibv_wr_complete(ex) == EINVAL);
  CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
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

// From start to end the queue is one thread's: who looks at a completion is not shown another's.
void extended_poll_keeps_others_out() {
  Extended soft;
  soft.post_writes(0, 2);
  ibv_poll_cq_attr attr{};
  while (ibv_start_poll(soft.cq, &attr) == ENOENT) {
  }
  std::atomic<bool> begins{false}, is_in{false};
  std::uint64_t shown = 0;
  std::thread other([&] {
    ibv_poll_cq_attr none{};
    begins = true;
    while (ibv_start_poll(soft.cq, &none) == ENOENT) {
    }
    shown = soft.cq->wr_id;
    is_in = true;
    ibv_end_poll(soft.cq);
  });
  while (!begins) std::this_thread::yield();
  for (int i = 0; i < 20'000 && !is_in; i++) std::this_thread::yield();  // it has all the time to come in
  CHECK(!is_in && soft.cq->wr_id == 0);
  ibv_end_poll(soft.cq);
  other.join();
  CHECK(shown == 1);
}

constexpr Case kCases[] = {
    {"extended_interfaces", extended_interfaces},
    {"extended_lists_and_writes_with_immediate", extended_lists_and_writes_with_immediate},
    {"extended_batches_are_posted_whole", extended_batches_are_posted_whole},
    {"extended_polls_take_what_they_looked_at", extended_polls_take_what_they_looked_at},
    {"extended_polls_of_several_threads", extended_polls_of_several_threads},
    {"extended_poll_keeps_others_out", extended_poll_keeps_others_out},
};

}  // namespace

std::span<const Case> extended_cases() {
  return kCases;
}

}  // namespace verbs_abi
