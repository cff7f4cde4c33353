// Device: a software RDMA device. RoCE v2 (IB transport over UDP 4791) with queue pairs RC, UC, UD and RAW_PACKET on
// any wire that is a Port.
//
// Pure: it makes no system call, reads no clock, starts no thread and takes no lock. Its caller is its only
// thread; the time is an argument. Registered memory is memory of this process, and the engine copies between it and
// frames. Every access of a peer is checked against keys, rights and bounds before a byte moves.
//
// Errors of calls are errno values, 0 is success, as the verbs they serve return them. Objects are made with a `user`
// pointer, which events name them by, and live until their destroy call; one that others still rest on answers EBUSY.
//
// A turn: poll(now), or receive from the port oneself, on_frames(), run(). Posting only queues: run() sends. After any
// call look for events (take_completion_event, take_async_event); come back at next_timeout(), and soon while
// output_pending(). Spurious calls are harmless.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "softverbs/engine/config.h"
#include "softverbs/engine/counters.h"
#include "softverbs/engine/qp/requests.h"
#include "stack/frame/port.h"
#include "stack/time.h"

namespace bypass::rdma {

struct Pd;
struct Mr;
struct Cq;
struct Srq;
struct Qp;
struct Ah;
struct Flow;
struct Engine;

/// What becomes of acknowledgements that a call's frames have made due, and that say nothing but that all is well.
/// kLeave: the next poll() sends them, so that they are not in front of what the program answers; a peer waits for them
/// as long as for that call.
enum class Acks : std::uint8_t { kSend, kLeave };

enum class Resolution : std::uint8_t { kKnown, kAsked, kUnreachable };

/// A new object, or why there is none.
template <typename T>
struct [[nodiscard]] Made {
  T* object = nullptr;
  int error = 0;
};

struct QpInit {
  Pd* pd = nullptr;
  Cq* send_cq = nullptr;
  Cq* receive_cq = nullptr;
  Srq* srq = nullptr;
  ibv_qp_type type = IBV_QPT_RC;
  ibv_qp_cap cap{};  // create_qp answers what it gives through query_qp
  bool sq_sig_all = false;
  void* user = nullptr;
};

struct AsyncEvent {
  ibv_event_type type{};
  void* user = nullptr;  // of the queue pair, CQ or SRQ; null: the port's or the device's
};

class Device {
 public:
  /// The port stays the caller's and outlives the device; the device is its queue's only user.
  static std::unique_ptr<Device> create(const DeviceConfig& config, Port& port, std::uint16_t queue = 0);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // --- The wire

  /// Takes over a burst that has arrived. Answers are queued for run().
  void on_frames(std::span<Packet* const> frames, Instant now);
  /// Due timers, then what there is to send, in one batch or several; ends when nothing is due, the wire is full or
  /// others should have their turn (output_pending()).
  void run(Instant now, Acks acks = Acks::kSend);
  /// Receives what has arrived, sends what is due, and so on while there is more (at most four times 32 frames).
  /// Returns the frames received, those that had waited among them.
  std::size_t poll(Instant now, Acks acks = Acks::kSend);
  /// When run() has work again by itself; kNever without. Not before the time of the last call.
  [[nodiscard]] Instant next_timeout() const;
  /// More could be sent now: call run() or poll() again soon.
  [[nodiscard]] bool output_pending() const;
  /// … and it is the wire's turn: nothing can be until it has room, which nobody tells of.
  [[nodiscard]] bool waits_for_room() const;
  /// Frames wait for receive requests of a raw-packet queue pair: poll() takes nothing from the wire before they have
  /// some, or until next_timeout() at the latest.
  [[nodiscard]] bool holds_wire() const;
  /// Asks for the MAC that packets to the address need (its own, or the gateway's) unless it is known. Call again until
  /// the answer is another one than kAsked: in poll()'s time. kUnreachable: nobody answered three questions.
  Resolution resolve(const ibv_gid& gid, Instant now);
  /// The MAC that packets to the address go to; false: not known (yet).
  bool neighbour(const ibv_gid& gid, MacAddress& mac) const;
  /// The MAC of an address, known from elsewhere (the kernel's table); never asked for from then on.
  void set_neighbour(const IpAddress& address, const MacAddress& mac);

  /// Asks every neighbour that RoCE packets have gone to since it was last asked, once, at its own MAC, and returns how
  /// many have not answered yet: call again after poll(). A wire keeps the order, so that an answer says that what was
  /// sent before it has been taken, which matters to a process that takes its end of the wire along when it ends.
  std::size_t farewell(Instant now);

  // --- The device and its port, as ibv_query_device, _port, _gid tell them

  [[nodiscard]] const Limits& limits() const;
  [[nodiscard]] const Counters& counters() const;
  [[nodiscard]] MacAddress mac() const;
  [[nodiscard]] LinkState link() const;
  [[nodiscard]] ibv_mtu max_mtu() const;     // 4096
  [[nodiscard]] ibv_mtu active_mtu() const;  // what the wire's MTU has room for, headers of 84 bytes beside it
  /// Bytes of the largest IP packet that the wire takes.
  [[nodiscard]] std::uint32_t wire_mtu() const;
  [[nodiscard]] std::span<const ibv_gid> gids() const;
  [[nodiscard]] std::uint32_t qp_count() const;
  /// The most payload bytes that an IBV_WR_TSO request may have; 0: the wire cuts nothing.
  [[nodiscard]] std::uint32_t max_tso() const;

  // --- Protection domains and memory

  Made<Pd> alloc_pd();
  int dealloc_pd(Pd& pd);
  /// `iova` is what keys address the first byte by (the address itself for ibv_reg_mr). EINVAL: remote write or atomic
  /// without local write, rights that the device lacks (windows, zero-based, on demand).
  Made<Mr> reg_mr(Pd& pd, void* addr, std::size_t length, std::uint64_t iova, unsigned access);
  /// ibv_rereg_mr: `flags` of ibv_rereg_mr_flags say which arguments count. The keys change.
  int rereg_mr(Mr& mr, unsigned flags, Pd* pd, void* addr, std::size_t length, unsigned access);
  int dereg_mr(Mr& mr);
  [[nodiscard]] static std::uint32_t lkey(const Mr& mr);
  [[nodiscard]] static std::uint32_t rkey(const Mr& mr);

  // --- Completion queues

  Made<Cq> create_cq(std::uint32_t cqe, void* user);
  /// EINVAL when more completions wait than would fit.
  int resize_cq(Cq& cq, std::uint32_t cqe);
  int destroy_cq(Cq& cq);
  [[nodiscard]] static std::uint32_t cqe(const Cq& cq);
  /// It has been given more than it holds: IBV_EVENT_CQ_ERR, and what came then is lost.
  [[nodiscard]] static bool overrun(const Cq& cq);
  std::size_t poll_cq(Cq& cq, std::span<ibv_wc> out);
  /// Copies of the oldest completions, which stay until they are taken off: so many of them.
  std::size_t peek(Cq& cq, std::span<Completion> out);
  void pop(Cq& cq, std::size_t count);
  /// One take_completion_event for the next completion that comes (a solicited or failed one only). What waits already
  /// counts for nothing: poll once more after arming.
  int request_notify(Cq& cq, bool solicited_only);
  /// For some queue it was asked, and nothing has come since.
  [[nodiscard]] bool owes_notification() const;

  // --- Shared receive queues

  Made<Srq> create_srq(Pd& pd, const ibv_srq_attr& attr, void* user);
  int modify_srq(Srq& srq, const ibv_srq_attr& attr, unsigned mask);
  [[nodiscard]] static ibv_srq_attr query_srq(const Srq& srq);
  int destroy_srq(Srq& srq);
  /// ENOMEM: full. EINVAL: too many elements.
  int post_srq_receive(Srq& srq, const ReceiveRequest& request);

  // --- Queue pairs

  /// EADDRINUSE: another process has the port of RoCE packets at the addresses (port_steering.h).
  Made<Qp> create_qp(const QpInit& init);
  /// As the kernel's ib_modify_qp_is_ok has it; the attributes' values are checked before any of them counts.
  int modify_qp(Qp& qp, const ibv_qp_attr& attr, unsigned mask);
  /// Everything, whatever was asked for; `init` gets the capabilities, type and signalling (no pointers).
  static void query_qp(const Qp& qp, ibv_qp_attr& attr, ibv_qp_init_attr& init);
  int destroy_qp(Qp& qp);
  [[nodiscard]] static std::uint32_t qpn(const Qp& qp);
  [[nodiscard]] static ibv_qp_state state(const Qp& qp);
  /// ENOMEM: full. EINVAL: the state, the operation, the number of elements or the length. Nothing of it is posted
  /// then.
  int post_send(Qp& qp, const SendRequest& request);
  int post_receive(Qp& qp, const ReceiveRequest& request);
  /// What post_send would answer where there is room.
  [[nodiscard]] int check_send(const Qp& qp, const SendRequest& request) const;
  /// Send requests that there is room for.
  [[nodiscard]] static std::uint32_t send_room(const Qp& qp);

  // --- Addresses of datagrams, groups, steering

  Made<Ah> create_ah(Pd& pd, const ibv_ah_attr& attr);
  int destroy_ah(Ah& ah);
  int attach_multicast(Qp& qp, const ibv_gid& gid);
  int detach_multicast(Qp& qp, const ibv_gid& gid);
  /// Out of all of them: a queue pair that is in one cannot be destroyed.
  void leave_groups(Qp& qp);
  /// Raw-packet queue pairs only. Rules outlive nothing: destroy_qp with rules answers EBUSY. On a port that steers
  /// (port_steering.h): EOPNOTSUPP, it cannot steer that; EADDRINUSE, it is steered to another process.
  Made<Flow> create_flow(Qp& qp, const FlowRule& rule);
  int destroy_flow(Flow& flow);

  // --- Events: empty these after each call that may have made some (all but the queries)

  [[nodiscard]] bool has_events() const;
  /// The user pointer of a CQ whose notification is due; false: none.
  bool take_completion_event(void*& user);
  bool take_async_event(AsyncEvent& event);

 private:
  explicit Device(std::unique_ptr<Engine> engine);
  std::unique_ptr<Engine> engine_;
};

}  // namespace bypass::rdma
