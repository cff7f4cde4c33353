// The programs of a shared interface, run by the kernel on one frame at a time (BPF_PROG_TEST_RUN), without an
// interface. A process that may not load programs skips these cases.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <unistd.h>

#include <string>

#include "backends/packet/flows/bpf.h"
#include "backends/packet/flows/flow_map.h"
#include "backends/packet/flows/shared_interface.h"
#include "backends/packet/flows/steering_program.h"
#include "backends/packet/libc.h"
#include "backends/plain_host.h"
#include "packet/frames.h"

namespace bypass::packet {
namespace {

constexpr MacAddress kOurs{{2, 0, 0, 0, 0, 1}}, kOthers{{2, 0, 0, 0, 0, 2}};
constexpr IpAddress kLocal4 = IpAddress::from_v4(0x0a090001), kRemote4 = IpAddress::from_v4(0x0a090002);
constexpr IpAddress kLocal6{{0xfd, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}};
constexpr IpAddress kRemote6{{0xfd, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2}};
constexpr std::uint16_t kLocalPort = 4791, kRemotePort = 49'999;
constexpr std::uint32_t kShortest = 20, kLongest = 200;

enum class Verdict : std::uint8_t { kTaken, kCopied, kPassed, kMixed };
std::ostream& operator<<(std::ostream& out, Verdict v) {
  return out << (std::array{"taken", "copied", "passed", "mixed"})[static_cast<std::size_t>(v)];
}

void set_mac(Bytes& frame, const MacAddress& mac) {
  for (std::size_t i = 0; i < mac.bytes.size(); i++) frame[i] = std::byte{mac.bytes[i]};
}

Bytes ipv4(std::uint8_t protocol, const MacAddress& to = kOurs) {
  Bytes frame = make_frame(protocol, 40);
  set_mac(frame, to);
  put16(frame, kUdp, kRemotePort);
  put16(frame, kUdp + 2, kLocalPort);
  return frame;
}

// That many words of options after the header.
Bytes with_options(Bytes frame, std::size_t words) {
  frame[kIp] = static_cast<std::byte>(0x45 + words);
  frame.insert(frame.begin() + kUdp, words * 4, std::byte{1});
  return frame;
}

Bytes ipv6(std::uint8_t next_header) {
  Bytes frame(14 + 40 + 60);
  set_mac(frame, kOurs);
  put16(frame, 12, 0x86dd);
  frame[14] = std::byte{0x60};
  put16(frame, 18, 60);
  frame[20] = std::byte{next_header};
  for (std::size_t i = 0; i < 16; i++) frame[22 + i] = std::byte{kRemote6.bytes[i]};
  for (std::size_t i = 0; i < 16; i++) frame[38 + i] = std::byte{kLocal6.bytes[i]};
  put16(frame, 54, kRemotePort);
  put16(frame, 56, kLocalPort);
  return frame;
}

class SteeringTest : public testing::Test {
 protected:
  void SetUp() override {
    const char* missing = nullptr;
    ASSERT_TRUE(bind_libc(&PlainHost::host(), &missing)) << missing;
    if (const std::string lacks = missing_capabilities(); !lacks.empty()) GTEST_SKIP() << "programs take " << lacks;
    ASSERT_TRUE(flows_.create(interface_)) << errno;
    const SteeringPoint point{flows_.descriptor(), kOurs};
    ring_ = load_program(kSocketFilter, ring_filter(point, kShortest, kLongest));
    ingress_ = load_program(kIngress, ingress_filter(point));
    make_socket_map();
    driver_ = load_program(kXdp, xdp_redirect(point, socket_map_.get()));
    ASSERT_TRUE(ring_.is_open() && ingress_.is_open() && driver_.is_open()) << errno;
  }

  // A program that finds no socket passes the frame on.
  void make_socket_map() {
    socket_ = Descriptor(libc.socket(AF_XDP, SOCK_RAW, 0));
    bpf_attr attributes{};
    attributes.map_type = BPF_MAP_TYPE_XSKMAP;
    attributes.key_size = attributes.value_size = sizeof(int);
    attributes.max_entries = 1;
    socket_map_ = Descriptor(bpf(BPF_MAP_CREATE, attributes));
    const std::uint32_t queue = 0;
    const int socket = socket_.get();
    attributes = {};
    attributes.map_fd = static_cast<std::uint32_t>(socket_map_.get());
    attributes.key = reinterpret_cast<std::uint64_t>(&queue);
    attributes.value = reinterpret_cast<std::uint64_t>(&socket);
    ASSERT_EQ(bpf(BPF_MAP_UPDATE_ELEM, attributes), 0) << errno;
  }

  static std::uint32_t run(const Descriptor& program, const Bytes& frame) {
    bpf_attr attributes{};
    attributes.test.prog_fd = static_cast<std::uint32_t>(program.get());
    attributes.test.data_in = reinterpret_cast<std::uint64_t>(frame.data());
    attributes.test.data_size_in = static_cast<std::uint32_t>(frame.size());
    EXPECT_EQ(bpf(BPF_PROG_TEST_RUN, attributes), 0) << errno;
    return attributes.test.retval;
  }

  // At a test run, a socket filter begins after the Ethernet header. At a packet socket it begins before it.
  [[nodiscard]] bool ring_takes(Bytes frame) const {
    frame.insert(frame.begin(), 14, std::byte{});
    return run(ring_, frame) != 0;
  }

  // What all three programs together do with the frame.
  [[nodiscard]] Verdict verdict(const Bytes& frame) const {
    const bool ring = ring_takes(frame);
    const bool dropped = run(ingress_, frame) == 2, next = run(ingress_, frame) == ~0U;
    const bool redirected = run(driver_, frame) == XDP_REDIRECT, passed = run(driver_, frame) == XDP_PASS;
    if (ring && dropped && redirected) return Verdict::kTaken;
    if (!next || !passed) return Verdict::kMixed;
    return ring ? Verdict::kCopied : Verdict::kPassed;
  }

  static FlowSpec flow(std::uint8_t protocol, const IpAddress& local, const IpAddress& remote = {}) {
    const std::uint16_t remote_port = remote == IpAddress{} ? std::uint16_t{0} : kRemotePort;
    return {protocol, {local, kLocalPort}, {remote, remote_port}};
  }
  void steer(const FlowSpec& flow) { ASSERT_TRUE(flows_.steer(flow, true)) << errno; }

  // The flows are claimed for it in the whole namespace. Another case may run at the same time.
  const std::string interface_ = "test" + std::to_string(getpid());
  FlowMap flows_;
  Descriptor ring_, ingress_, driver_, socket_, socket_map_;
};

TEST_F(SteeringTest, WithoutFlows_EverythingIsTheKernels) {
  EXPECT_EQ(verdict(ipv4(IPPROTO_UDP)), Verdict::kPassed);
  EXPECT_EQ(verdict(ipv4(IPPROTO_TCP)), Verdict::kPassed);
  EXPECT_EQ(verdict(ipv6(IPPROTO_UDP)), Verdict::kPassed);
}

TEST_F(SteeringTest, LocalEnd_TakesItsProtocolAddressAndPort) {
  steer(flow(IPPROTO_UDP, kLocal4));
  EXPECT_EQ(verdict(ipv4(IPPROTO_UDP)), Verdict::kTaken);
  EXPECT_EQ(verdict(ipv4(IPPROTO_TCP)), Verdict::kPassed);
  EXPECT_EQ(verdict(ipv6(IPPROTO_UDP)), Verdict::kPassed);
  Bytes other_port = ipv4(IPPROTO_UDP), other_address = ipv4(IPPROTO_UDP), reversed = ipv4(IPPROTO_UDP);
  put16(other_port, kUdp + 2, kLocalPort + 1);
  put16(other_address, kIp + 18, 3);
  put16(reversed, kUdp, kLocalPort);
  put16(reversed, kUdp + 2, kRemotePort);
  EXPECT_EQ(verdict(other_port), Verdict::kPassed);
  EXPECT_EQ(verdict(other_address), Verdict::kPassed);
  EXPECT_EQ(verdict(reversed), Verdict::kPassed);
  ASSERT_TRUE(flows_.steer(flow(IPPROTO_UDP, kLocal4), false));
  EXPECT_EQ(verdict(ipv4(IPPROTO_UDP)), Verdict::kPassed);
}

TEST_F(SteeringTest, Connection_TakesItsRemoteEndAlone) {
  steer(flow(IPPROTO_TCP, kLocal4, kRemote4));
  EXPECT_EQ(verdict(ipv4(IPPROTO_TCP)), Verdict::kTaken);
  EXPECT_EQ(verdict(ipv4(IPPROTO_UDP)), Verdict::kPassed);
  Bytes other_port = ipv4(IPPROTO_TCP), other_address = ipv4(IPPROTO_TCP);
  put16(other_port, kUdp, kRemotePort + 1);
  put16(other_address, kIp + 14, 3);
  EXPECT_EQ(verdict(other_port), Verdict::kPassed);
  EXPECT_EQ(verdict(other_address), Verdict::kPassed);
}

TEST_F(SteeringTest, Ipv6_IsSteeredAlike) {
  steer(flow(IPPROTO_UDP, kLocal6));
  steer(flow(IPPROTO_TCP, kLocal6, kRemote6));
  EXPECT_EQ(verdict(ipv6(IPPROTO_UDP)), Verdict::kTaken);
  EXPECT_EQ(verdict(ipv6(IPPROTO_TCP)), Verdict::kTaken);
  EXPECT_EQ(verdict(ipv4(IPPROTO_UDP)), Verdict::kPassed);
  Bytes other = ipv6(IPPROTO_TCP);
  other[22 + 15] = std::byte{3};
  EXPECT_EQ(verdict(other), Verdict::kPassed);
  for (const std::uint8_t between : {IPPROTO_FRAGMENT, IPPROTO_HOPOPTS, IPPROTO_ICMPV6})
    EXPECT_EQ(verdict(ipv6(between)), Verdict::kPassed) << int{between};
}

TEST_F(SteeringTest, OptionsOfIpv4_LieBeforeThePorts) {
  steer(flow(IPPROTO_UDP, kLocal4));
  for (std::size_t words = 1; words <= 10; words++)
    EXPECT_EQ(verdict(with_options(ipv4(IPPROTO_UDP), words)), Verdict::kTaken) << words;
  Bytes short_header = ipv4(IPPROTO_UDP), other_version = ipv4(IPPROTO_UDP);
  short_header[kIp] = std::byte{0x44};
  other_version[kIp] = std::byte{0x55};
  EXPECT_EQ(verdict(short_header), Verdict::kPassed);
  EXPECT_EQ(verdict(other_version), Verdict::kPassed);
}

TEST_F(SteeringTest, Fragments_AreTheKernels) {
  steer(flow(IPPROTO_UDP, kLocal4));
  for (const std::size_t field : {0x2000, 0x2001, 0x0001, 0x1fff, 0x0100}) {
    Bytes fragment = ipv4(IPPROTO_UDP);
    put16(fragment, kIp + 6, field);
    EXPECT_EQ(verdict(fragment), Verdict::kPassed) << field;
  }
  Bytes whole = ipv4(IPPROTO_UDP);
  put16(whole, kIp + 6, 0x4000);  // must not be fragmented, and is not
  EXPECT_EQ(verdict(whole), Verdict::kTaken);
}

TEST_F(SteeringTest, CutFrames_AreTheKernels) {
  steer(flow(IPPROTO_UDP, kLocal4));
  steer(flow(IPPROTO_UDP, kLocal6));
  for (const Bytes& whole : {with_options(ipv4(IPPROTO_UDP), 10), ipv6(IPPROTO_UDP)}) {
    const bool v4 = whole[12] == std::byte{8};
    const std::size_t header_end = v4 ? kUdp : 54, ports_end = (v4 ? kUdp + 40 : 54) + 4;
    for (std::size_t n = 14; n < whole.size(); n++) {
      const Bytes cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(n));
      const bool steered = n >= ports_end;
      EXPECT_EQ(run(driver_, cut), steered ? XDP_REDIRECT : XDP_PASS) << n;
      if (n < header_end) continue;  // the kernel runs the others on no such packet
      EXPECT_EQ(verdict(cut), steered ? Verdict::kTaken : Verdict::kPassed) << n;
    }
  }
}

TEST_F(SteeringTest, FramesToOtherMacAddresses_AreNotOurs) {
  steer(flow(IPPROTO_UDP, kLocal4));
  steer({});
  EXPECT_EQ(verdict(ipv4(IPPROTO_UDP, kOthers)), Verdict::kPassed);
}

TEST_F(SteeringTest, GroupsArpAndNeighbourDiscovery_ComeAsCopies) {
  for (const bool everything : {false, true}) {
    if (everything) steer({});
    EXPECT_EQ(verdict(ipv4(IPPROTO_UDP, MacAddress::broadcast())), Verdict::kCopied);
    EXPECT_EQ(verdict(ipv4(IPPROTO_UDP, {{1, 0, 0x5e, 0, 0, 1}})), Verdict::kCopied);
    Bytes arp = ipv4(IPPROTO_UDP);
    put16(arp, 12, 0x0806);
    EXPECT_EQ(verdict(arp), Verdict::kCopied);
    for (unsigned type = 128; type < 140; type++) {
      Bytes icmp = ipv6(IPPROTO_ICMPV6);
      icmp[54] = static_cast<std::byte>(type);
      const Verdict echo = everything ? Verdict::kTaken : Verdict::kPassed;
      EXPECT_EQ(verdict(icmp), type >= 133 && type <= 137 ? Verdict::kCopied : echo) << type;
    }
  }
}

TEST_F(SteeringTest, EveryFrame_IsEverythingToTheMacAddress) {
  steer({});
  Bytes experimental = ipv4(IPPROTO_UDP), fragment = ipv4(IPPROTO_UDP), vlan = ipv4(IPPROTO_UDP);
  put16(experimental, 12, 0x88b5);
  put16(fragment, kIp + 6, 0x2001);
  EXPECT_EQ(verdict(experimental), Verdict::kTaken);
  EXPECT_EQ(verdict(fragment), Verdict::kTaken);
  EXPECT_EQ(verdict(ipv4(IPPROTO_ICMP)), Verdict::kTaken);
  for (const std::size_t tag : {0x8100, 0x88a8}) {
    put16(vlan, 12, tag);
    EXPECT_EQ(verdict(vlan), Verdict::kPassed) << tag;
  }
}

TEST_F(SteeringTest, Ring_TakesFramesOfItsLengths) {
  steer({});
  for (const std::size_t n : {kShortest, kShortest + 1, kLongest}) {
    Bytes frame = ipv4(IPPROTO_UDP);
    frame.resize(n);
    EXPECT_TRUE(ring_takes(frame)) << n;
  }
  for (const std::size_t n : {kShortest - 1, kLongest + 1}) {
    Bytes frame = ipv4(IPPROTO_UDP);
    frame.resize(n);
    EXPECT_FALSE(ring_takes(frame)) << n;
  }
}

TEST_F(SteeringTest, WhatTheMapCannotExpress_IsRefused) {
  const FlowSpec none[] = {{IPPROTO_ICMP, {kLocal4, 1}, {}},
                           {IPPROTO_TCP, {kLocal4, 0}, {}},
                           {IPPROTO_TCP, {{}, 80}, {}},
                           {IPPROTO_TCP, {kLocal4, 80}, {kRemote4, 0}},
                           {IPPROTO_TCP, {kLocal4, 80}, {{}, 80}},
                           {IPPROTO_TCP, {kLocal4, 80}, {kRemote6, 80}},
                           {0, {kLocal4, 80}, {}},
                           {0, {}, {kRemote4, 80}}};
  for (const FlowSpec& each : none) {
    EXPECT_FALSE(key_of(each));
    EXPECT_FALSE(flows_.steer(each, true));
  }
  EXPECT_FALSE(flows_.steer(flow(IPPROTO_TCP, kLocal4), false)) << "it was never steered";
}

TEST_F(SteeringTest, WhatIsWaitedFor_IsOnesAlone) {
  FlowMap second;
  ASSERT_TRUE(second.create(interface_));
  for (const FlowSpec& each : {flow(IPPROTO_UDP, kLocal4), flow(IPPROTO_TCP, kLocal6), FlowSpec{}}) {
    EXPECT_TRUE(flows_.steer(each, true));
    EXPECT_FALSE(flows_.steer(each, true));
    EXPECT_FALSE(second.steer(each, true));
    EXPECT_TRUE(flows_.steer(each, false));
    EXPECT_TRUE(second.steer(each, true));
    EXPECT_TRUE(second.steer(each, false));
  }
  EXPECT_NE(
      PlainHost::said().find("(pid " + std::to_string(getpid()) + ") has UDP port 4791 of 10.9.0.1 steered to it"),
      std::string::npos)
      << PlainHost::said();
  // The port of a connection belongs to the end that chose it.
  EXPECT_TRUE(flows_.steer(flow(IPPROTO_TCP, kLocal4, kRemote4), true));
  EXPECT_TRUE(second.steer(flow(IPPROTO_TCP, kLocal4, kRemote4), true));
}

TEST(SharedInterface, KernelsWithoutTcx_AreToldTheOtherWay) {
  EXPECT_NE(ingress_problem(EINVAL, "eth7").find("use af_xdp:eth7"), std::string::npos);
  EXPECT_EQ(ingress_problem(ENODEV, "eth7"), "No such device");
}

}  // namespace
}  // namespace bypass::packet
