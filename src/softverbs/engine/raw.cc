// Raw-packet queue pairs: whole Ethernet frames, in as the rules steer them, out as they are.
#include <algorithm>
#include <cstring>

#include "softverbs/engine/engine.h"
#include "softverbs/engine/large_frame.h"
#include "stack/checksum.h"

namespace bypass::rdma {
namespace {

// IBV_WC_IP_CSUM_OK speaks of the header and of what it carries. A port that knows of the latter alone leaves the
// former, some twenty bytes, to us: a frame from a neighbour in this machine may have no checksum behind it that could
// be verified.
bool checksums_are_good(const Packet& frame) {
  if ((frame.flags & kRxL4ChecksumGood) == 0) return false;
  if ((frame.flags & kRxIpChecksumGood) != 0) return true;
  if (!wire::fits<wire::Ipv4>(frame, sizeof(wire::Ethernet))) return false;
  const auto& ip = wire::at<wire::Ipv4>(frame, sizeof(wire::Ethernet));
  const std::size_t length = ip.header_len();
  return wire::at<wire::Ethernet>(frame, 0).type == wire::kEtherTypeIpv4 && length >= sizeof ip &&
         sizeof(wire::Ethernet) + length <= frame.len && checksum_finish(checksum(&ip, length)) == 0;
}

// `copy(to, n)` gives the frame's bytes one after the other.
template <typename Copy>
void deliver(Engine& e, const Flow& flow, std::uint32_t length, bool good_checksums, Copy&& copy) {
  Qp& qp = *flow.qp;
  const bool live = qp.state() == IBV_QPS_RTR || qp.state() == IBV_QPS_RTS || qp.state() == IBV_QPS_SQD;
  if (!live) {
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

void deliver(Engine& e, const Flow& flow, const Packet& frame) {
  const bool good = checksums_are_good(frame);
  if (good && frame.frame_len > e.config.mtu + sizeof(wire::Ethernet)) {
    LargeFrame large(frame, e.config.mtu);
    bool cut = false;
    for (; large.next(); cut = true)
      deliver(e, flow, large.length(), good, [&](std::byte* to, std::size_t n) { large.copy(to, n); });
    if (cut) return;
  }
  FrameReader reader(frame, 0);
  deliver(e, flow, frame.frame_len, good, [&](std::byte* to, std::size_t n) { reader.copy(to, n); });
}

// A frame to many goes to each queue pair once, whatever its rules.
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

// --- Checksums of frames to send

std::size_t l4_offset(const Packet& frame) {
  return sizeof(wire::Ethernet) + wire::at<wire::Ipv4>(frame, sizeof(wire::Ethernet)).header_len();
}

// Where the checksum lies in the L4 header; 0: no such protocol.
std::size_t l4_checksum_field(std::uint8_t protocol) {
  if (protocol == wire::kProtocolTcp) return 16;
  return protocol == wire::kProtocolUdp ? 6 : 0;
}

bool has_ipv4(const Packet& frame) {
  return wire::fits<wire::Ipv4>(frame, sizeof(wire::Ethernet)) &&
         wire::at<wire::Ethernet>(frame, 0).type == wire::kEtherTypeIpv4;
}

// IBV_SEND_IP_CSUM: the header's and the TCP or UDP checksum, whatever the fields hold. The port makes the latter
// where it can.
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

// A large segment for the port to cut. Its headers lie in the head, in one piece. False: what is no TCP over IPv4, or
// whose parts would not fit either, and is too long as it is.
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

void on_raw_frame(Engine& e, const Packet& frame, bool sniff) {
  if (e.steering.has_sniffers()) sniff_frame(e, frame);
  if (sniff || e.steering.size() == 0) {
    if (!sniff) e.counters.rx_unsteered++;
    return;
  }
  const FlowRule::Key key = Steering::key_of(frame);
  const bool to_many = key.destination.is_multicast();
  Delivered delivered;
  bool taken = false;
  e.steering.match(key, [&](Flow& flow) {
    taken = true;
    if (flow.rule.drop) return false;
    if (!to_many || delivered.add(flow.qp)) deliver(e, flow, frame);
    return to_many;
  });
  if (!taken) e.counters.rx_unsteered++;
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
  if (whole && w.length > e.config.mtu + sizeof(wire::Ethernet)) {  // lost, as on a card's way out
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
    if (!fill_tso(e, frame, w)) {  // lost, as on a card's way out
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
