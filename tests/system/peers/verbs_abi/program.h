// What the cases of verbs_abi have in common: a device, queue pairs that talk to each other, messages.
#pragma once

#include <infiniband/verbs.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>

namespace verbs_abi {

#define CHECK(condition)                                                    \
  do {                                                                      \
    if (!(condition)) {                                                     \
      std::printf("line %d: %s (errno %d)\n", __LINE__, #condition, errno); \
      std::exit(1);                                                         \
    }                                                                       \
  } while (0)

inline constexpr int kGid = 1;
inline constexpr int kPolling = 2, kLinkUp = 5;  // a port's physical state
inline constexpr unsigned kAllRights =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

struct Case {
  const char* name;
  void (*run)();
  bool alone = true;  // needs nobody else
};
std::span<const Case> extended_cases();
std::span<const Case> event_cases();
std::span<const Case> process_cases();
std::span<const Case> object_cases();
std::span<const Case> raw_cases();
std::span<const Case> real_cases();

ibv_context* open_device(int number = 0);

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

ibv_qp_init_attr rc_init(ibv_cq* cq, ibv_srq* srq = nullptr);

void to_rtr(ibv_qp* qp, const ibv_gid& peer_gid, std::uint32_t peer);
void to_rts(ibv_qp* qp, const ibv_gid& peer_gid, std::uint32_t peer, std::uint8_t timeout);
/// To another of the same device.
void to_rts(const Device& device, ibv_qp* qp, std::uint32_t peer);

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

void post_receive(ibv_qp* qp, std::uint64_t id, ibv_sge sge);
int post_send(ibv_qp* qp, std::uint64_t id, ibv_sge sge, unsigned flags = IBV_SEND_SIGNALED);
/// An RDMA write that has ended, and how.
ibv_wc_status write_to(ibv_qp* qp, ibv_sge from, const void* to, std::uint32_t rkey);
/// The next one, polled for.
ibv_wc completion(ibv_cq* cq);
/// A message from `pair.a` to `pair.b`: two completions.
void exchange(const Device& device, Pair& pair, ibv_cq* cq);

bool readable(int fd);
/// How many the process has open.
long descriptors();

}  // namespace verbs_abi
