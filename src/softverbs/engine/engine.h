// Engine: the device's state, and the interfaces between its parts. Device (device.h) is its public side.
//
//   receive.cc    a frame's way in: parsing, ICRC, which queue pair it is for
//   repair.cc     between two ends of ours: only what is lost is sent again
//   responder.cc  requests of a peer to an RC or UC queue pair   responder_answers.cc  what they are answered
//   requester.cc  our requests, as packets                       requester_answers.cc  a peer's answers
//   requester_timer.cc  what is sent again without an answer     memory_window.cc      binding and invalidating
//   xrc.cc        domains and receive queues of XRC
//   datagram.cc   UD                                             raw.cc        whole frames, with steering.cc and
//                                                                port_steering.cc
//   roce_writer   a RoCE packet's way out                        neighbour_protocol.cc  ARP and neighbour discovery
//   qp_state.cc   which attributes change in which state         queue_pair.cc, completion.cc  the verbs
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "softverbs/engine/config.h"
#include "softverbs/engine/counters.h"
#include "softverbs/engine/device.h"
#include "softverbs/engine/memory_table.h"
#include "softverbs/engine/port_steering.h"
#include "softverbs/engine/qp/objects.h"
#include "softverbs/engine/qp/qp.h"
#include "softverbs/engine/steering.h"
#include "softverbs/engine/transmit.h"
#include "softverbs/engine/wire/crc32.h"
#include "softverbs/engine/wire/neighbours.h"
#include "softverbs/engine/wire/roce.h"
#include "stack/frame/packet_list.h"
#include "stack/frame/port.h"
#include "stack/timer_wheel.h"

namespace bypass::rdma {

/// The result of a turn at sending.
enum class Step : std::uint8_t {
  kSent,     // one packet; there may be more
  kIdle,     // nothing to send now
  kBlocked,  // the port takes no more: come back
};

inline IpAddress address_of(const ibv_gid& gid) {
  return std::bit_cast<IpAddress>(std::to_array(gid.raw));
}

struct Group {
  ibv_gid gid;
  Qp* qp;
};

struct Engine {
  Engine(const DeviceConfig& device_config, Port& port, std::uint16_t queue);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  static constexpr std::uint32_t kManagementQpn = 1, kFirstQpn = 0x11;

  DeviceConfig config;
  Counters counters;
  Instant now{};
  MacAddress mac;
  ibv_mtu active_mtu = IBV_MTU_256;
  std::vector<ibv_gid> gids;
  Transmit tx;
  Neighbours neighbours;
  MemoryTable memory;
  Steering steering;
  PortSteering port_steering;
  std::vector<Group> groups;
  std::vector<std::unique_ptr<Qp>> qps;  // by number, from kFirstQpn on
  std::unique_ptr<Qp> management_qp;
  std::uint32_t next_qpn = 0;  // index; a number is not used again soon
  std::uint32_t qp_count = 0;
  Owned<Pd> pds;
  Owned<Cq> cqs;
  Owned<Srq> srqs;
  Owned<Xrcd> xrcds;
  std::vector<Srq*> xrc_srqs;      // XRC receive queues by number, from 1 on
  std::uint32_t next_xrc_srq = 0;  // index; a number is not used again soon
  Owned<Ah> ahs;
  Owned<Flow> flows;
  TimerWheel<Qp, &Qp::wheel> timers;
  Fifo<Qp, &Qp::ready_link> ready;
  Fifo<Qp, &Qp::left_link> left;
  Fifo<Cq, &Cq::notify_link> notifications;
  EventSources events;
  EventSource port_events;
  LinkState link = LinkState::kUp;
  std::uint16_t ip_id = 0;
  bool leaves = false;       // acknowledgements that are due by the current frames go to `left` if possible
  bool blocked = false;      // the port took no more, or had no buffers
  bool memory_gone = false;  // the program ends: its memory is neither written to nor read any more
  std::uint32_t held_buffers = 0, most_held = 0;  // buffers of packets that came before their turn, of all queue pairs
  bool kept = false;                              // the current frame is one of them now
  PacketList raw_waiting;                         // frames without a receive request, in order
  std::uint32_t raw_done = 0;                     // delivered pieces of the first of them
  Instant raw_deadline{};                         // for the first of them

  [[nodiscard]] Qp* find_qp(std::uint32_t qpn) const {
    const std::uint32_t index = qpn - kFirstQpn;
    if (index < qps.size()) return qps[index].get();
    return qpn == kManagementQpn ? management_qp.get() : nullptr;
  }
  [[nodiscard]] bool owns(const IpAddress& address) const;

  void post_event(EventSource& source, ibv_event_type type) {
    source.events |= 1U << type;
    events.push(source);
  }
};

// --- device.cc

/// Sends the acknowledgement that was left to a later call, because the queue pair's state changes.
void send_left(Engine& e, Qp& qp);

// --- completion.cc

void complete(Engine& e, Qp& qp, Cq& cq, Completion& completion, bool solicited);
/// Completes a send request, if its completion is to be reported.
void complete_send(Engine& e, Qp& qp, const SendWqe& w, ibv_wc_status status);
/// The program has seen the completion: its request's place in the send queue is free.
void give_place_back(const Engine& e, const Completion& completion);
/// Completes the receive request that the responder has taken.
void complete_receive(Engine& e, Qp& qp, ibv_wc_status status, const RocePacket* packet, ibv_wc_opcode opcode,
                      std::uint32_t bytes);

// --- queue_pair.cc

/// Puts the queue pair into the error state: whatever waits completes as flushed.
void to_error(Engine& e, Qp& qp);
void reset(Engine& e, Qp& qp);
/// The queue pair may have something to send.
inline void wake(Engine& e, Qp& qp) {
  e.ready.push(qp);
}
/// kNever: no deadline.
void set_deadline(Engine& e, Qp& qp, Instant at);
/// Takes the oldest receive request for the responder. False: there is none.
bool take_receive(Engine& e, Qp& qp);
/// The attributes of a modification without those of the other direction of XRC, which the kernel ignores
/// (qp_state.cc).
unsigned meant_by(ibv_qp_type type, unsigned mask);
/// 0, or an errno: whether the modification is allowed in the queue pair's state (qp_state.cc).
int check_transition(ibv_qp_type type, ibv_qp_state from, ibv_qp_state to, unsigned mask);

// --- roce_writer.cc

/// The address whose MAC is asked for: the destination itself, or the gateway for what lies on no prefix of ours.
IpAddress next_hop(const Engine& e, const IpAddress& destination);
/// How many hops packets may make. To a host Linux takes the route's number, whatever the program has named
/// (ib_resolve_unicast_gid_dmac() in drivers/infiniband/core). rdma-core's examples name 1. To a group it is the
/// program's.
std::uint8_t hop_limit(const ibv_global_route& grh);
/// What packets to that address begin with. `qpn` chooses the source port. 0 or an errno.
int make_path(Engine& e, const ibv_ah_attr& attr, std::uint32_t qpn, Path& path);
void release_path(Engine& e, Path& path);
/// One more holder of a copied path's place among the neighbours.
void hold_path(Engine& e, const Path& path);
/// Whether the destination's MAC is known; asks for it if not.
bool reachable(Engine& e, const Path& path);

/// One RoCE packet: headers, then what the caller appends, then finish(). The frame's memory is written and never read:
/// the peer's processor may have had it last.
class RoceWriter {
 public:
  struct Start {
    std::uint8_t service;
    Op op;
    std::uint32_t qpn;
    Psn psn;
    std::uint32_t payload = 0;  // bytes; payload() brings as many
    bool solicited = false, ack_request = false;
    std::uint8_t round = 0;
  };
  /// Only with room in the transmit batch and a path that is reachable().
  RoceWriter(Engine& e, const Path& path, const Start& start);
  /// Extensions and payload. A writer without memory takes them, too, and finish() says so.
  template <typename Header>
  void header(const Header& h) {
    put(&h, sizeof h);
  }
  void payload(const void* bytes, std::size_t len);
  /// Ends with the ICRC, hands the packet to the port. False: no buffer.
  bool finish();

 private:
  static constexpr std::size_t kMostHeaders = Path::kMaxHeader + sizeof(Bth) + sizeof(Xrceth) + sizeof(AtomicEth);
  static constexpr std::size_t kShort = 64;  // so much payload is treated like a header

  void put(const void* bytes, std::size_t len) {
    std::memcpy(first_.data() + len_, bytes, len);
    len_ += len;
  }
  [[nodiscard]] std::uint32_t pad() const { return (0 - payload_) & 3; }
  void fill_lengths(std::size_t frame_len);
  void write_first(std::size_t behind);

  Engine& e_;
  const Path& path_;
  FrameWriter writer_;
  std::uint32_t payload_;
  std::uint32_t crc_ = kCrcStart;
  bool written_ = false;  // first_, into the frame
  std::size_t len_;       // of first_
  static_assert(kMostHeaders + kShort <= sizeof(wire::Ethernet) + kIcrcFirst);
  std::array<std::byte, kMostHeaders + kShort> first_;  // the frame's beginning; short packets whole
};

/// Appends a message's bytes from `offset` on. False: the memory may not be read.
bool append_message(Engine& e, Qp& qp, std::uint32_t wqe, std::uint64_t offset, std::size_t len, RoceWriter& writer);
/// Writes a packet's payload into the elements' memory. False: some of it may not be written; the bytes before it are.
bool scatter(Engine& e, const Pd& pd, std::span<const ibv_sge> sges, std::uint64_t offset, const RocePacket& packet);

// --- requester.cc, requester_answers.cc, requester_timer.cc

void on_response(Engine& e, Qp& qp, const RocePacket& packet);
Step send_request(Engine& e, Qp& qp);
/// The queue pair's deadline has passed: of an answer, or of a pause that the peer asked for.
void on_deadline(Engine& e, Qp& qp);

/// Number of a read's packets to request at once, from packet number `index` on.
std::uint32_t read_part(const Engine& e, const SendWqe& w, std::uint32_t index);

// --- repair.cc

/// Keeps a packet of a peer of ours that is ahead of the expected one. False: it stays the caller's, because there is
/// no room for it, or it was here before.
bool hold(Engine& e, HeldPackets& held, const RocePacket& packet, Psn expected);
Packet* take_held(Engine& e, HeldPackets& held);
void drop_held(Engine& e, HeldPackets& held);
/// Requests before `end` have been executed, whether their answers came or not.
void note_arrived(Requester& req, Psn end);
/// Notes what a NAK of ours says about packets after the missing one. `end` becomes the last of those that the peer
/// holds.
void note_there(Requester& req, Psn expected, const RocePacket& nak, Psn& end);
/// An answer of that round says that something before `end` is lost.
void repair(Engine& e, Qp& qp, Psn end, std::uint8_t round);
/// Begins a new round: what is not settled before `end` is sent again.
void resend(Engine& e, Qp& qp, Psn end);
/// Sets `nxt` to what must be sent next.
void skip_settled(const Engine& e, Qp& qp);
/// How many packets of a read's part that begins at `nxt` must be requested.
std::uint32_t missing_answers(const Qp& qp, std::uint32_t part);
/// The content of a NAK: bit i says that the packet at distance 1 + i after the expected one is held.
std::array<std::uint8_t, kHoldAhead / 8> held_map(const Responder& r);

// --- responder.cc

void on_request(Engine& e, Qp& qp, const RocePacket& packet);
void on_unconnected(Engine& e, Qp& qp, const RocePacket& packet);  // UC
Step send_response(Engine& e, Qp& qp);
/// To be called before the first packet of a queue pair in RTR.
void note_established(Engine& e, Qp& qp);

// --- memory_window.cc

/// Executes a request to bind a window. IBV_WC_MW_BIND_ERR: it may not be bound so.
ibv_wc_status bind_window(Engine& e, const Qp& qp, const SendWqe& w);
/// Unbinds the window of type 2 that has this key. False: it is another key, or not the queue pair's to invalidate.
bool invalidate(Engine& e, const Qp& qp, std::uint32_t key);

// --- xrc.cc

/// The domain's receive queue of that number; null: there is no such queue in the domain.
Srq* find_xrc_srq(const Engine& e, const Xrcd& xrcd, std::uint32_t srqn);
/// Sets which receive queue the packet is for. 0, or the NAK: the packet does not continue the message under way, or
/// names no queue of the domain.
std::uint8_t choose_receive_queue(const Engine& e, Qp& qp, const RocePacket& packet);
/// The domain in which the resource's key is valid; null: its receive queue was destroyed.
const Pd* pd_of(const Engine& e, const Qp& qp, const Resource& resource);
/// Ends what queue pairs are receiving into that queue.
void leave_receive_queue(Engine& e, const Srq& srq);

// --- datagram.cc, raw.cc

void on_datagram(Engine& e, Qp& qp, const RocePacket& packet);
Step send_datagram(Engine& e, Qp& qp);
Step send_raw(Engine& e, Qp& qp);
/// Takes a frame that is not for the RoCE engine, or a copy of one that is (`sniff`). True: the frame is kept until
/// there is a receive request for it. Otherwise, and always for a copy, it stays the caller's.
bool on_raw_frame(Engine& e, Packet& frame, bool sniff);
/// Delivers waiting frames if receive requests were posted since, or drops them after too long a time. Returns how many
/// no longer wait.
std::size_t hand_on_waiting(Engine& e);

// --- receive.cc

/// Takes a frame from the wire. True: it is kept; otherwise it stays the caller's.
bool on_frame(Engine& e, Packet& frame);
/// Reads the packet of a frame that was accepted before.
bool read_packet(Packet& frame, RocePacket& packet);

// --- neighbour_protocol.cc

/// True: an ARP or neighbour discovery packet, which was handled (raw queue pairs may want it as well).
bool on_neighbour_frame(Engine& e, const Packet& frame);
void ask_due_neighbours(Engine& e);
inline void ask_neighbours(Engine& e) {
  if (e.now >= e.neighbours.next()) ask_due_neighbours(e);
}
/// See Device::farewell().
std::size_t ask_for_farewell(Engine& e);
void learn(Engine& e, const IpAddress& address, const MacAddress& mac, bool wanted);

}  // namespace bypass::rdma
