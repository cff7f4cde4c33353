// Raw-packet queue pairs: whole Ethernet frames, received as the rules steer them, and sent unchanged.
//
// A frame that finds no receive request waits, and so do the frames after it. The wire keeps what comes then
// (Device::poll): it has more room, and counts losses. A program that posts no request for a while loses its frames, as
// on a card, because other traffic of the wire (RoCE included) must not wait for ever.
#include <algorithm>
#include <cstring>

#include "softverbs/engine/engine.h"
#include "softverbs/engine/wire/large_frame.h"
#include "stack/frame/checksum.h"

namespace bypass::rdma {
namespace {

// IBV_WC_IP_CSUM_OK concerns the IP header and what it carries. If a port has only verified the latter, the header
// (about twenty bytes) is verified here. A frame from a neighbour on this machine may have no L4 checksum that could be
// verified.
bool checksums_are_good(const Packet& frame) {
  if ((frame.flags & kRxL4ChecksumGood) == 0) return false;
  if ((frame.flags & kRxIpChecksumGood) != 0) return true;
  if (!wire::fits<wire::Ipv4>(frame, sizeof(wire::Ethernet))) return false;
  const auto& ip = wire::at<wire::Ipv4>(frame, sizeof(wire::Ethernet));
  const std::size_t length = ip.header_len();
  return wire::at<wire::Ethernet>(frame, 0).type == wire::kEtherTypeIpv4 && length >= sizeof ip &&
         sizeof(wire::Ethernet) + length <= frame.len && checksum_finish(checksum(&ip, length)) == 0;
}

// How long the first waiting frame waits. Then its queue pair's frames are dropped, and for a while without a wait. So
// a queue pair that nobody serves stops the wire for at most a tenth of the time.
constexpr Duration kRawPatience = std::chrono::milliseconds{50}, kRawPause = 10 * kRawPatience;
constexpr std::uint32_t kMostWaiting = 64;  // frames; those of a whole burst may have to wait

bool is_live(const Qp& qp) {
  return qp.state() == IBV_QPS_RTR || qp.state() == IBV_QPS_RTS || qp.state() == IBV_QPS_SQD;
}

// Whether a frame for this queue pair must wait for a receive request.
bool must_wait(const Engine& e, Qp& qp) {
  if (!is_live(qp) || qp.resp.has_receive || !qp.receives().empty() || e.now < qp.raw_pause) return false;
  if (e.now < e.raw_deadline) return true;
  qp.raw_pause = e.now + kRawPause;
  return false;
}

// `copy(to, n)` copies the frame's next bytes.
template <typename Copy>
void deliver(Engine& e, const Flow& flow, std::uint32_t length, bool good_checksums, Copy&& copy) {
  Qp& qp = *flow.qp;
  if (!is_live(qp)) {
    e.counters.rx_wrong_state++;
    return;
  }
  Responder& r = qp.resp;
  if (!take_receive(e, qp) || r.capacity < length) {
    e.counters.rx_no_receive++;
    return;
  }
  const bool written = for_each_piece(e.memory, *qp.pd, {r.sges.data(), r.sge_count}, IBV_ACCESS_LOCAL_WRITE, 0, length,
                                      [&](std::byte* at, std::size_t n) { copy(at, n); });
  r.has_receive = false;
  e.counters.rx_raw++;
  Completion completion;
  completion.wc.wr_id = r.wr_id;
  completion.wc.status = written ? IBV_WC_SUCCESS : IBV_WC_LOC_PROT_ERR;
  completion.wc.opcode = IBV_WC_RECV;
  completion.wc.byte_len = length;
  completion.wc.wc_flags = good_checksums ? unsigned{IBV_WC_IP_CSUM_OK} : 0;
  completion.flow_tag = flow.rule.flow_tag;
  complete(e, qp, *qp.receive_cq, completion, false);
  if (!written) to_error(e, qp);
}

// `done`: pieces of the frame that were delivered before. False: the rest waits for receive requests.
bool deliver(Engine& e, const Flow& flow, const Packet& frame, std::uint32_t& done, bool waits) {
  const bool good = checksums_are_good(frame);
  if (good && frame.frame_len > e.config.mtu + sizeof(wire::Ethernet)) {
    LargeFrame large(frame, e.config.mtu);
    std::uint32_t piece = 0;
    for (; large.next(); piece++) {
      if (piece < done) continue;
      if (waits && must_wait(e, *flow.qp)) return false;
      deliver(e, flow, large.length(), good, [&](std::byte* to, std::size_t n) { large.copy(to, n); });
      done = piece + 1;
    }
    if (piece != 0) return true;
  }
  if (waits && must_wait(e, *flow.qp)) return false;
  FrameReader reader(frame, 0);
  deliver(e, flow, frame.frame_len, good, [&](std::byte* to, std::size_t n) { reader.copy(to, n); });
  return true;
}

void deliver(Engine& e, const Flow& flow, const Packet& frame) {
  std::uint32_t done = 0;
  deliver(e, flow, frame, done, false);
}

// A frame to several queue pairs goes to each once, whatever its rules.
class Delivered {
 public:
  bool add(const Qp* qp) {
    const std::span<const Qp*> seen = std::span{seen_}.first(count_);
    if (count_ == seen_.size() || std::ranges::find(seen, qp) != seen.end()) return false;
    seen_[count_++] = qp;
    return true;
  }

 private:
  std::array<const Qp*, 64> seen_;
  std::size_t count_ = 0;
};

void sniff_frame(Engine& e, const Packet& frame) {
  for (Flow* flow : e.steering.sniffers()) deliver(e, *flow, frame);
}

// Delivers to one queue pair: to the first of several with equal rules. False: the frame waits.
bool to_one(Engine& e, const Steering::Key& key, const Packet& frame, bool& taken) {
  bool done = true;
  e.steering.match(key, [&](Flow& flow) {
    taken = true;
    if (!flow.rule.drop) done = deliver(e, flow, frame, e.raw_done, true);
    return false;
  });
  return done;
}

// Delivers to all of them, or not yet to any.
bool to_many(Engine& e, const Steering::Key& key, const Packet& frame, bool& taken) {
  bool waits = false;
  e.steering.match(key, [&](Flow& flow) {
    waits = !flow.rule.drop && must_wait(e, *flow.qp);
    return !flow.rule.drop && !waits;
  });
  if (waits) return false;
  Delivered delivered;
  e.steering.match(key, [&](Flow& flow) {
    taken = true;
    if (flow.rule.drop) return false;
    if (delivered.add(flow.qp)) deliver(e, flow, frame);
    return true;
  });
  return true;
}

// False: it waits.
bool hand_on(Engine& e, const Packet& frame) {
  const Steering::Key key = Steering::key_of(frame);
  bool taken = false;
  const bool done = key.destination.is_multicast() ? to_many(e, key, frame, taken) : to_one(e, key, frame, taken);
  if (!done) return false;
  if (!taken) e.counters.rx_unsteered++;
  e.raw_done = 0;
  e.raw_deadline = e.now + kRawPatience;
  return true;
}

// --- Checksums of frames to send

std::size_t l4_offset(const Packet& frame) {
  return sizeof(wire::Ethernet) + wire::at<wire::Ipv4>(frame, sizeof(wire::Ethernet)).header_len();
}

// The offset of the checksum in the L4 header; 0: there is no such protocol.
std::size_t l4_checksum_field(std::uint8_t protocol) {
  if (protocol == wire::kProtocolTcp) return 16;
  return protocol == wire::kProtocolUdp ? 6 : 0;
}

bool has_ipv4(const Packet& frame) {
  return wire::fits<wire::Ipv4>(frame, sizeof(wire::Ethernet)) &&
         wire::at<wire::Ethernet>(frame, 0).type == wire::kEtherTypeIpv4;
}

// IBV_SEND_IP_CSUM: fills in the IP and the TCP or UDP checksum, whatever the fields contain. The port makes the latter
// if it can.
void fill_checksums(Engine& e, Packet& frame, bool offload) {
  if (!has_ipv4(frame)) return;
  auto& ip = wire::at<wire::Ipv4>(frame, sizeof(wire::Ethernet));
  const std::size_t l4 = l4_offset(frame), field = l4_checksum_field(ip.protocol);
  if (ip.header_len() < sizeof ip || l4 > frame.len) return;
  ip.checksum = 0;
  ip.checksum.set_raw(checksum_finish(checksum(&ip, ip.header_len())));
  const bool fragment = (ip.fragment & (wire::kMoreFragments | wire::kFragmentOffset)) != 0;
  if (field == 0 || fragment || l4 + field + 2 > frame.len) return;
  const auto l4_len = static_cast<std::uint32_t>(frame.frame_len - l4);
  auto& sum = wire::at<wire::Be16>(frame, l4 + field);
  const PartialSum pseudo =
      checksum_pseudo(IpAddress::from_v4(ip.source), IpAddress::from_v4(ip.destination), ip.protocol, l4_len);
  if (offload || e.tx.port().caps().tx_l4_checksum) {
    sum.set_raw(checksum_fold(pseudo));
    frame.flags |= kTxL4Checksum;
    frame.l2_len = sizeof(wire::Ethernet);
    frame.l3_len = static_cast<std::uint16_t>(l4 - sizeof(wire::Ethernet));
    frame.l4_len = ip.protocol == wire::kProtocolUdp ? sizeof(wire::Udp) : wire::kMinTcpHeader;
    return;
  }
  sum = 0;
  const std::uint16_t made = checksum_finish(pseudo + checksum_frame(frame, l4, l4_len));
  sum.set_raw(made == 0 && ip.protocol == wire::kProtocolUdp ? std::uint16_t{0xffff} : made);
}

// Prepares a large segment for the port to cut. Its headers lie in the head, in one piece. False: the frame is too
// long, and it is not TCP over IPv4, or its parts would not fit either.
bool fill_tso(Engine& e, Packet& frame, const SendWqe& w) {
  const std::size_t most = e.config.mtu + sizeof(wire::Ethernet);
  const bool fits = frame.frame_len <= most;
  if (!has_ipv4(frame)) return fits;
  const std::size_t l4 = l4_offset(frame);
  const auto& ip = wire::at<wire::Ipv4>(frame, sizeof(wire::Ethernet));
  if (ip.protocol != wire::kProtocolTcp || l4 + wire::kMinTcpHeader > frame.len) return fits;
  const std::size_t l4_len = (std::to_integer<std::size_t>(frame.data[l4 + 12]) >> 4) * 4;
  const std::size_t headers = l4 + l4_len;
  if (l4_len < wire::kMinTcpHeader || headers > std::min<std::size_t>(frame.len, w.tso_header)) return fits;
  fill_checksums(e, frame, true);
  if ((frame.flags & kTxL4Checksum) == 0) return fits;  // a fragment
  frame.l4_len = static_cast<std::uint16_t>(l4_len);
  frame.tso_mss = w.tso_mss;
  if (frame.frame_len <= headers + w.tso_mss) return fits;
  frame.flags |= kTxTso;
  return headers + w.tso_mss <= most;
}

void end_raw(Engine& e, Qp& qp, ibv_wc_status status) {
  const std::uint32_t n = qp.sq.head;
  qp.sq.head = qp.sq.cursor = qp.sq.begun = n + 1;
  complete_send(e, qp, qp.sq.at(n), status);
  if (status != IBV_WC_SUCCESS) to_error(e, qp);
}

bool gather_frame(Engine& e, Qp& qp, std::uint32_t n, const SendWqe& w, FrameWriter& writer) {
  if (w.opcode == IBV_WR_TSO) writer.append(qp.sq.inlined(n), w.tso_header);
  if ((w.flags & IBV_SEND_INLINE) != 0) {
    writer.append(qp.sq.inlined(n), w.length);
    return true;
  }
  return for_each_piece(e.memory, *qp.pd, {qp.sq.sges(n), w.sges}, 0, 0, w.length,
                        [&](const std::byte* at, std::size_t len) { writer.append(at, len); });
}

}  // namespace

bool on_raw_frame(Engine& e, Packet& frame, bool sniff) {
  if (e.steering.has_sniffers()) sniff_frame(e, frame);
  if (sniff || e.steering.size() == 0) {
    if (!sniff) e.counters.rx_unsteered++;
    return false;
  }
  if (e.raw_waiting.empty()) {
    e.raw_deadline = e.now + kRawPatience;
    if (hand_on(e, frame)) return false;
  } else if (e.raw_waiting.count() == kMostWaiting) {
    e.counters.rx_no_receive++;
    return false;
  }
  e.raw_waiting.push(&frame);
  return true;
}

std::size_t hand_on_waiting(Engine& e) {
  std::size_t n = 0;
  for (; !e.raw_waiting.empty() && hand_on(e, *e.raw_waiting.front()); n++) e.tx.free(e.raw_waiting.pop());
  return n;
}

Step send_raw(Engine& e, Qp& qp) {
  SendQueue& sq = qp.sq;
  if (qp.state() != IBV_QPS_RTS || sq.head == sq.tail) return Step::kIdle;
  if (!e.tx.has_room()) return Step::kBlocked;
  const SendWqe& w = sq.at(sq.head);
  const bool whole = w.opcode != IBV_WR_TSO;
  if (whole && w.length < sizeof(wire::Ethernet)) {
    end_raw(e, qp, IBV_WC_LOC_LEN_ERR);
    return Step::kSent;
  }
  if (whole && w.length > e.config.mtu + sizeof(wire::Ethernet)) {  // lost, as a card would lose it
    e.counters.tx_too_long++;
    end_raw(e, qp, IBV_WC_SUCCESS);
    return Step::kSent;
  }
  FrameWriter writer(e.tx);
  const bool read = gather_frame(e, qp, sq.head, w, writer);
  if (!read) {
    end_raw(e, qp, IBV_WC_LOC_PROT_ERR);
    return Step::kSent;
  }
  if (!writer.ok()) {
    e.counters.no_buffer++;
    return Step::kBlocked;
  }
  Packet& frame = *writer.take();
  if (w.opcode == IBV_WR_TSO) {
    if (!fill_tso(e, frame, w)) {  // lost, as a card would lose it
      e.counters.tx_too_long++;
      e.tx.free(&frame);
      end_raw(e, qp, IBV_WC_SUCCESS);
      return Step::kSent;
    }
  } else if ((w.flags & IBV_SEND_IP_CSUM) != 0) {
    fill_checksums(e, frame, false);
  }
  e.counters.tx_raw++;
  e.tx.send(&frame);
  end_raw(e, qp, IBV_WC_SUCCESS);
  return Step::kSent;
}

}  // namespace bypass::rdma
