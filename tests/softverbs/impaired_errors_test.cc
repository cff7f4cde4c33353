// Each way in which a reliable connection's request can fail, over wires that lose, double, reorder and damage packets.
// The status is right and in its place. Everything before it is done. Everything after it is flushed and has no effect.
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "softverbs/fabric.h"
#include "softverbs/impaired_wires.h"
#include "softverbs/roce_frame.h"

namespace bypass::rdma::test {
namespace {

class Failing;

struct Fault {
  const char* name;
  ibv_wc_status here;                           // the request's
  ibv_wc_status there = IBV_WC_SUCCESS;         // of the peer's receive request for it; success: it takes none
  bool refused = false;                         // by the peer, which ends as well
  ibv_event_type event = IBV_EVENT_SQ_DRAINED;  // the peer's; this one: none
  void (*post)(Failing&);
  std::uint8_t other_nak = 0;  // the peer's NAK, as a device that is not ours might have put it
  bool silence = false;        // the wire is cut
  std::uint8_t rd_atomic = 4;
  unsigned access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
};

using Statuses = std::vector<ibv_wc_status>;
constexpr std::size_t kMessage = 3000, kUntouched = 500'000;
constexpr std::byte kAcknowledge{0x11}, kWriteLastImm{0x09};

class Failing {
 public:
  Failing(const ImpairedWire& wire, const Fault& fault, std::uint64_t seed)
      : pair(config_for(fault), seed), fault_(fault), nak_is_lost_(seed % 4 == 0) {
    pair.fabric.acks = seed % 2 == 0 ? Acks::kLeave : Acks::kSend;
    impair(pair, wire.impairment);
    pair.fabric.wire().set_filter([this](std::size_t from, std::span<const std::byte> f) { return fate(from, f); });
    pair.fabric.wire().set_rewrite([this, strangers = seed % 3 == 0](std::size_t from, sim::Bytes& frame) {
      if (fault_.other_nak != 0 && is_fatal_nak(from, frame)) {
        frame[kSyndromeAt] = std::byte{fault_.other_nak};
        fix_sums(frame);
      }
      if (strangers) unmark(frame);
    });
  }

  void run() {
    // A peer in the error state sends nothing twice. What only it could repeat (the answer to a read, and
    // acknowledgements that no NAK replaces) has arrived before.
    post_good();
    if (fault_.refused || fault_.silence) wait_for_all();
    if (fault_.refused) post_messages();
    if (fault_.refused && nak_is_lost_) wait_for_all();
    if (fault_.silence) silent_ = true;
    good_ = sent_;
    good_there_ = received_;
    fault_.post(*this);
    post_behind();
    wait_for_all();
    pair.fabric.run_for(50ms);
    check();
  }

  // --- What faults are made of

  void send(const SendRequest& request, std::size_t length) {
    const ibv_sge sge = pair.a.end.sge(0, length);
    send(request, sge);
  }
  void send(SendRequest request, const ibv_sge& sge) {
    request.wr_id = sent_++;
    if (request.rkey == 0) request.rkey = pair.b.end.rkey();
    ASSERT_EQ(pair.a.send(request, {&sge, 1}), 0);
  }
  void receive(std::size_t length) { receive(pair.b.end.sge(100'000, length)); }
  void receive(const ibv_sge& sge) {
    ASSERT_EQ(pair.b.end.device().post_receive(*pair.b.qp, {received_++, {&sge, 1}}), 0);
  }
  SendRequest to_peer(ibv_wr_opcode opcode, std::size_t offset = kUntouched) {
    return {.opcode = opcode, .remote_addr = pair.b.end.address(offset), .compare_add = 1};
  }

  // Runs until all posted requests are done.
  void wait_for_all() {
    const bool ended = pair.fabric.run_until(
        [&] {
          for (const ibv_wc& wc : pair.a.end.poll()) done_.push_back(wc);
          for (const ibv_wc& wc : pair.b.end.poll()) done_there_.push_back(wc);
          return done_.size() >= sent_;
        },
        60s);
    ASSERT_TRUE(ended) << done_.size() << " of " << sent_;
  }

  Pair pair;
  bool holds_last_back = false;

 private:
  static PairConfig config_for(const Fault& fault) {
    PairConfig config{.timeout = 8, .rnr_retries = 2, .rd_atomic = fault.rd_atomic, .access = fault.access};
    config.end.device.window = 32;
    return config;
  }

  static bool is_fatal_nak(std::size_t from, std::span<const std::byte> frame) {
    if (from != 1 || !is_roce(frame) || frame[kOpcodeAt] != kAcknowledge) return false;
    const auto syndrome = std::to_integer<std::uint8_t>(frame[kSyndromeAt]);
    return (syndrome & kAckKindMask) == kNakKind && syndrome != kNakSequence;
  }

  // A peer says once why it ends. That comes or does not come, whatever else is lost.
  sim::Fate fate(std::size_t from, std::span<const std::byte> frame) {
    if (silent_) return {.copies = 0};
    if (holds_last_back && from == 0 && is_roce(frame) && frame[kOpcodeAt] == kWriteLastImm) return {.copies = 0};
    if (!is_fatal_nak(from, frame)) return {};
    if (!nak_is_lost_) pair.fabric.wire().inject(0, frame, 20us);
    return {.copies = 0};
  }

  void post_messages() {
    pair.a.end.fill(0, kMessage, 5);
    receive(kMessage);
    receive(kMessage);
    send({}, kMessage);
    send(to_peer(IBV_WR_RDMA_WRITE, 200'000), kMessage);
    send(to_peer(IBV_WR_RDMA_WRITE_WITH_IMM, 300'000), kMessage);
  }
  void post_good() {
    post_messages();
    if ((fault_.access & IBV_ACCESS_REMOTE_READ) != 0 && fault_.rd_atomic != 0) {
      const ibv_sge into = pair.a.end.sge(400'000, 5000);
      send(to_peer(IBV_WR_RDMA_READ, 200'000), into);
    }
    post_messages();
  }
  void post_behind() {
    const bool takes = fault_.here != IBV_WC_RNR_RETRY_EXC_ERR;
    if (takes) receive(kMessage);
    send({}, kMessage);
    send(to_peer(IBV_WR_RDMA_WRITE), kMessage);
    if (takes) receive(kMessage);
    send(to_peer(IBV_WR_RDMA_WRITE_WITH_IMM), kMessage);
  }

  static Statuses statuses_of(const std::vector<ibv_wc>& done) {
    Statuses statuses;
    for (std::size_t i = 0; i < done.size(); i++) {
      EXPECT_EQ(done[i].wr_id, i) << "in the order of posting";
      statuses.push_back(done[i].status);
    }
    return statuses;
  }

  void check() {
    for (const ibv_wc& wc : pair.a.end.poll()) done_.push_back(wc);
    for (const ibv_wc& wc : pair.b.end.poll()) done_there_.push_back(wc);
    Statuses here(good_, IBV_WC_SUCCESS), there(good_there_, IBV_WC_SUCCESS);
    here.push_back(fault_.refused && nak_is_lost_ ? IBV_WC_RETRY_EXC_ERR : fault_.here);
    here.resize(sent_, IBV_WC_WR_FLUSH_ERR);
    if (fault_.there != IBV_WC_SUCCESS) there.push_back(fault_.there);
    if (fault_.refused) there.resize(received_, IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(statuses_of(done_), here);
    EXPECT_EQ(statuses_of(done_there_), there);
    EXPECT_EQ(pair.a.state(), IBV_QPS_ERR);
    EXPECT_EQ(pair.b.state(), fault_.refused ? IBV_QPS_ERR : IBV_QPS_RTS);
    EXPECT_TRUE(pair.a.end.events().empty());
    const std::vector<AsyncEvent> events = pair.b.end.events();
    const std::size_t expected = fault_.event == IBV_EVENT_SQ_DRAINED ? 0 : 1;
    ASSERT_EQ(events.size(), expected);
    if (expected != 0) {
      EXPECT_EQ(events[0].type, fault_.event);
    }
    // The bytes of the good requests are there. Those of the failed request and of later ones are not.
    EXPECT_TRUE(pair.b.end.holds(200'000, kMessage, 5));
    EXPECT_TRUE(pair.b.end.holds(300'000, kMessage, 5));
    EXPECT_TRUE(std::all_of(pair.b.end.at(kUntouched), pair.b.end.at(kUntouched + kMessage),
                            [](std::byte b) { return b == std::byte{}; }));
  }

  Fault fault_;
  bool nak_is_lost_;
  bool silent_ = false;
  std::uint64_t sent_ = 0, received_ = 0;
  std::size_t good_ = 0, good_there_ = 0;
  std::vector<ibv_wc> done_{}, done_there_{};
};

// --- What the requester finds

void send_unregistered(Failing& f) {
  ibv_sge sge = f.pair.a.end.sge(0, kMessage);
  sge.lkey ^= 0x10000;
  f.send(f.to_peer(IBV_WR_RDMA_WRITE), sge);
}

void read_into_read_only(Failing& f) {
  End& end = f.pair.a.end;
  const Mr* mr =
      end.device().reg_mr(end.pd(), end.at(600'000), kMessage, end.address(600'000), IBV_ACCESS_REMOTE_READ).object;
  f.send(f.to_peer(IBV_WR_RDMA_READ), {end.address(600'000), kMessage, Device::lkey(*mr)});
}

void read(Failing& f) {
  const ibv_sge into = f.pair.a.end.sge(600'000, 8);
  f.send(f.to_peer(IBV_WR_RDMA_READ), into);
}

// --- What the responder finds

template <ibv_wr_opcode kOpcode>
void with_wrong_key(Failing& f) {
  SendRequest request = f.to_peer(kOpcode);
  request.rkey = f.pair.b.end.rkey() ^ 0x10000;
  f.send(request, kOpcode == IBV_WR_ATOMIC_CMP_AND_SWP ? 8 : kMessage);
}

template <ibv_wr_opcode kOpcode>
void without_the_right(Failing& f) {
  f.send(f.to_peer(kOpcode), 8);
}

void beyond_the_region(Failing& f) {
  f.send(f.to_peer(IBV_WR_RDMA_WRITE, End::kMemory - kMessage + 1), kMessage);
}

void too_long(Failing& f) {
  f.receive(kMessage - 1);
  f.send({}, kMessage);
}

void into_an_unregistered_receive(Failing& f) {
  ibv_sge sge = f.pair.b.end.sge(kUntouched, kMessage);
  sge.lkey ^= 0x10000;
  f.receive(sge);
  f.send({}, kMessage);
}

// The last packet finds a receive request, but the region has gone.
void region_gone_before_the_last_packet(Failing& f) {
  End& end = f.pair.b.end;
  constexpr std::size_t kAt = 700'000;
  Mr* mr = end.device().reg_mr(end.pd(), end.at(kAt), kMessage, end.address(kAt), End::kAllAccess).object;
  f.receive(kMessage);
  SendRequest request = f.to_peer(IBV_WR_RDMA_WRITE_WITH_IMM, kAt);
  request.rkey = Device::rkey(*mr);
  f.wait_for_all();
  f.holds_last_back = true;
  f.pair.a.end.fill(0, kMessage, 5);
  f.send(request, kMessage);
  ASSERT_TRUE(f.pair.fabric.run_until([&] { return end.holds(kAt, 2048, 5); }, 5ms));
  end.device().dereg_mr(*mr);
  f.holds_last_back = false;
}

// --- The peer does not answer

void to_nobody_ready(Failing& f) {
  f.send({}, kMessage);
}

void into_silence(Failing& f) {
  f.send(f.to_peer(IBV_WR_RDMA_READ), f.pair.a.end.sge(600'000, 8));
}

const std::array<Fault, 16> kFaults = {{
    {.name = "LocalProtection", .here = IBV_WC_LOC_PROT_ERR, .post = send_unregistered},
    {.name = "LocalProtectionOfARead", .here = IBV_WC_LOC_PROT_ERR, .post = read_into_read_only},
    {.name = "LocalOperation", .here = IBV_WC_LOC_QP_OP_ERR, .post = read, .rd_atomic = 0},
    {.name = "RemoteAccessOfAWrite",
     .here = IBV_WC_REM_ACCESS_ERR,
     .refused = true,
     .event = IBV_EVENT_QP_ACCESS_ERR,
     .post = with_wrong_key<IBV_WR_RDMA_WRITE>},
    {.name = "RemoteAccessOfARead",
     .here = IBV_WC_REM_ACCESS_ERR,
     .refused = true,
     .event = IBV_EVENT_QP_ACCESS_ERR,
     .post = with_wrong_key<IBV_WR_RDMA_READ>},
    {.name = "RemoteAccessOfAnAtomic",
     .here = IBV_WC_REM_ACCESS_ERR,
     .refused = true,
     .event = IBV_EVENT_QP_ACCESS_ERR,
     .post = with_wrong_key<IBV_WR_ATOMIC_CMP_AND_SWP>},
    {.name = "RemoteAccessBeyondTheRegion",
     .here = IBV_WC_REM_ACCESS_ERR,
     .refused = true,
     .event = IBV_EVENT_QP_ACCESS_ERR,
     .post = beyond_the_region},
    {.name = "RemoteInvalidRead",
     .here = IBV_WC_REM_INV_REQ_ERR,
     .refused = true,
     .event = IBV_EVENT_QP_REQ_ERR,
     .post = without_the_right<IBV_WR_RDMA_READ>,
     .access = kNoReads},
    {.name = "RemoteInvalidAtomic",
     .here = IBV_WC_REM_INV_REQ_ERR,
     .refused = true,
     .event = IBV_EVENT_QP_REQ_ERR,
     .post = without_the_right<IBV_WR_ATOMIC_FETCH_AND_ADD>,
     .access = kNoAtomics},
    {.name = "Length",
     .here = IBV_WC_REM_INV_REQ_ERR,
     .there = IBV_WC_LOC_LEN_ERR,
     .refused = true,
     .event = IBV_EVENT_QP_REQ_ERR,
     .post = too_long},
    {.name = "RemoteOperation",
     .here = IBV_WC_REM_OP_ERR,
     .there = IBV_WC_LOC_PROT_ERR,
     .refused = true,
     .post = into_an_unregistered_receive},
    {.name = "LocalAccess",
     .here = IBV_WC_REM_ACCESS_ERR,
     .there = IBV_WC_LOC_ACCESS_ERR,
     .refused = true,
     .event = IBV_EVENT_QP_ACCESS_ERR,
     .post = region_gone_before_the_last_packet},
    {.name = "RemoteInvalidRdRequest",
     .here = IBV_WC_REM_INV_RD_REQ_ERR,
     .refused = true,
     .event = IBV_EVENT_QP_ACCESS_ERR,
     .post = with_wrong_key<IBV_WR_RDMA_WRITE>,
     .other_nak = 0x64},
    {.name = "BadResponse",
     .here = IBV_WC_BAD_RESP_ERR,
     .refused = true,
     .event = IBV_EVENT_QP_ACCESS_ERR,
     .post = with_wrong_key<IBV_WR_RDMA_WRITE>,
     .other_nak = 0x65},
    {.name = "ReceiverNotReady", .here = IBV_WC_RNR_RETRY_EXC_ERR, .post = to_nobody_ready},
    {.name = "NoAnswer", .here = IBV_WC_RETRY_EXC_ERR, .post = into_silence, .silence = true},
}};

class ImpairedErrors : public ::testing::TestWithParam<std::tuple<ImpairedWire, Fault>> {};

TEST_P(ImpairedErrors, EndTheConnectionInTheirPlace) {
  const auto& [wire, fault] = GetParam();
  for (std::uint64_t seed = 1; seed <= 4; seed++) {
    SCOPED_TRACE(seed);
    Failing failing(wire, fault, seed);
    failing.run();
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Wires, ImpairedErrors,
                         ::testing::Combine(::testing::ValuesIn(kImpairedWires), ::testing::ValuesIn(kFaults)),
                         [](const auto& param) {
                           return name_of(std::get<0>(param.param)) + "_" + std::get<1>(param.param).name;
                         });

class ImpairedEnd : public ::testing::TestWithParam<ImpairedWire> {};

TEST_P(ImpairedEnd, OfTheProgramsOwn_FlushesWhatIsNotDone) {
  for (std::uint64_t seed = 1; seed <= 4; seed++) {
    SCOPED_TRACE(seed);
    PairConfig config{.timeout = 8};
    config.end.device.window = 4;  // so that they do not end all at once
    Pair pair(config, seed);
    impair(pair, GetParam().impairment);
    constexpr std::uint64_t kRequests = 20;
    for (std::uint64_t i = 0; i < kRequests; i++) {
      const ibv_wr_opcode opcode = std::array{IBV_WR_SEND, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE}[i % 3];
      pair.b.receive(i, 0, kMessage);
      pair.a.receive(1000 + i, 0, kMessage);
      pair.a.send({.wr_id = i, .opcode = opcode, .remote_addr = pair.b.end.address(0), .rkey = pair.b.end.rkey()}, 0,
                  kMessage);
    }
    std::vector<ibv_wc> done;
    ASSERT_TRUE(pair.fabric.run_until(
        [&] {
          for (const ibv_wc& wc : pair.a.end.poll()) done.push_back(wc);
          return done.size() > 3 * seed;
        },
        60s));
    const std::size_t good = done.size();
    ASSERT_LT(good, kRequests);
    ASSERT_EQ(pair.a.to_state(IBV_QPS_ERR), 0);
    pair.fabric.run_for(50ms);
    for (const ibv_wc& wc : pair.a.end.poll()) done.push_back(wc);
    ASSERT_EQ(done.size(), 2 * kRequests);
    for (std::size_t i = 0; i < done.size(); i++) {
      EXPECT_EQ(done[i].status, i < good ? IBV_WC_SUCCESS : IBV_WC_WR_FLUSH_ERR);
      EXPECT_EQ(done[i].wr_id, i < kRequests ? i : 1000 + i - kRequests) << "requests first, in their order";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Wires, ImpairedEnd, ::testing::ValuesIn(kImpairedWires),
                         [](const auto& wire) { return name_of(wire.param); });

}  // namespace
}  // namespace bypass::rdma::test
