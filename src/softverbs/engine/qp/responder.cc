// The responder of connected queue pairs: what a peer may do here, and the answers. InfiniBand specification, 9.7.4,
// 9.7.5 and 9.9.3; errors that end a queue pair are its classes C and J.
//
// Every packet's keys, rights and bounds are checked before a byte of memory changes. Answers leave in the order of the
// requests (responder_answers.cc).
#include <atomic>
#include <cstring>

#include "softverbs/engine/engine.h"

namespace bypass::rdma {
namespace {

std::uint32_t packets_of(std::uint32_t length, std::uint32_t mtu) {
  return length == 0 ? 1 : (length - 1) / mtu + 1;
}

void answer(Engine& e, Qp& qp, Answer what) {
  qp.resp.answer = what;
  if (what == Answer::kAcknowledge && e.leaves) return e.left.push(qp);
  e.left.remove(qp);
  wake(e, qp);
}

// Ends the queue pair, with a NAK to the peer and `status` for the receive request in use.
void refuse(Engine& e, Qp& qp, const RocePacket& packet, std::uint8_t nak, ibv_wc_status status) {
  Responder& r = qp.resp;
  if (r.has_receive) complete_receive(e, qp, status, nullptr, IBV_WC_RECV, 0);
  r.fatal_nak = nak;
  r.fatal_psn = packet.psn;
  e.left.remove(qp);
  wake(e, qp);
}

void refuse(Engine& e, Qp& qp, const RocePacket& packet, std::uint8_t nak) {
  refuse(e, qp, packet, nak, nak == kNakAccess ? IBV_WC_LOC_ACCESS_ERR : IBV_WC_REM_INV_REQ_ERR);
}

// `packets` more were executed; with the last one a message ends.
void accept(Engine& e, Qp& qp, const RocePacket& packet, std::uint32_t packets = 1) {
  Responder& r = qp.resp;
  r.expected = r.expected + packets;
  if ((packet.traits & kOpLast) != 0) {
    r.message = Message::kNone;
    r.msn = (r.msn + 1) & kPsnMask;
  }
  // the data also acknowledges everything before it
  const bool answered_by_data = (packet.traits & (kOpSend | kOpWrite)) == 0;
  if (answered_by_data) {
    r.answer = Answer::kNone;
  } else if (packet.ack_request && r.answer == Answer::kNone) {
    answer(e, qp, Answer::kAcknowledge);
  }
}

void not_ready(Engine& e, Qp& qp) {
  qp.resp.nak_sent = true;  // later packets are early; the peer knows
  qp.resp.nak_round = qp.resp.round;
  answer(e, qp, Answer::kRnr);
}

// Whether the operation continues the current message, with a packet of the right size (9.7.4.1.3, 9.7.4.1.6).
bool well_formed(const Qp& qp, const RocePacket& packet) {
  const std::uint16_t t = packet.traits;
  const bool first = (t & kOpFirst) != 0, last = (t & kOpLast) != 0;
  const Message kind = (t & kOpSend) != 0 ? Message::kSend : (t & kOpWrite) != 0 ? Message::kWrite : Message::kNone;
  if (qp.resp.message != (first ? Message::kNone : kind)) return false;
  if (kind == Message::kNone) return packet.payload_len == 0;
  if (!last) return packet.payload_len == qp.mtu;
  return packet.payload_len <= qp.mtu && (first || packet.payload_len != 0);
}

// --- Send

void on_send(Engine& e, Qp& qp, const RocePacket& packet) {
  Responder& r = qp.resp;
  if ((packet.traits & kOpFirst) != 0) {
    if (!take_receive(e, qp)) return not_ready(e, qp);
    r.message = Message::kSend;
    r.received = 0;
  }
  if (packet.payload_len > r.capacity - r.received)
    return refuse(e, qp, packet, kNakInvalidRequest, IBV_WC_LOC_LEN_ERR);
  if (!scatter(e, qp.responder_pd(), {r.sges.data(), r.sge_count}, r.received, packet))
    return refuse(e, qp, packet, kNakOperation, IBV_WC_LOC_PROT_ERR);
  r.received += packet.payload_len;
  // A key that is not the peer's to invalidate: nothing is invalidated (9.9.3.2).
  if ((packet.traits & kOpInv) != 0 && !invalidate(e, qp, packet.invalidated()))
    return refuse(e, qp, packet, kNakAccess);
  if ((packet.traits & kOpLast) != 0) complete_receive(e, qp, IBV_WC_SUCCESS, &packet, IBV_WC_RECV, r.received);
  accept(e, qp, packet);
}

// --- Write

// A program may wait for a message's last byte to change: that byte is written after the others.
void copy_last_byte_last(FrameReader& reader, std::byte* to, std::size_t len) {
  reader.copy(to, len - 1);
  std::byte last;
  reader.copy(&last, 1);
  std::atomic_ref<std::byte>(to[len - 1]).store(last, std::memory_order_release);
}

// Checks a write's first packet. Returns 0, or the NAK.
std::uint8_t check_write(Engine& e, const Qp& qp, const RocePacket& packet) {
  const auto& reth = packet.at<Reth>(packet.extension);
  if ((qp.attr.qp_access_flags & IBV_ACCESS_REMOTE_WRITE) == 0) return kNakInvalidRequest;
  if (reth.length > e.config.limits.max_message) return kNakInvalidRequest;
  const bool allowed = reth.length == 0 || e.memory.find_remote(qp.responder_pd(), qp.qpn, reth.rkey, reth.address,
                                                                reth.length, IBV_ACCESS_REMOTE_WRITE);
  return allowed ? 0 : kNakAccess;
}

// A packet must carry what its message still lacks; the last packet must carry all of it.
bool write_fits(const RocePacket& packet, std::uint32_t left) {
  return (packet.traits & kOpLast) != 0 ? packet.payload_len == left : packet.payload_len < left;
}

void on_write(Engine& e, Qp& qp, const RocePacket& packet) {
  Responder& r = qp.resp;
  const bool first = (packet.traits & kOpFirst) != 0, last = (packet.traits & kOpLast) != 0;
  if (first) {
    if (const std::uint8_t nak = check_write(e, qp, packet)) return refuse(e, qp, packet, nak);
  }
  const std::uint32_t left = first ? std::uint32_t{packet.at<Reth>(packet.extension).length} : r.write_left;
  if (!write_fits(packet, left)) return refuse(e, qp, packet, kNakInvalidRequest);
  if ((packet.traits & kOpImm) != 0 && !take_receive(e, qp)) return not_ready(e, qp);
  if (first) {
    const auto& reth = packet.at<Reth>(packet.extension);
    r.message = Message::kWrite;
    r.rkey = reth.rkey;
    r.write_at = reth.address;
    r.write_left = reth.length;
    r.received = 0;
  }
  if (packet.payload_len != 0) {
    std::byte* to = e.memory.find_remote(qp.responder_pd(), qp.qpn, r.rkey, r.write_at, packet.payload_len,
                                         IBV_ACCESS_REMOTE_WRITE);
    if (to == nullptr) return refuse(e, qp, packet, kNakAccess);  // the memory was deregistered since the message began
    FrameReader reader(*packet.frame, packet.payload);
    if (last)
      copy_last_byte_last(reader, to, packet.payload_len);
    else
      reader.copy(to, packet.payload_len);
  }
  r.write_at += packet.payload_len;
  r.write_left -= packet.payload_len;
  r.received += packet.payload_len;
  if (last && (packet.traits & kOpImm) != 0)
    complete_receive(e, qp, IBV_WC_SUCCESS, &packet, IBV_WC_RECV_RDMA_WITH_IMM, r.received);
  accept(e, qp, packet);
}

// --- Read and atomic operations

// A place to remember the operation; the oldest answered one makes room. Null: the peer has more under way than it may
// have.
Resource* add_resource(Qp& qp) {
  Responder& r = qp.resp;
  if (r.resources.empty()) return nullptr;
  if (r.resource_tail - r.resource_head == qp.attr.max_dest_rd_atomic) {
    Resource& oldest = r.resource(r.resource_head);
    if (!oldest.answered) return nullptr;
    if (oldest.due != 0) r.due--;  // it was requested again, and then its answer came after all
    r.resource_head++;
  }
  Resource& resource = r.resource(r.resource_tail++);
  resource = Resource{};
  resource.first = r.expected;
  resource.msn = (r.msn + 1) & kPsnMask;
  resource.srqn = r.srqn;
  return &resource;
}

// Packets [start, end) of the answer must be sent. A peer of ours requests the missing parts. Another peer goes back,
// and wants nothing else any more.
void make_due(Engine& e, Qp& qp, const RocePacket& packet, Resource& resource, std::uint32_t start, std::uint32_t end) {
  const Resource::Range range{start, end, packet.round};
  if (resource.due == 0) qp.resp.due++;
  if (resource.due == 0 || !packet.ours) {
    resource.ranges[0] = range;
    resource.due = 1;
    resource.sent = start;
  } else if (resource.due < resource.ranges.size()) {
    resource.ranges[resource.due++] = range;
  } else {
    Resource::Range& last = resource.ranges.back();
    last = {std::min(last.start, start), std::max(last.end, end), range.round};
  }
  wake(e, qp);
}

void on_read(Engine& e, Qp& qp, const RocePacket& packet) {
  const auto& reth = packet.at<Reth>(packet.extension);
  const bool allowed = (qp.attr.qp_access_flags & IBV_ACCESS_REMOTE_READ) != 0;
  if (!allowed || reth.length > e.config.limits.max_message) return refuse(e, qp, packet, kNakInvalidRequest);
  if (reth.length != 0 && e.memory.find_remote(qp.responder_pd(), qp.qpn, reth.rkey, reth.address, reth.length,
                                               IBV_ACCESS_REMOTE_READ) == nullptr)
    return refuse(e, qp, packet, kNakAccess);
  Resource* resource = add_resource(qp);
  if (resource == nullptr) return refuse(e, qp, packet, kNakInvalidRequest);
  resource->packets = packets_of(reth.length, qp.mtu);
  resource->address = reth.address;
  resource->rkey = reth.rkey;
  resource->length = reth.length;
  make_due(e, qp, packet, *resource, 0, resource->packets);
  accept(e, qp, packet, resource->packets);
}

std::uint64_t execute(const RocePacket& packet, std::uint64_t* at) {
  const auto& atomic = packet.at<AtomicEth>(packet.extension);
  const std::atomic_ref<std::uint64_t> word(*at);
  if (packet.op == Op::kFetchAdd) return word.fetch_add(atomic.swap_add);
  std::uint64_t found = atomic.compare;
  word.compare_exchange_strong(found, atomic.swap_add);
  return found;
}

void on_atomic(Engine& e, Qp& qp, const RocePacket& packet) {
  const auto& atomic = packet.at<AtomicEth>(packet.extension);
  const bool allowed = (qp.attr.qp_access_flags & IBV_ACCESS_REMOTE_ATOMIC) != 0;
  if (!allowed || (atomic.address & 7) != 0) return refuse(e, qp, packet, kNakInvalidRequest);
  std::byte* at = e.memory.find_remote(qp.responder_pd(), qp.qpn, atomic.rkey, atomic.address, sizeof(std::uint64_t),
                                       IBV_ACCESS_REMOTE_ATOMIC);
  if (at == nullptr) return refuse(e, qp, packet, kNakAccess);
  // A region whose keys count from another address may map an aligned address to an odd place.
  if ((reinterpret_cast<std::uintptr_t>(at) & 7) != 0) return refuse(e, qp, packet, kNakInvalidRequest);
  Resource* resource = add_resource(qp);
  if (resource == nullptr) return refuse(e, qp, packet, kNakInvalidRequest);
  resource->atomic = true;
  resource->packets = 1;
  resource->original = execute(packet, reinterpret_cast<std::uint64_t*>(at));
  make_due(e, qp, packet, *resource, 0, 1);
  accept(e, qp, packet);
}

// --- Out of order

void tell_gap(Engine& e, Qp& qp, std::uint8_t round) {
  qp.resp.nak_sent = true;
  qp.resp.nak_round = round;
  qp.resp.told = qp.resp.expected;
  answer(e, qp, Answer::kNakSequence);
}

// The packet is of a later round than the NAK: the repetition, which would have come before it, is lost, too.
void on_early(Engine& e, Qp& qp, const RocePacket& packet) {
  Responder& r = qp.resp;
  e.counters.out_of_sequence++;
  hold(e, r.held, packet, r.expected);
  const bool lost_again = packet.ours && later_round(packet.round, r.nak_round);
  if (!r.nak_sent || lost_again) tell_gap(e, qp, packet.round);
}

Resource* find_resource(Qp& qp, Psn psn) {
  Responder& r = qp.resp;
  for (std::uint32_t n = r.resource_head; n != r.resource_tail; n++) {
    Resource& resource = r.resource(n);
    const std::int32_t index = psn - resource.first;
    if (index >= 0 && static_cast<std::uint32_t>(index) < resource.packets) return &resource;
  }
  return nullptr;
}

// A read is requested again, completely or from where its answer broke off (9.7.5.1.3): it must be the same read.
void repeat_read(Engine& e, Qp& qp, const RocePacket& packet, Resource& resource) {
  const auto& reth = packet.at<Reth>(packet.extension);
  const auto start = static_cast<std::uint32_t>(packet.psn - resource.first);
  const std::uint64_t skipped = std::uint64_t{start} * qp.mtu;
  if (reth.rkey != resource.rkey || reth.address != resource.address + skipped) return;
  if (reth.length > resource.length - skipped) return;
  const std::uint32_t packets = packets_of(reth.length, qp.mtu);
  const bool whole = start + packets == resource.packets ? reth.length == resource.length - skipped
                                                         : reth.length % qp.mtu == 0 && reth.length != 0;
  if (whole) make_due(e, qp, packet, resource, start, start + packets);
}

void on_duplicate(Engine& e, Qp& qp, const RocePacket& packet) {
  e.counters.duplicate_request++;
  const bool atomic = (packet.traits & kOpAtomic) != 0;
  if (!atomic && packet.op != Op::kReadRequest) {
    if (qp.resp.answer == Answer::kNone) answer(e, qp, Answer::kAcknowledge);
    return;
  }
  Resource* resource = find_resource(qp, packet.psn);
  if (resource == nullptr || resource->atomic != atomic) return;
  if (atomic) {
    make_due(e, qp, packet, *resource, 0, 1);
  } else {
    repeat_read(e, qp, packet, *resource);
  }
}

// --- At its turn

// Handles a packet at its turn.
void on_expected(Engine& e, Qp& qp, const RocePacket& packet) {
  qp.resp.nak_sent = false;
  // it was due in this burst; now nothing is missing
  if (qp.resp.answer != Answer::kNone) qp.resp.answer = Answer::kAcknowledge;
  if (qp.type == IBV_QPT_XRC_RECV) {
    if (const std::uint8_t nak = choose_receive_queue(e, qp, packet)) return refuse(e, qp, packet, nak);
  }
  if (!well_formed(qp, packet)) return refuse(e, qp, packet, kNakInvalidRequest);
  if ((packet.traits & kOpSend) != 0) return on_send(e, qp, packet);
  if ((packet.traits & kOpWrite) != 0) return on_write(e, qp, packet);
  if (packet.op == Op::kReadRequest) return on_read(e, qp, packet);
  on_atomic(e, qp, packet);
}

// Handles held packets whose turn has come. False: one of them could not be handled.
bool take_held_requests(Engine& e, Qp& qp) {
  Responder& r = qp.resp;
  while (!r.held.empty() && !before(r.expected, r.held.front())) {
    const Psn expected = r.expected;
    Packet* const frame = take_held(e, r.held);
    RocePacket packet;
    const bool next = Psn{frame->seq} == expected && read_packet(*frame, packet);
    if (next) on_expected(e, qp, packet);
    e.tx.free(frame);
    if (next && r.expected == expected) return false;
  }
  return true;
}

// The next gap. If the peer was told of it, the repetition is under way.
void on_next_gap(Engine& e, Qp& qp) {
  Responder& r = qp.resp;
  r.nak_sent = true;
  if (!before(r.expected, r.told)) tell_gap(e, qp, r.round);
}

bool receives(const Qp& qp) {
  return qp.state() == IBV_QPS_RTR || qp.state() == IBV_QPS_RTS || qp.state() == IBV_QPS_SQD;
}

}  // namespace

void note_established(Engine& e, Qp& qp) {
  if (qp.established) return;
  qp.established = true;
  if (qp.state() == IBV_QPS_RTR) e.post_event(qp, IBV_EVENT_COMM_EST);
}

void on_request(Engine& e, Qp& qp, const RocePacket& packet) {
  if (!receives(qp) || qp.resp.fatal_nak != 0) {
    e.counters.rx_wrong_state++;
    return;
  }
  note_established(e, qp);
  Responder& r = qp.resp;
  if (packet.ours && later_round(packet.round, r.round)) r.round = packet.round;
  const Psn expected = r.expected;
  if (before(expected, packet.psn)) return on_early(e, qp, packet);
  if (before(packet.psn, expected)) return on_duplicate(e, qp, packet);
  on_expected(e, qp, packet);
  if (r.held.empty() || r.expected == expected) return;
  if (take_held_requests(e, qp) && !r.held.empty()) on_next_gap(e, qp);
}

}  // namespace bypass::rdma
