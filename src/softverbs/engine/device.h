// Device: a software RDMA device. RoCE v2 (IB transport over UDP 4791) with queue pairs RC, UC, UD and RAW_PACKET on
// any wire that is a Port.
//
// Pure: it makes no system call, reads no clock, starts no thread and takes no lock. Only one thread may use it at a
// time; the time is an argument. Registered memory is memory of this process, and the engine copies between it and
// frames. Every access of a peer is checked against keys, rights and bounds before a byte moves.
//
// Errors of calls are errno values and 0 is success, as the verbs return them. Objects are made with a `user` pointer,
// by which events name them, and live until their destroy call. If others still use an object, its destroy call returns
// EBUSY.
//
// A turn is poll(now); or receive from the port yourself, on_frames(), run(). Posting only queues: run() sends. After
// any call check for events (take_completion_event, take_async_event). Call again at next_timeout(), and soon while
// output_pending(). Spurious calls do no harm.
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
struct Xrcd;
struct Qp;
struct Ah;
struct Flow;
struct Engine;

/// When acknowledgements are sent that are due by a call's frames and only report success. kLeave: the next poll()
/// sends them, so that they do not delay the program's answer. A peer then waits for them until that call.
enum class Acks : std::uint8_t { kSend, kLeave };

enum class Resolution : std::uint8_t { kKnown, kAsked, kUnreachable };

/// A new object, or why it could not be made.
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
  Xrcd* xrcd = nullptr;  // XRC_RECV, which uses nothing else of these
  ibv_qp_type type = IBV_QPT_RC;
  ibv_qp_cap cap{};  // create_qp() reports what it gives through query_qp()
  bool sq_sig_all = false;
  /// Queue pair 1, for management datagrams (InfiniBand specification, 13.3). UD only; EBUSY if there is one.
  bool management = false;
  void* user = nullptr;
};

struct AsyncEvent {
  ibv_event_type type{};
  void* user = nullptr;  // the queue pair's, CQ's or SRQ's; null: the event is the port's or the device's
};

class Device {
 public:
  /// The port stays the caller's and must outlive the device. Only the device uses that queue of the port.
  static std::unique_ptr<Device> create(const DeviceConfig& config, Port& port, std::uint16_t queue = 0);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // --- The wire

  /// Takes over a burst that has arrived. Answers are queued for run().
  void on_frames(std::span<Packet* const> frames, Instant now);
  /// Runs due timers, then sends what there is, in one batch or several. Ends when nothing is due, the wire is full, or
  /// others should have their turn (output_pending()).
  void run(Instant now, Acks acks = Acks::kSend);
  /// Receives what has arrived and sends what is due, repeatedly while there is more (at most four times 32 frames).
  /// Returns the number of frames received, including those that had waited.
  std::size_t poll(Instant now, Acks acks = Acks::kSend);
  /// When run() has work again by itself; kNever: it has none. Not before the time of the last call.
  [[nodiscard]] Instant next_timeout() const;
  /// True if more could be sent now: call run() or poll() again soon.
  [[nodiscard]] bool output_pending() const;
  /// True if output only waits for room on the wire, of which there is no notification.
  [[nodiscard]] bool waits_for_room() const;
  /// Frames wait for receive requests of a raw-packet queue pair: until these are posted, or until next_timeout() at
  /// the latest, poll() takes nothing from the wire.
  [[nodiscard]] bool holds_wire() const;
  /// Asks for the MAC that packets to the address need (its own, or the gateway's), unless it is known. Call again
  /// until the answer is not kAsked; poll() brings the answer. kUnreachable: three requests were not answered.
  Resolution resolve(const ibv_gid& gid, Instant now);
  /// The MAC to which packets to the address go; false: not known (yet).
  bool neighbour(const ibv_gid& gid, MacAddress& mac) const;
  /// Sets the MAC of an address that is known from elsewhere (the kernel's table). It is never asked for afterwards.
  void set_neighbour(const IpAddress& address, const MacAddress& mac);

  /// Asks every neighbour to which RoCE packets have gone since the last such request, once, at its own MAC. Returns
  /// how many have not answered yet: call again after poll(). A wire keeps the order, so an answer shows that earlier
  /// frames were taken. This matters to a process whose end of the wire disappears with it.
  std::size_t farewell(Instant now);
  /// The program ends, and may have freed memory that is still registered: packets write to it and read from it no
  /// more. Acknowledgements and neighbours are heard as before.
  void let_go_of_memory();

  // --- The device and its port, as ibv_query_device, _port, _gid tell them

  [[nodiscard]] const Limits& limits() const;
  [[nodiscard]] const Counters& counters() const;
  [[nodiscard]] MacAddress mac() const;
  [[nodiscard]] LinkState link() const;
  [[nodiscard]] ibv_mtu max_mtu() const;     // 4096
  [[nodiscard]] ibv_mtu active_mtu() const;  // what fits into the wire's MTU beside headers of 88 bytes
  /// Bytes of the largest IP packet that the wire takes.
  [[nodiscard]] std::uint32_t wire_mtu() const;
  [[nodiscard]] std::span<const ibv_gid> gids() const;
  [[nodiscard]] std::uint32_t qp_count() const;
  /// The most payload bytes of an IBV_WR_TSO request; 0: the wire does not cut frames.
  [[nodiscard]] std::uint32_t max_tso() const;

  // --- Protection domains and memory

  Made<Pd> alloc_pd();
  int dealloc_pd(Pd& pd);
  /// `iova`: the address by which keys name the first byte (the address itself for ibv_reg_mr). EINVAL: remote write or
  /// atomic without local write, or rights that the device does not have (zero-based, on demand).
  Made<Mr> reg_mr(Pd& pd, void* addr, std::size_t length, std::uint64_t iova, unsigned access);
  /// ibv_rereg_mr: `flags` (ibv_rereg_mr_flags) say which arguments are used. The keys change with the range. EINVAL,
  /// as for dereg_mr(): windows are bound to the region.
  int rereg_mr(Mr& mr, unsigned flags, Pd* pd, void* addr, std::size_t length, unsigned access);
  int dereg_mr(Mr& mr);
  [[nodiscard]] static std::uint32_t lkey(const Mr& mr);
  [[nodiscard]] static std::uint32_t rkey(const Mr& mr);

  /// A memory window, whose key is rkey(). It is bound by a request (IBV_WR_BIND_MW).
  Made<Mr> alloc_mw(Pd& pd, ibv_mw_type type);
  void dealloc_mw(Mr& window);

  // --- Completion queues

  Made<Cq> create_cq(std::uint32_t cqe, void* user);
  /// EINVAL if more completions wait than would fit.
  int resize_cq(Cq& cq, std::uint32_t cqe);
  int destroy_cq(Cq& cq);
  [[nodiscard]] static std::uint32_t cqe(const Cq& cq);
  /// True if it was given more than it holds: IBV_EVENT_CQ_ERR, and the completions that came then are lost.
  [[nodiscard]] static bool overrun(const Cq& cq);
  std::size_t poll_cq(Cq& cq, std::span<ibv_wc> out);
  /// Copies the oldest completions, which stay in the queue until they are taken off. Returns how many.
  std::size_t peek(Cq& cq, std::span<Completion> out);
  void pop(Cq& cq, std::size_t count);
  /// Requests one take_completion_event() for the next completion that comes (or only for a solicited or failed one).
  /// Completions that wait already do not count: poll once more after arming.
  int request_notify(Cq& cq, bool solicited_only);
  /// True if this was requested for some queue, and nothing has come since.
  [[nodiscard]] bool owes_notification() const;

  // --- Shared receive queues

  Made<Srq> create_srq(Pd& pd, const ibv_srq_attr& attr, void* user);
  int modify_srq(Srq& srq, const ibv_srq_attr& attr, unsigned mask);
  [[nodiscard]] static ibv_srq_attr query_srq(const Srq& srq);
  int destroy_srq(Srq& srq);
  /// ENOMEM: full. EINVAL: too many elements.
  int post_srq_receive(Srq& srq, const ReceiveRequest& request);

  // --- XRC: domains, and receive queues that peers name by a number (xrc.cc)

  /// `file`: others that open it by the same file get the same domain; null: this one is private. EAGAIN: there is no
  /// such domain, and it was not to be made. EINVAL: there is one, and it must not be.
  Made<Xrcd> open_xrcd(const XrcFile* file, bool create, bool exclusive);
  /// EBUSY: the last opening, and objects use the domain.
  int close_xrcd(Xrcd& xrcd);
  /// Receive requests of the queue complete in `cq`.
  Made<Srq> create_xrc_srq(Pd& pd, Xrcd& xrcd, Cq& cq, const ibv_srq_attr& attr, void* user);
  /// 0: not an XRC receive queue.
  [[nodiscard]] static std::uint32_t srq_number(const Srq& srq);
  /// One more opening of an XRC_RECV queue pair of that domain, which ends when each was destroyed. EINVAL: there is no
  /// such queue pair.
  Made<Qp> open_qp(const Xrcd& xrcd, std::uint32_t qpn);

  // --- Queue pairs

  /// EADDRINUSE: another process has the port of RoCE packets at the addresses (port_steering.h).
  Made<Qp> create_qp(const QpInit& init);
  /// The transitions are those of the kernel's ib_modify_qp_is_ok. All values are checked before any of them is set.
  int modify_qp(Qp& qp, const ibv_qp_attr& attr, unsigned mask);
  /// Returns everything, whatever was asked for. `init` gets capabilities, type and signalling (no pointers).
  static void query_qp(const Qp& qp, ibv_qp_attr& attr, ibv_qp_init_attr& init);
  int destroy_qp(Qp& qp);
  [[nodiscard]] static std::uint32_t qpn(const Qp& qp);
  /// Events name this pointer from now on.
  static void set_user(Qp& qp, void* user);
  [[nodiscard]] static void* user(const Qp& qp);
  [[nodiscard]] static ibv_qp_state state(const Qp& qp);
  /// ENOMEM: the queue is full. EINVAL: the state, the operation, the number of elements or the length is wrong. Then
  /// nothing is posted.
  int post_send(Qp& qp, const SendRequest& request);
  int post_receive(Qp& qp, const ReceiveRequest& request);
  /// What post_send() would return if there were room.
  [[nodiscard]] int check_send(const Qp& qp, const SendRequest& request) const;
  /// For how many send requests there is room.
  [[nodiscard]] static std::uint32_t send_room(const Qp& qp);

  // --- Addresses of datagrams, groups, steering

  Made<Ah> create_ah(Pd& pd, const ibv_ah_attr& attr);
  int destroy_ah(Ah& ah);
  int attach_multicast(Qp& qp, const ibv_gid& gid);
  int detach_multicast(Qp& qp, const ibv_gid& gid);
  /// Leaves all groups: a queue pair in a group cannot be destroyed.
  void leave_groups(Qp& qp);
  /// Raw-packet queue pairs only. destroy_qp() with rules returns EBUSY. On a port that steers (port_steering.h):
  /// EOPNOTSUPP, the port cannot steer this; EADDRINUSE, it is steered to another process.
  Made<Flow> create_flow(Qp& qp, const FlowRule& rule);
  int destroy_flow(Flow& flow);

  // --- Events: empty these after each call that may have made some (all but the queries)

  [[nodiscard]] bool has_events() const;
  /// The user pointer of a CQ whose notification is due; false: no notification is due.
  bool take_completion_event(void*& user);
  bool take_async_event(AsyncEvent& event);

 private:
  explicit Device(std::unique_ptr<Engine> engine);
  std::unique_ptr<Engine> engine_;
};

}  // namespace bypass::rdma
