// Qp: one queue pair, with the state of its requester (requests to its peer) and its responder (requests of its peer).
// The names are the InfiniBand specification's, chapter 9.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "softverbs/engine/qp/held_packets.h"
#include "softverbs/engine/qp/objects.h"
#include "softverbs/engine/wire/roce.h"
#include "stack/timer_wheel.h"

namespace bypass::rdma {

struct SendWqe {
  std::uint64_t wr_id = 0;
  std::uint64_t remote_addr = 0;            // BIND_MW: the first byte
  std::uint64_t compare_add = 0, swap = 0;  // BIND_MW: bytes, rights
  ibv_wr_opcode opcode{};
  ibv_wc_status status{};  // the status of its completion
  std::uint32_t flags = 0;
  std::uint32_t imm = 0;
  std::uint32_t rkey = 0;
  std::uint32_t length = 0;   // bytes of the message
  std::uint32_t packets = 0;  // number of PSNs that it uses
  Psn first;                  // valid after it has begun
  std::uint32_t remote_qpn = 0, remote_qkey = 0;
  std::uint32_t remote_srqn = 0;
  // BIND_MW: both may be gone when the request's turn comes, so they are looked up then
  std::uint32_t window_place = 0, region_key = 0;
  bool executed = false;  // of a local operation
  std::uint16_t sges = 0;
  std::uint16_t tso_header = 0, tso_mss = 0;  // the header is stored like inline bytes

  [[nodiscard]] Psn last() const { return first + (packets - 1); }
  /// It is executed here, in its turn, and uses no PSN.
  [[nodiscard]] bool is_local() const { return opcode == IBV_WR_BIND_MW || opcode == IBV_WR_LOCAL_INV; }
  [[nodiscard]] bool is_read() const { return opcode == IBV_WR_RDMA_READ; }
  [[nodiscard]] bool is_atomic() const {
    return opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
  }
  /// True if the answer is data, not only an acknowledgement.
  [[nodiscard]] bool wants_data() const { return is_read() || is_atomic(); }
};

/// Send requests. [head, cursor): sent at least once, completely or in part. [cursor, begun): sent once, and to be sent
/// again. [begun, tail): without PSNs yet. The request at `cursor` may be partly sent.
class SendQueue {
 public:
  void create(const ibv_qp_cap& cap, bool datagrams) {
    max_wr_ = cap.max_send_wr;
    max_sge_ = cap.max_send_sge;
    max_inline_ = cap.max_inline_data;
    ring_.resize(std::bit_ceil(std::max(max_wr_, 1U)));
    sges_.resize(ring_.size() * max_sge_);
    inline_.resize(ring_.size() * max_inline_);
    if (datagrams) paths_.resize(ring_.size());
  }
  [[nodiscard]] SendWqe& at(std::uint32_t n) { return ring_[index(n)]; }
  [[nodiscard]] ibv_sge* sges(std::uint32_t n) { return sges_.data() + std::size_t{index(n)} * max_sge_; }
  [[nodiscard]] std::byte* inlined(std::uint32_t n) { return inline_.data() + std::size_t{index(n)} * max_inline_; }
  [[nodiscard]] Path& path(std::uint32_t n) { return paths_[index(n)]; }
  [[nodiscard]] std::uint32_t room() const {
    const std::uint32_t taken = tail - head + unpolled;
    return taken < max_wr_ ? max_wr_ - taken : 0;
  }

  std::uint32_t head = 0, cursor = 0, begun = 0, tail = 0;
  /// Completions that the program has not taken. As in a card's driver, they keep their requests' places. So a program
  /// may post until there is no room, and its completion queue never overruns if it has room for all requests.
  std::uint32_t unpolled = 0;

 private:
  [[nodiscard]] std::uint32_t index(std::uint32_t n) const { return n & static_cast<std::uint32_t>(ring_.size() - 1); }
  std::vector<SendWqe> ring_;
  std::vector<ibv_sge> sges_;
  std::vector<std::byte> inline_;
  std::vector<Path> paths_;  // for datagrams
  std::uint32_t max_wr_ = 0, max_sge_ = 0, max_inline_ = 0;
};

struct Requester {
  Psn una;                  // the oldest unanswered packet
  Psn nxt;                  // the next packet to be sent
  Psn max;                  // one beyond the last packet that was ever sent
  Psn psn;                  // for the next request that begins
  std::uint32_t reads = 0;  // begun requests that want data
  // The last PSNs of unanswered read and atomic packets, oldest first: at most max_rd_atomic. A ring; its size is a
  // power of two.
  std::vector<Psn> read_ends;
  std::uint32_t read_head = 0, read_tail = 0;
  std::uint8_t retries = 0, rnr_retries = 0;  // attempts that are left
  bool rnr_wait = false;
  // it has gone back to `una`, and nothing has come since: another report of this loss changes nothing
  bool went_back = false;
  // With a peer of ours: lost packets are searched in [nxt, repair_end); everything from there up to `max` is on its
  // way.
  Psn repair_end;
  std::uint8_t round = 0;  // a loss report of an earlier round changes nothing
  Psn arrived;             // the peer has executed all requests before it
  PsnSet there;            // requests that the peer holds
  HeldPackets answers;     // answers that came before their turn
  PsnSet here;             // their numbers
};

/// A read or atomic operation that the responder remembers, to answer it and to repeat the answer.
struct Resource {
  struct Range {  // packets [start, end) of the answer
    std::uint32_t start = 0, end = 0;
    std::uint8_t round = 0;
  };
  bool atomic = false;
  bool answered = false;  // it was answered completely at least once
  Psn first;
  std::uint32_t packets = 0;
  std::array<Range, 4> ranges{};  // the parts to be sent
  std::uint32_t due = 0;          // number of ranges
  std::uint32_t sent = 0;         // of the first range: everything before this packet was sent
  std::uint64_t address = 0;
  std::uint32_t rkey = 0, length = 0;
  std::uint32_t srqn = 0;      // XRC: the receive queue whose domain has the memory
  std::uint64_t original = 0;  // the value that an atomic operation found
  std::uint32_t msn = 0;
};

enum class Answer : std::uint8_t { kNone, kAcknowledge, kNakSequence, kRnr };
enum class Message : std::uint8_t { kNone, kSend, kWrite };

struct Responder {
  Psn expected;
  std::uint32_t msn = 0;  // executed messages, 24 bits
  // The message that is being received
  Message message = Message::kNone;
  bool has_receive = false;
  std::uint16_t sge_count = 0;
  std::uint64_t wr_id = 0;
  Srq* srq = nullptr;      // XRC: what the packet, and the message, is for
  std::uint32_t srqn = 0;  // its number
  std::vector<ibv_sge> sges;
  std::uint64_t capacity = 0;  // bytes that the receive request can hold
  std::uint32_t received = 0;  // bytes
  std::uint32_t rkey = 0, write_left = 0;
  std::uint64_t write_at = 0;
  // Answers that are due, in this order: resources, `answer`, the fatal NAK
  std::uint32_t due = 0;  // number of resources with ranges due
  Answer answer = Answer::kNone;
  bool nak_sent = false;       // for `expected`: not sent again until that has come
  HeldPackets held;            // from a peer of ours: packets that came before their turn
  std::uint8_t round = 0;      // round of the peer's repairs
  std::uint8_t nak_round = 0;  // the round in which the last NAK was caused
  Psn told;                    // up to here the NAK reported what is missing
  std::uint8_t fatal_nak = 0;  // the queue pair goes to error after it; nothing is accepted meanwhile
  Psn fatal_psn;
  std::vector<Resource> resources;  // a ring, its size a power of two; at most max_dest_rd_atomic entries
  std::uint32_t resource_head = 0, resource_tail = 0;

  [[nodiscard]] Resource& resource(std::uint32_t n) { return resources[n % resources.size()]; }
  [[nodiscard]] bool idle() const { return due == 0 && answer == Answer::kNone && fatal_nak == 0; }
};

struct Qp : EventSource {
  Pd* pd = nullptr;
  Cq* send_cq = nullptr;
  Cq* receive_cq = nullptr;
  Srq* srq = nullptr;
  Xrcd* xrcd = nullptr;  // XRC_RECV; such a queue pair has no domain and no completion queues of its own
  ibv_qp_type type{};
  ibv_qp_cap cap{};
  bool sq_sig_all = false;
  std::uint32_t qpn = 0;
  ibv_qp_attr attr{};     // as set by the program; qp_state is the state
  std::uint32_t mtu = 0;  // bytes
  Path path;
  SendQueue sq;
  ReceiveQueue rq;
  Requester req;
  Responder resp;
  std::uint32_t references = 0;  // number of flows and groups that use it
  std::uint32_t openings = 0;    // further openings of an XRC_RECV queue pair (ibv_open_qp)
  bool peer_is_ours = false;     // the peer's packets carry kBthOurs
  bool waiting_neighbour = false;
  bool doomed = false;       // goes to error at the end of the burst
  bool established = false;  // IBV_EVENT_COMM_EST was reported
  bool draining = false;     // SQD, and begun requests are not complete
  TimerNode wheel;
  Instant deadline = kNever;  // when the queue pair's timer is due; the wheel fires then or earlier
  Link<Qp> ready_link;
  Link<Qp> left_link;  // its acknowledgement is left to a later call

  Instant raw_pause = Instant::min();  // until then, no frame waits for a receive request

  [[nodiscard]] ibv_qp_state state() const { return attr.qp_state; }
  [[nodiscard]] bool is_datagram() const { return type == IBV_QPT_UD; }
  [[nodiscard]] bool is_xrc() const { return type == IBV_QPT_XRC_SEND || type == IBV_QPT_XRC_RECV; }
  [[nodiscard]] bool is_reliable() const { return type == IBV_QPT_RC || is_xrc(); }
  [[nodiscard]] std::uint8_t service() const {
    return is_xrc() ? kServiceXrc : type == IBV_QPT_RC ? kServiceRc : kServiceUc;
  }
  /// The shared receive queue of the packet that is being handled; null: the queue pair has a queue of its own.
  [[nodiscard]] Srq* shared_queue() const { return type == IBV_QPT_XRC_RECV ? resp.srq : srq; }
  [[nodiscard]] ReceiveQueue& receives() {
    Srq* const shared = shared_queue();
    return shared != nullptr ? shared->queue : rq;
  }
  /// The domain in which the keys of the packet that is being handled are valid.
  [[nodiscard]] const Pd& responder_pd() const { return type == IBV_QPT_XRC_RECV ? *resp.srq->pd : *pd; }
};

}  // namespace bypass::rdma
