// The objects that verbs programs hold: libibverbs' own structures, followed by our fields. Programs and the inline
// functions of verbs.h access the structures directly, so their layout is the public header's.
//
// Our fields change only with the adapter's lock held. Objects know their context; objects that a program has not
// destroyed are destroyed when it closes the context.
#pragma once

#include <infiniband/verbs.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <boost/intrusive/list.hpp>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "softverbs/abi/adapter/adapter.h"
#include "softverbs/abi/adapter/event_queue.h"
#include "softverbs/engine/device.h"

namespace bypass::softverbs {

struct Context;

/// A member of a context's list of objects of one kind.
using Member = boost::intrusive::list_base_hook<boost::intrusive::link_mode<boost::intrusive::auto_unlink>>;
template <typename T>
using Members = boost::intrusive::list<T, boost::intrusive::constant_time_size<false>>;

struct ProtectionDomain : ibv_pd, Member {
  rdma::Pd* engine = nullptr;
  static ProtectionDomain& of(ibv_pd* pd) { return *static_cast<ProtectionDomain*>(pd); }
};

struct MemoryRegion : ibv_mr, Member {
  rdma::Mr* engine = nullptr;
  unsigned access = 0;
  static MemoryRegion& of(ibv_mr* mr) { return *static_cast<MemoryRegion*>(mr); }
};

struct MemoryWindow : ibv_mw, Member {
  rdma::Mr* engine = nullptr;
  static MemoryWindow& of(ibv_mw* mw) { return *static_cast<MemoryWindow*>(mw); }
};

struct AddressHandle : ibv_ah, Member {
  rdma::Ah* engine = nullptr;
  static const AddressHandle& of(const ibv_ah* ah) { return *static_cast<const AddressHandle*>(ah); }
  static AddressHandle& of(ibv_ah* ah) { return *static_cast<AddressHandle*>(ah); }
};

struct SteeringRule : ibv_flow, Member {
  rdma::Flow* engine = nullptr;
  static SteeringRule& of(ibv_flow* flow) { return *static_cast<SteeringRule*>(flow); }
};

struct CompletionQueue;

struct CompletionChannel : ibv_comp_channel, Member {
  EventQueue<CompletionQueue*> events;
  static CompletionChannel& of(ibv_comp_channel* channel) { return *static_cast<CompletionChannel*>(channel); }
};

/// `ibv_cq` is the beginning of `ibv_cq_ex`: one object is both.
struct CompletionQueue : ibv_cq_ex, Member {
  rdma::Cq* engine = nullptr;
  std::uint32_t comp_events_taken = 0;   // taken by ibv_get_cq_event; destroying waits until they are acknowledged
  std::uint32_t async_events_taken = 0;  // taken by ibv_get_async_event
  std::uint64_t looks_seen = 0;          // Adapter's number of the last known look
  // From ibv_start_poll to ibv_end_poll only one thread uses these: the oldest completions, and which of them is being
  // looked at. They stay in the queue until then.
  pthread_mutex_t polling = PTHREAD_MUTEX_INITIALIZER;
  std::array<rdma::Completion, 16> oldest;
  std::size_t oldest_count = 0, place = 0;
  [[nodiscard]] bool is_extended() const { return start_poll != nullptr; }
  static CompletionQueue& of(ibv_cq* cq) { return *static_cast<CompletionQueue*>(reinterpret_cast<ibv_cq_ex*>(cq)); }
  static CompletionQueue& of(ibv_cq_ex* cq) { return *static_cast<CompletionQueue*>(cq); }
  [[nodiscard]] ibv_cq* base() { return ibv_cq_ex_to_cq(this); }
  void notify();
  void report(ibv_event_type type);
};

/// One opening of an XRC domain.
struct XrcDomain : ibv_xrcd, Member {
  rdma::Xrcd* engine = nullptr;
  std::uint32_t users = 0;  // queue pairs and receive queues made or opened with it
  static XrcDomain& of(ibv_xrcd* xrcd) { return *static_cast<XrcDomain*>(xrcd); }
};

struct SharedReceiveQueue : ibv_srq, Member {
  rdma::Srq* engine = nullptr;
  XrcDomain* xrcd = nullptr;
  std::uint32_t async_events_taken = 0;
  static SharedReceiveQueue& of(ibv_srq* srq) { return *static_cast<SharedReceiveQueue*>(srq); }
  void report(ibv_event_type type);
};

/// The requests that ibv_wr_* functions build between ibv_wr_start and ibv_wr_complete.
struct RequestBatch {
  struct Request {
    rdma::SendRequest request;
    std::size_t first_sge = 0, sges = 0;
    bool in_batch = false;                       // its bytes are in `inlined`, and its element says where
    std::size_t header_at = 0, header_size = 0;  // place of a large segment's header there
  };
  std::vector<Request> requests;
  std::vector<ibv_sge> sges;
  std::vector<std::byte> inlined;
  int error = 0;  // error of the first request that is not possible
  /// Makes room for the usual case; more is made once, when it is needed.
  void reserve(const ibv_qp_cap& cap) {
    const std::size_t usual = std::min(cap.max_send_wr, 64U);
    requests.reserve(usual);
    sges.reserve(usual);
    inlined.reserve(usual * cap.max_inline_data);
  }
  void clear() {
    requests.clear();
    sges.clear();
    inlined.clear();
    error = 0;
  }
};

/// `ibv_qp` is the beginning of `ibv_qp_ex`.
struct QueuePair : ibv_qp_ex, Member {
  rdma::Qp* engine = nullptr;
  // An XRC_RECV queue pair that was opened several times (ibv_open_qp): the openings are a ring, and each has the
  // events.
  QueuePair* next_opening = this;
  XrcDomain* xrcd = nullptr;
  std::uint32_t async_events_taken = 0;
  bool extended = false;  // whether ibv_qp_to_qp_ex returns it
  RequestBatch batch;
  pthread_mutex_t batch_mutex = PTHREAD_MUTEX_INITIALIZER;  // held from ibv_wr_start to ibv_wr_complete or _abort
  static QueuePair& of(ibv_qp* qp) { return *static_cast<QueuePair*>(reinterpret_cast<ibv_qp_ex*>(qp)); }
  static QueuePair& of(ibv_qp_ex* qp) { return *static_cast<QueuePair*>(qp); }
  void report(ibv_event_type type);
};

struct AsyncEvent {
  ibv_async_event event{};
  std::uint32_t* taken = nullptr;  // counter of the object that the event is about
};

/// What ibv_open_device returns.
struct Context : verbs_context {
  Adapter* adapter = nullptr;
  EventQueue<AsyncEvent> async;
  Members<ProtectionDomain> pds;
  Members<MemoryRegion> mrs;
  Members<MemoryWindow> mws;
  Members<AddressHandle> ahs;
  Members<SteeringRule> flows;
  Members<CompletionChannel> channels;
  Members<CompletionQueue> cqs;
  Members<SharedReceiveQueue> srqs;
  Members<XrcDomain> xrcds;
  Members<QueuePair> qps;

  /// Removes the events of an object that is being destroyed which nobody has taken; `taken` is its counter. Within a
  /// turn.
  void forget_events(const std::uint32_t& taken);
  /// Waits until the program has acknowledged all the events that it has taken. Called without the lock.
  void await_acknowledged(pthread_mutex_t& mutex, pthread_cond_t& cond, const std::uint32_t& completed,
                          const std::uint32_t& taken) const;

  /// Our context; null: it is the real library's.
  static Context* find(ibv_context* context);
  /// The same for a context that is known to be ours.
  static Context& of(ibv_context* context);
};

/// Converts a receive request of verbs to the engine's form.
inline rdma::ReceiveRequest as_request(const ibv_recv_wr& wr) {
  return {wr.wr_id, {wr.sg_list, static_cast<std::size_t>(wr.num_sge)}};
}

/// Whether the device is one of ours.
bool is_soft(const ibv_device* device);

/// For functions that return a pointer: returns null and sets errno.
template <typename T>
T* refuse(int error) {
  errno = error;
  return nullptr;
}

}  // namespace bypass::softverbs
