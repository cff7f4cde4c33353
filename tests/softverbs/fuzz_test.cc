// A hostile wire: RoCE packets with anything changed and a right ICRC, in any order. No byte outside of registered
// memory, or between the elements of a request, is read or written. AddressSanitizer and the guards around them check
// that. Nothing is written without the right to.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "softverbs/engine/memory_table.h"
#include "softverbs/engine/qp/held_packets.h"
#include "softverbs/fabric.h"
#include "softverbs/roce_frame.h"

namespace bypass::rdma::test {
namespace {

using sim::Bytes;

constexpr std::size_t kRegion = 16'384, kGuard = 4096;
// Where receive requests and answers go: places of three elements, with gaps between and behind them.
constexpr std::size_t kElements = 3, kGap = 37, kPlace = 8192, kPlaces = 5;
constexpr std::byte kFill{0xa5};

struct Front {
  const char* name;
  bool ours = false;  // the packets say that they come from an end of ours
  bool v6 = false;
  bool srq = false;  // one for all queue pairs
  ibv_mtu mtu = IBV_MTU_1024;
  std::size_t rx_segment = 0;
};

class Hostile {
 public:
  Hostile(std::uint64_t seed, const Front& front)
      : front_(front), random_(seed), fabric_(seed), end_(fabric_.add_end(end_config(front))) {
    sim::PortConfig port;
    port.mac = mac(2);
    port.caps.mtu = end_config(front).mtu;
    port.buffers = 256;
    probe_ = &fabric_.wire().add_port(port);
    end_.device().set_neighbour(peer(), mac(2));
    std::ranges::fill(places_, kFill);
    const auto places = reinterpret_cast<std::uintptr_t>(places_.data());
    places_mr_ = end_.device().reg_mr(end_.pd(), places_.data(), places_.size(), places, IBV_ACCESS_LOCAL_WRITE).object;
    if (front.srq) srq_ = end_.device().create_srq(end_.pd(), {64, kElements, 0}, nullptr).object;
    const auto at = reinterpret_cast<std::uintptr_t>(memory_.data() + kGuard);
    std::ranges::fill(memory_, kFill);
    writable_ = register_at(at, kRegion / 2, End::kAllAccess | IBV_ACCESS_MW_BIND);
    window_ = end_.device().alloc_mw(end_.pd(), IBV_MW_TYPE_2).object;
    readable_ = register_at(at + kRegion / 2, kRegion / 2, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
    for (const ibv_qp_type type : {IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_XRC_RECV, IBV_QPT_XRC_SEND})
      halves_.push_back(make(type));
  }

  void run(int rounds) {
    for (int i = 0; i < rounds; i++) {
      for (Half& half : halves_) keep_alive(half);
      fabric_.wire().inject(0, one_frame());
      if (random_.chance(0.3)) fabric_.run_for(Duration{static_cast<std::int64_t>(random_.below(3'000'000))});
      drain();
    }
    fabric_.run_for(1s);
    for (Half& half : halves_) half.to_state(IBV_QPS_RESET);
    EXPECT_LE(end_.port().buffers_out(), 32U) << "what lies at hand for sending apart";
    EXPECT_TRUE(untouched(0, kGuard)) << "in front of the region";
    EXPECT_TRUE(untouched(kGuard + kRegion / 2, kRegion / 2 + kGuard)) << "read-only memory, and behind the region";
    EXPECT_TRUE(gaps_untouched()) << "between elements";
  }
  [[nodiscard]] const Counters& counters() const { return end_.counters(); }
  [[nodiscard]] bool was_written() const { return !untouched(kGuard, kRegion / 2); }
  /// To the last element of a receive request.
  [[nodiscard]] bool was_received() const {
    return reached_the_end(0) || reached_the_end(1) || reached_the_end(2) || reached_the_end(3);
  }
  [[nodiscard]] bool was_read_into() const { return reached_the_end(kPlaces - 1); }

 private:
  Mr* register_at(std::uintptr_t at, std::size_t length, unsigned access) {
    return end_.device().reg_mr(end_.pd(), reinterpret_cast<void*>(at), length, at, access).object;
  }
  Half make(ibv_qp_type type) {
    PairConfig config{.type = type, .depth = 16, .timeout = 8, .retries = 1};
    if (type != IBV_QPT_XRC_RECV && type != IBV_QPT_XRC_SEND) config.srq = srq_;
    config.psn = 0;
    return {end_, config};
  }
  [[nodiscard]] bool untouched(std::size_t from, std::size_t length) const {
    return std::all_of(memory_.begin() + static_cast<std::ptrdiff_t>(from),
                       memory_.begin() + static_cast<std::ptrdiff_t>(from + length),
                       [](std::byte b) { return b == kFill; });
  }

  static EndConfig end_config(const Front& front) {
    return {.mtu = (128U << front.mtu) + kMaxOverhead, .rx_segment = front.rx_segment};
  }
  [[nodiscard]] IpAddress peer() const { return front_.v6 ? link_local(2) : ip("10.9.0.2"); }
  [[nodiscard]] std::size_t mtu() const { return std::size_t{128} << front_.mtu; }

  // A packet fills all of them.
  [[nodiscard]] std::size_t element_length(std::size_t index) const {
    return std::array<std::size_t, kElements>{52, 300, mtu() - 352}[index];
  }
  [[nodiscard]] std::size_t element_at(std::size_t index) const {
    return index == 0 ? 0 : element_at(index - 1) + element_length(index - 1) + kGap;
  }
  std::array<ibv_sge, kElements> elements(std::size_t place) {
    std::array<ibv_sge, kElements> sges;
    for (std::size_t i = 0; i < sges.size(); i++)
      sges[i] = {reinterpret_cast<std::uintptr_t>(places_.data() + place * kPlace + element_at(i)),
                 static_cast<std::uint32_t>(element_length(i)), Device::lkey(*places_mr_)};
    return sges;
  }
  [[nodiscard]] bool filled(std::size_t from, std::size_t length) const {
    return std::all_of(places_.begin() + static_cast<std::ptrdiff_t>(from),
                       places_.begin() + static_cast<std::ptrdiff_t>(from + length),
                       [](std::byte b) { return b == kFill; });
  }
  [[nodiscard]] bool gaps_untouched() const {
    for (std::size_t place = 0; place < kPlaces; place++)
      for (std::size_t i = 0; i < kElements; i++) {
        const std::size_t from = element_at(i) + element_length(i), to = i + 1 < kElements ? element_at(i + 1) : kPlace;
        if (!filled(place * kPlace + from, to - from)) return false;
      }
    return true;
  }
  [[nodiscard]] bool reached_the_end(std::size_t place) const {
    return !filled(place * kPlace + element_at(kElements - 1), element_length(kElements - 1));
  }

  void post_receive(Half& half, std::uint64_t i) {
    const auto sges = elements(i);
    const ReceiveRequest request{i, std::span{sges}.first(random_.below(sges.size() + 1))};
    if (half.srq != nullptr)
      end_.device().post_srq_receive(*half.srq, request);
    else
      end_.device().post_receive(*half.qp, request);
  }

  // Repairs a queue pair that the fuzz has broken. It then has receive requests, and requests under way.
  void keep_alive(Half& half) {
    if (half.state() != IBV_QPS_RTS) {
      half.to_state(IBV_QPS_RESET);
      Pair::init(half);
      connect(half);
      Pair::to_rts(half);
    }
    for (std::uint64_t i = 0; i + 1 < kPlaces; i++) post_receive(half, i);
    bind_window(half);
    SendRequest request;
    request.ah = half.ah;
    request.remote_addr = 0x1000;
    if (half.config.type == IBV_QPT_RC || half.config.type == IBV_QPT_XRC_SEND)
      request.opcode =
          std::array{IBV_WR_SEND, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_ATOMIC_FETCH_AND_ADD}[random_.below(4)];
    const auto sges = elements(kPlaces - 1);
    half.send(request, sges);
  }
  // Peers invalidate it.
  void bind_window(Half& half) {
    if (half.config.type != IBV_QPT_RC || window_->region != nullptr) return;
    half.send({.opcode = IBV_WR_BIND_MW,
               .rkey = Device::rkey(*window_),
               .window = window_,
               .region = writable_,
               .bind_addr = reinterpret_cast<std::uintptr_t>(memory_.data() + kGuard),
               .bind_length = kRegion / 4,
               .bind_access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ},
              {});
  }
  void connect(Half& half) {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_RTR;
    attr.ah_attr.is_global = 1;
    attr.ah_attr.grh.sgid_index = front_.v6 ? 0 : 1;
    std::ranges::copy(peer().bytes, attr.ah_attr.grh.dgid.raw);
    attr.path_mtu = front_.mtu;
    attr.dest_qp_num = 0x77;
    attr.max_dest_rd_atomic = 2;
    unsigned mask = IBV_QP_STATE;
    if (half.config.type != IBV_QPT_UD) mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    if (half.config.type == IBV_QPT_RC || half.config.type == IBV_QPT_XRC_RECV)
      mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    half.modify(attr, mask);
    if (half.ah == nullptr) half.ah = end_.device().create_ah(end_.pd(), attr.ah_attr).object;
  }

  std::uint64_t any_of(std::initializer_list<std::uint64_t> values) {
    return values.begin()[random_.below(values.size())];
  }

  // Mostly packets that could be right: packets that are refused at once find no faults.
  std::uint64_t address() {
    const auto at = reinterpret_cast<std::uintptr_t>(memory_.data() + kGuard);
    switch (random_.below(4)) {
      case 0:
        return at + random_.below(kRegion);
      case 1:
        return at + any_of({0, kRegion / 2, kRegion, kRegion / 2 - 8, std::uint64_t(0) - 1});
      case 2:
        return (at + random_.below(kRegion)) & ~std::uint64_t{7};
      default:
        return random_.next();
    }
  }
  std::uint32_t key() {
    return static_cast<std::uint32_t>(any_of({Device::rkey(*writable_), Device::rkey(*writable_),
                                              Device::rkey(*readable_), Device::rkey(*window_), random_.next()}));
  }
  std::uint32_t length() {
    return static_cast<std::uint32_t>(
        any_of({0, 1, 8, mtu(), 1500, 2048, kRegion, 0xffffffff, 0x80000000, random_.below(3 * mtu())}));
  }

  Bytes extensions(std::uint8_t opcode) {
    Deth deth;
    deth.qkey = 0x11111111;
    deth.source_qpn = 5;
    Bytes rest = (opcode & kServiceMask) == kServiceUd ? bytes_of_headers(deth) : Bytes{};
    const auto add = [&](const Bytes& more) { rest.insert(rest.end(), more.begin(), more.end()); };
    const std::uint16_t t = traits(static_cast<Op>(opcode & 31));
    if ((opcode & kServiceMask) == kServiceXrc && (t & kOpResponse) == 0) {
      Xrceth xrc;
      xrc.srqn = static_cast<std::uint32_t>(any_of({1, 1, 1, 1, 1, 1, 1, 0, 2, random_.next()}));
      add(bytes_of_headers(xrc));
    }
    if ((t & kOpReth) != 0) add(bytes_of_headers(reth(address(), key(), length())));
    if ((t & kOpAtomic) != 0) {
      AtomicEth atomic;
      atomic.address = address();
      atomic.rkey = key();
      atomic.swap_add = atomic.compare = 0;
      atomic.swap_add = random_.next();
      add(bytes_of_headers(atomic));
    }
    if ((t & kOpInv) != 0) {
      wire::Be32 invalidated;
      invalidated = key();
      add(bytes_of_headers(invalidated));
    }
    if ((t & kOpAeth) != 0)
      add(bytes_of_headers(
          aeth(static_cast<std::uint8_t>(any_of({0x1f, 0x1f, 0x60, 0x61, 0x62, 0x21, random_.below(256)})))));
    add(Bytes(any_of({0, 4, 8, 100, mtu(), mtu(), mtu(), random_.below(mtu() + 500)}),
              static_cast<std::byte>(random_.next())));
    if (front_.ours && static_cast<Op>(opcode) == Op::kAcknowledge) {  // a NAK of ours says what it holds
      rest.resize(sizeof(Aeth) + kHoldAhead / 8);
      for (std::size_t i = sizeof(Aeth); i < rest.size(); i++) rest[i] = static_cast<std::byte>(random_.next());
    }
    return rest;
  }

  Bytes one_frame() {
    const std::size_t which = random_.below(halves_.size());
    ibv_qp_attr attr;
    ibv_qp_init_attr init;
    Device::query_qp(*halves_[which].qp, attr, init);
    RoceOptions options;
    const auto service =
        static_cast<std::uint8_t>(std::array{kServiceRc, kServiceUc, kServiceUd, kServiceXrc, kServiceXrc}[which]);
    options.opcode = static_cast<std::uint8_t>(service | random_.below(24));
    options.qpn = Device::qpn(*halves_[which].qp);
    const std::uint32_t base = (traits(static_cast<Op>(options.opcode & 31)) & kOpResponse) != 0 ? 0 : attr.rq_psn;
    options.psn =
        static_cast<std::uint32_t>(base + any_of({0, 0, 0, 0, 1, 2, kPsnMask, random_.below(8), random_.next()})) &
        kPsnMask;
    options.ack_request = random_.chance(0.7);
    options.v6 = front_.v6;
    if (front_.ours) options.mark = static_cast<std::uint8_t>(kBthOurs >> kBthRoundShift | random_.below(4));
    Bytes frame = roce_frame(options, extensions(options.opcode));
    mutate(frame);
    return frame;
  }

  void mutate(Bytes& frame) {
    if (random_.chance(0.2)) {
      for (std::uint64_t n = 1 + random_.below(4); n != 0; n--)
        frame[14 + random_.below(frame.size() - 14)] = static_cast<std::byte>(random_.next());
    }
    if (random_.chance(0.05)) frame.resize(1 + random_.below(frame.size()));
    // Most packets get a right ICRC again. So wrong lengths must be found by looking at them.
    const std::size_t ip_len = frame.size() > 60 ? std::to_integer<std::size_t>(frame[14] & std::byte{0x0f}) * 4 : 0;
    if (random_.chance(0.9) && frame.size() > 60 && 14 + ip_len <= frame.size()) fix_sums(frame);
  }

  void drain() {
    for (Cq* cq : {&end_.cq()}) end_.poll(*cq);
    end_.events();
    std::array<Packet*, 64> frames;
    for (std::size_t n; (n = probe_->receive(0, frames)) != 0;) probe_->free(std::span{frames}.first(n));
  }

  Front front_;
  alignas(64) std::array<std::byte, kGuard + kRegion + kGuard> memory_;
  sim::Random random_;
  Fabric fabric_;
  End& end_;
  sim::SimPort* probe_;
  std::array<std::byte, kPlaces * kPlace> places_;
  Mr *writable_, *readable_, *places_mr_, *window_;
  Srq* srq_ = nullptr;
  std::vector<Half> halves_;
};

class Fuzz : public ::testing::TestWithParam<Front> {};

TEST_P(Fuzz, MutatedPackets_WriteNothingThatIsNotTheirs) {
  bool written = false, received = false, read_into = false;
  Counters sum;
  for (std::uint64_t seed = 1; seed <= 8; seed++) {
    SCOPED_TRACE(seed);
    const auto hostile = std::make_unique<Hostile>(seed, GetParam());
    hostile->run(2500);
    written |= hostile->was_written();
    received |= hostile->was_received();
    read_into |= hostile->was_read_into();
    sum.tx_nak += hostile->counters().tx_nak;
    sum.rx_malformed += hostile->counters().rx_malformed;
    sum.rx_bad_icrc += hostile->counters().rx_bad_icrc;
    sum.duplicate_request += hostile->counters().duplicate_request;
    sum.rx_held += hostile->counters().rx_held;
    if (HasFailure()) return;
  }
  // The fuzzer gets past the first checks.
  EXPECT_TRUE(written);
  EXPECT_TRUE(received);
  EXPECT_TRUE(read_into);
  EXPECT_GT(sum.tx_nak, 20U);
  EXPECT_GT(sum.rx_malformed, 20U);
  EXPECT_GT(sum.rx_bad_icrc, 20U);
  EXPECT_GT(sum.duplicate_request, 20U);
  EXPECT_EQ(sum.rx_held > 20, GetParam().ours);
}

INSTANTIATE_TEST_SUITE_P(Fronts, Fuzz,
                         ::testing::Values(Front{"Ipv4"}, Front{"Ipv4Ours", true}, Front{"Ipv6", false, true},
                                           Front{"Ipv6Ours", true, true}, Front{"SharedReceives", false, false, true},
                                           Front{"SharedReceivesIpv6Ours", true, true, true},
                                           Front{"Mtu4096", false, false, false, IBV_MTU_4096},
                                           Front{"Mtu4096Ours", true, false, false, IBV_MTU_4096},
                                           Front{"Mtu4096InOddBuffersIpv6", false, true, true, IBV_MTU_4096, 333},
                                           Front{"InOddBuffersOurs", true, false, true, IBV_MTU_1024, 211}),
                         [](const auto& front) { return std::string(front.param.name); });

TEST(FuzzedFrames, OfAnyBytes_AreSurvived) {
  Fabric fabric;
  End& end = fabric.add_end();
  Half raw(end, {.type = IBV_QPT_RAW_PACKET});
  Pair::init(raw), raw.to_state(IBV_QPS_RTR), raw.to_state(IBV_QPS_RTS);
  FlowRule rule;
  rule.type = IBV_FLOW_ATTR_SNIFFER;
  ASSERT_NE(end.device().create_flow(*raw.qp, rule).object, nullptr);
  sim::Random random(7);
  for (int i = 0; i < 20'000; i++) {
    Bytes frame(1 + random.below(130));
    for (std::byte& b : frame) b = static_cast<std::byte>(random.next());
    constexpr std::array<std::uint16_t, 3> kTypes = {0x0800, 0x0806, 0x86dd};
    if (frame.size() >= 14) {
      const std::uint16_t type = kTypes[random.below(3)];
      frame[12] = static_cast<std::byte>(type >> 8);
      frame[13] = static_cast<std::byte>(type);
    }
    if (frame.size() > 15) frame[14] = static_cast<std::byte>(random.chance(0.5) ? 0x45 : 0x60);
    fabric.wire().inject(0, frame);
    raw.receive(1, 0, 2048);
    if (i % 50 == 0) fabric.run_for(1us);
  }
  fabric.settle();
  EXPECT_GT(end.counters().rx_raw, 100U);
}

}  // namespace
}  // namespace bypass::rdma::test
