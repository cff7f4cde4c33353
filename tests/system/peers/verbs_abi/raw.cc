// Whole Ethernet frames between two devices of one process: soft0 and soft1 are the ends of one wire. Environment:
// WIRE_MTU, of both.
#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "program.h"

namespace verbs_abi {
namespace {

constexpr std::size_t kEthernet = 14, kIpv4 = 20, kTcp = 20, kRoom = 16384, kHeaders = kEthernet + kIpv4 + kTcp;

std::size_t wire_mtu() {
  CHECK(std::getenv("WIRE_MTU") != nullptr);
  return static_cast<std::size_t>(std::atoi(std::getenv("WIRE_MTU")));
}

/// One end: a queue pair with requests built call by call, and what is sent to its device's MAC address.
struct RawEnd {
  Device device;
  ibv_cq* cq = ibv_create_cq(device.context, 256, nullptr, nullptr, 0);
  ibv_qp* qp = nullptr;
  ibv_flow* flow = nullptr;
  std::vector<char> out = std::vector<char>(4 * kRoom), in = std::vector<char>(64 * kRoom);
  ibv_mr* out_mr = ibv_reg_mr(device.pd, out.data(), out.size(), 0);
  ibv_mr* in_mr = ibv_reg_mr(device.pd, in.data(), in.size(), IBV_ACCESS_LOCAL_WRITE);
  std::uint8_t mac[6];

  RawEnd(int number, std::uint64_t operations) : device(number) {
    CHECK(cq != nullptr && out_mr != nullptr && in_mr != nullptr);
    ibv_gid gid{};
    CHECK(ibv_query_gid(device.context, 1, 0, &gid) == 0);  // RFC 4291 A
    const std::uint8_t* const id = gid.raw + 8;
    const std::uint8_t own[] = {static_cast<std::uint8_t>(id[0] ^ 2), id[1], id[2], id[5], id[6], id[7]};
    std::memcpy(mac, own, sizeof mac);
    ibv_qp_init_attr_ex init{};
    init.send_cq = init.recv_cq = cq;
    init.cap = {16, 64, 4, 1, 64};
    init.qp_type = IBV_QPT_RAW_PACKET;
    init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS | IBV_QP_INIT_ATTR_MAX_TSO_HEADER;
    init.pd = device.pd;
    init.max_tso_header = kHeaders;
    init.send_ops_flags = operations;
    qp = ibv_create_qp_ex(device.context, &init);
    CHECK(qp != nullptr);
  }
  ~RawEnd() {
    CHECK(ibv_destroy_flow(flow) == 0 && ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
    CHECK(ibv_dereg_mr(in_mr) == 0 && ibv_dereg_mr(out_mr) == 0);
  }
  RawEnd(const RawEnd&) = delete;
  RawEnd& operator=(const RawEnd&) = delete;

  /// When both are there: it waits for the link.
  void start() {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT) == 0);
    for (const ibv_qp_state next : {IBV_QPS_RTR, IBV_QPS_RTS}) {
      attr.qp_state = next;
      CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
    }
    struct {
      ibv_flow_attr attr;
      ibv_flow_spec_eth eth;
    } rule{};
    rule.attr.type = IBV_FLOW_ATTR_NORMAL;
    rule.attr.size = sizeof rule;
    rule.attr.num_of_specs = 1;
    rule.attr.port = 1;
    rule.eth.type = IBV_FLOW_SPEC_ETH;
    rule.eth.size = sizeof rule.eth;
    std::memcpy(rule.eth.val.dst_mac, mac, sizeof mac);
    std::memset(rule.eth.mask.dst_mac, 0xff, sizeof rule.eth.mask.dst_mac);
    flow = ibv_create_flow(qp, &rule.attr);
    CHECK(flow != nullptr);
  }

  /// The Ethernet header of a frame to `to`, at the beginning of `out`.
  void address(const RawEnd& to, std::uint16_t type) {
    std::memcpy(out.data(), to.mac, 6);
    std::memcpy(out.data() + 6, mac, 6);
    out[12] = static_cast<char>(type >> 8);
    out[13] = static_cast<char>(type);
  }
  ibv_sge piece(std::size_t offset, std::size_t length) const {
    return {reinterpret_cast<std::uintptr_t>(out.data()) + offset, static_cast<std::uint32_t>(length), out_mr->lkey};
  }
  /// So many bytes of `out`. Returns how that ended.
  ibv_wc_status send(std::size_t length) {
    CHECK(post_send(qp, 1, piece(0, length)) == 0);
    return completion(cq).status;
  }
  void receive(std::size_t slot = 0, std::size_t room = kRoom) {
    post_receive(
        qp, 100 + slot,
        {reinterpret_cast<std::uintptr_t>(in.data()) + slot * kRoom, static_cast<std::uint32_t>(room), in_mr->lkey});
  }
  /// The next frame that has come.
  ibv_wc received(const char*& bytes) {
    const ibv_wc wc = completion(cq);
    CHECK(wc.wr_id >= 100 && wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV);
    bytes = in.data() + (wc.wr_id - 100) * kRoom;
    return wc;
  }
};

constexpr std::uint16_t kTestFrames = 0x88b5;  // IEEE Std 802: for local experiments

void fill(RawEnd& end, std::size_t seed) {
  for (std::size_t i = kEthernet; i < kRoom; i++) end.out[i] = static_cast<char>(i * 31 + seed + (i >> 8));
}

void expect_frame(const RawEnd& from, RawEnd& at, std::size_t length) {
  const char* bytes = nullptr;
  CHECK(at.received(bytes).byte_len == length);
  CHECK(std::memcmp(bytes, from.out.data(), length) == 0);
}

// Frames beyond what is usual pass up to what the wire takes. One that is larger is lost, as on a card's way out, and
// one for which the receiver has no room is not cut.
void large_raw_frames() {
  RawEnd ends[2] = {{0, IBV_QP_EX_WITH_SEND}, {1, IBV_QP_EX_WITH_SEND}};
  for (RawEnd& each : ends) each.start();
  const std::size_t largest = wire_mtu() + kEthernet;
  CHECK(largest > 1514 && largest < kRoom);
  for (const int from : {0, 1}) {
    RawEnd &sender = ends[from], &receiver = ends[1 - from];
    sender.address(receiver, kTestFrames);
    for (const std::size_t length : {std::size_t{60}, std::size_t{1514}, std::size_t{1515}, std::size_t{2048},
                                     std::size_t{4097}, largest - 1, largest}) {
      fill(sender, length);
      receiver.receive();
      CHECK(sender.send(std::min(length, largest)) == IBV_WC_SUCCESS);
      expect_frame(sender, receiver, std::min(length, largest));
    }
    fill(sender, 0);
    receiver.receive(0, largest - 1);
    for (const std::size_t too_large : {largest + 1, largest + 1000, kRoom, largest})
      CHECK(sender.send(too_large) == IBV_WC_SUCCESS);
    CHECK(sender.send(largest - 1) == IBV_WC_SUCCESS);
    expect_frame(sender, receiver, largest - 1);
  }
  CHECK(ends[0].send(kEthernet - 1) == IBV_WC_LOC_LEN_ERR);
}

std::uint32_t big_endian(const char* bytes, std::size_t count) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < count; i++) value = value << 8 | static_cast<std::uint8_t>(bytes[i]);
  return value;
}

void put(std::vector<char>& to, std::size_t at, std::uint32_t value, std::size_t count) {
  for (std::size_t i = 0; i < count; i++) to[at + i] = static_cast<char>(value >> 8 * (count - 1 - i));
}

constexpr std::uint32_t kFirstByte = 0xfffffff0;  // its numbers wrap on the way
constexpr std::uint32_t kPush = 8, kAck = 16;

// Ethernet, IPv4 and TCP, of a segment of so many bytes of payload.
void write_headers(RawEnd& from, const RawEnd& to, std::size_t payload) {
  from.address(to, 0x0800);
  std::fill_n(from.out.begin() + kEthernet, kIpv4 + kTcp, char{0});
  const std::size_t tcp = kEthernet + kIpv4;
  from.out[kEthernet] = 0x45;
  put(from.out, kEthernet + 2, static_cast<std::uint32_t>(kIpv4 + kTcp + payload), 2);
  from.out[kEthernet + 8] = 64;
  from.out[kEthernet + 9] = IPPROTO_TCP;
  put(from.out, kEthernet + 12, 0x0a090001, 4);
  put(from.out, kEthernet + 16, 0x0a090002, 4);
  put(from.out, tcp, 1000, 2);
  put(from.out, tcp + 2, 2000, 2);
  put(from.out, tcp + 4, kFirstByte, 4);
  put(from.out, tcp + 12, 5U << 12 | kPush | kAck, 2);
}

/// The sum over the header that RFC 1071 wants to be all ones.
bool header_sum_is_right(const char* ip) {
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i < kIpv4; i += 2) sum += big_endian(ip + i, 2);
  while (sum > 0xffff) sum = (sum & 0xffff) + (sum >> 16);
  return sum == 0xffff;
}

// A segment of many frames, which the device cuts: the other end gets them one by one, each with headers of its own.
void large_segments_by_calls() {
  constexpr std::uint64_t kOperations = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_TSO;
  RawEnd ends[2] = {{0, kOperations}, {1, kOperations}};
  for (RawEnd& each : ends) each.start();
  constexpr std::size_t kPayload = 20'000, kMss = 1000;
  for (const int from : {0, 1}) {
    RawEnd &sender = ends[from], &receiver = ends[1 - from];
    for (std::size_t slot = 0; slot < 32; slot++) receiver.receive(slot);
    fill(sender, 7);
    write_headers(sender, receiver, kPayload);
    for (std::size_t i = 0; i < kPayload; i++) sender.out[kHeaders + i] = static_cast<char>(i * 13 + (i >> 8));
    char headers[kHeaders];
    std::memcpy(headers, sender.out.data(), sizeof headers);
    ibv_qp_ex* const ex = ibv_qp_to_qp_ex(sender.qp);
    ibv_wr_start(ex);
    ex->wr_id = 7;
    ex->wr_flags = IBV_SEND_SIGNALED | IBV_SEND_IP_CSUM;
    ibv_wr_send_tso(ex, headers, sizeof headers, kMss);
    std::memset(headers, 0, sizeof headers);  // it has its own copy
    const ibv_sge pieces[] = {sender.piece(kHeaders, 5'001), sender.piece(kHeaders + 5'001, kPayload - 5'001)};
    ibv_wr_set_sge_list(ex, 2, pieces);
    CHECK(ibv_wr_complete(ex) == 0);
    const ibv_wc sent = completion(sender.cq);
    CHECK(sent.wr_id == 7 && sent.status == IBV_WC_SUCCESS && sent.opcode == IBV_WC_TSO);
    for (std::size_t seen = 0; seen < kPayload;) {
      const char* frame = nullptr;
      const ibv_wc wc = receiver.received(frame);
      const char *const ip = frame + kEthernet, *const tcp = ip + kIpv4;
      CHECK(wc.byte_len == kHeaders + kMss);
      CHECK(std::memcmp(frame, sender.out.data(), kEthernet) == 0);
      CHECK(big_endian(ip + 2, 2) == wc.byte_len - kEthernet && header_sum_is_right(ip));
      CHECK((wc.wc_flags & IBV_WC_IP_CSUM_OK) != 0);
      CHECK(big_endian(tcp + 4, 4) == static_cast<std::uint32_t>(kFirstByte + seen));
      const bool last = seen + kMss == kPayload;
      CHECK(big_endian(tcp + 12, 2) == (5U << 12 | kAck | (last ? kPush : 0)));
      CHECK(std::memcmp(tcp + kTcp, sender.out.data() + kHeaders + seen, kMss) == 0);
      seen += kMss;
    }
  }
}

constexpr Case kCases[] = {
    {"large_raw_frames", large_raw_frames, false},
    {"large_segments_by_calls", large_segments_by_calls, false},
};

}  // namespace

std::span<const Case> raw_cases() {
  return kCases;
}

}  // namespace verbs_abi
