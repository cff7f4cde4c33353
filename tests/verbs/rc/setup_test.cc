// How a link comes up: the whole exchange over devices' engines, and everything that can be wrong in it.
#include "backends/verbs/rc/setup.h"

#include <gtest/gtest.h>
#include <poll.h>

#include "fastpath/setup/rc_record.h"
#include "fixture.h"

namespace bypass::verbs {
namespace {

using fastpath::LinkHead;
using fastpath::RcEnd;

class RcSetupTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(world.open()) << world.problem; }
  void expect(std::size_t i, SetupState state, Reason reason) {
    ASSERT_NE(world.setups[i], nullptr);
    EXPECT_EQ(world.setups[i]->state(), state) << i << ": " << to_string(world.setups[i]->reason());
    EXPECT_STREQ(to_string(world.setups[i]->reason()), to_string(reason)) << i;
  }
  /// Asks for the link, with `change` to the records of the ends.
  void run(const RcWorld::Change& change = {}) {
    world.request();
    world.settle(change);
  }
  /// Runs the exchange with a change to one value in the record of one end.
  void run_with(RecordType in, const std::function<void(RcEnd&)>& change) {
    run([&](Record& record, std::vector<std::byte>& body) {
      if (record.type != in || body.size() != fastpath::kRcBodyBytes) return;
      LinkHead head;
      RcEnd end;
      ASSERT_EQ(decode(body, head), Reason::kNone);
      (void)decode(body, {}, end);
      change(end);
      encode(head, end, body);
    });
  }

  void lose_large_frames_of(std::size_t end) {
    world.verbs.fabric().wire().set_filter([end](std::size_t from, std::span<const std::byte> frame) {
      return sim::Fate{.copies = from == end && frame.size() > 600 ? 0U : 1U};
    });
  }

  RcWorld world;
};

TEST_F(RcSetupTest, WholeExchange_BothEndsAreUp) {
  std::vector<RecordType> said;
  run([&](Record& record, std::vector<std::byte>&) { said.push_back(record.type); });
  expect(0, SetupState::kUp, Reason::kNone);
  expect(1, SetupState::kUp, Reason::kNone);
  EXPECT_EQ(said, (std::vector{RecordType::kLinkReq, RecordType::kLinkAcc, RecordType::kLinkReady}));
  for (LinkSetup* const each : world.setups) {
    EXPECT_EQ(each->id(), 7U);
    EXPECT_EQ(each->window(), 512U);
    EXPECT_EQ(each->peer_memory(), RcWorld::kMemory);
    EXPECT_EQ(each->next_timeout(), kNever);
  }
}

// It fails fast, and never with the 655 ms that 0 means. LINK_READY is still under way, or was lost with its
// connection.
TEST_F(RcSetupTest, LaneOfferedBeforeReady_IsUp) {
  std::vector<std::byte> ready;
  world.request();
  const auto keep_ready = [&](Record& record, std::vector<std::byte>& body) {
    if (record.type != RecordType::kLinkReady) return;
    ready = body;
    record.type = RecordType::kData;
  };
  world.settle(keep_ready, 100ms);
  ASSERT_FALSE(ready.empty());
  expect(0, SetupState::kUp, Reason::kNone);
  expect(1, SetupState::kUnderWay, Reason::kNone);
  world.setups[1]->on_lane_offered();
  expect(1, SetupState::kUp, Reason::kNone);
  world.setups[1]->on_record(RecordType::kLinkReady, ready);
  expect(1, SetupState::kUp, Reason::kNone);
  EXPECT_EQ(world.setups[1]->link().state(), LinkState::kUp);
}

TEST_F(RcSetupTest, LaneOfferedBeforeTheProof_ProvesNothing) {
  world.request();
  world.exchange();
  ASSERT_NE(world.setups[1], nullptr);
  world.setups[1]->on_lane_offered();
  expect(1, SetupState::kUnderWay, Reason::kNone);
}

TEST_F(RcSetupTest, QueuePair_HasTheAttributesOfAFallbackThatIsThere) {
  run();
  for (std::size_t i = 0; i < 2; i++) {
    const auto& end = world.verbs.end(i);
    EXPECT_EQ(end.rtr.min_rnr_timer, 1);
    EXPECT_EQ(end.rtr.ah_attr.grh.hop_limit, 64);
    EXPECT_EQ(end.rtr.max_dest_rd_atomic, 0) << "nobody reads here";
    EXPECT_EQ(end.rts.timeout, 13);
    EXPECT_EQ(end.rts.retry_cnt, 3);
    EXPECT_EQ(end.rts.rnr_retry, 6);
  }
}

TEST_F(RcSetupTest, KeysAndAddresses_AreOthersForEachLink) {
  std::vector<RcEnd> ends;
  for (int round = 0; round < 2; round++) {
    run([&](Record&, std::vector<std::byte>& body) {
      if (RcEnd end; body.size() == fastpath::kRcBodyBytes) {
        (void)decode(body, {}, end);
        ends.push_back(end);
      }
    });
    for (std::size_t i = 0; i < 2; i++) world.devices[i]->close(world.setups[i]), world.setups[i] = nullptr;
  }
  ASSERT_EQ(ends.size(), 4U);
  for (std::size_t i = 0; i < 2; i++) {
    EXPECT_NE(ends[i].key, ends[i + 2].key);
    EXPECT_NE(ends[i].address, ends[i + 2].address);
    EXPECT_NE(ends[i].address, reinterpret_cast<std::uintptr_t>(world.memory[i].data())) << "and tell nothing of us";
    EXPECT_NE(ends[i].psn, ends[i + 2].psn);
    EXPECT_NE(ends[i].nonce, ends[i + 2].nonce);
  }
}

TEST_F(RcSetupTest, LibraryWithoutChosenAddresses_UsesTheirOwn) {
  world.verbs.end(0).has_iova = false;
  run();
  expect(1, SetupState::kUp, Reason::kNone);
}

TEST_F(RcSetupTest, Window_IsTheSmallerOne) {
  run_with(RecordType::kLinkReq, [](RcEnd& end) { end.window = 100; });
  EXPECT_EQ(world.setups[0]->window(), 100U);
  EXPECT_EQ(world.setups[1]->window(), 100U);
}

// --- Refusals

TEST_F(RcSetupTest, Refused_BothKnowWhy) {
  world.refusal = Reason::kPolicy;
  run();
  expect(0, SetupState::kFailed, Reason::kPolicy);
  expect(1, SetupState::kFailed, Reason::kPolicy);
}

struct BadValue {
  const char* name;
  void (*change)(RcEnd&);
  Reason reason;
};
const BadValue kBadValues[] = {
    {"AnotherAddress", [](RcEnd& end) { end.gid = IpAddress::from_v4(0x0a090063); }, Reason::kForeignAddress},
    {"NoAddress", [](RcEnd& end) { end.gid = {}; }, Reason::kLinkValue},
    {"AGroup", [](RcEnd& end) { end.gid = IpAddress::from_v4(0xe0000001); }, Reason::kLinkValue},
    {"ManagementQueuePair", [](RcEnd& end) { end.qpn = 1; }, Reason::kLinkValue},
    {"LongQpn", [](RcEnd& end) { end.qpn = 1U << 24; }, Reason::kLinkValue},
    {"LongPsn", [](RcEnd& end) { end.psn = 1U << 24; }, Reason::kLinkValue},
    {"NoMtu", [](RcEnd& end) { end.mtu = 0; }, Reason::kLinkValue},
    {"UnknownMtu", [](RcEnd& end) { end.mtu = 6; }, Reason::kLinkValue},
    {"SmallWindow", [](RcEnd& end) { end.window = 15; }, Reason::kLinkValue},
    {"LargeWindow", [](RcEnd& end) { end.window = 4097; }, Reason::kLinkValue},
    {"NoRoomForTheBlock", [](RcEnd& end) { end.size = 63; }, Reason::kLinkValue},
    {"HugeMemory", [](RcEnd& end) { end.size = (std::uint64_t{1} << 41) + 1; }, Reason::kLinkValue},
    {"MemoryPastTheEnd", [](RcEnd& end) { end.address = ~std::uint64_t{0} - 100; }, Reason::kLinkValue},
    {"NoNonce", [](RcEnd& end) { end.nonce = 0; }, Reason::kLinkValue},
};

class BadValueTest : public RcSetupTest, public testing::WithParamInterface<BadValue> {};
INSTANTIATE_TEST_SUITE_P(All, BadValueTest, testing::ValuesIn(kBadValues),
                         [](const auto& of) { return std::string(of.param.name); });

TEST_P(BadValueTest, InTheRequest_IsRefused) {
  run_with(RecordType::kLinkReq, GetParam().change);
  expect(0, SetupState::kFailed, GetParam().reason);
  expect(1, SetupState::kFailed, GetParam().reason);
}

TEST_P(BadValueTest, InTheAnswer_EndsItAtBothEnds) {
  run_with(RecordType::kLinkAcc, GetParam().change);
  expect(0, SetupState::kFailed, GetParam().reason);
  expect(1, SetupState::kFailed, GetParam().reason);
}

TEST_F(RcSetupTest, WindowLargerThanAskedFor_InTheAnswer_IsRefused) {
  run_with(RecordType::kLinkAcc, [](RcEnd& end) { end.window = 513; });
  expect(0, SetupState::kFailed, Reason::kLinkValue);
}

TEST_F(RcSetupTest, AnotherVersion_IsRefused) {
  run([](Record& record, std::vector<std::byte>& body) {
    if (record.type == RecordType::kLinkReq) body[0] = std::byte{fastpath::kLinkRecordVersion + 1};
  });
  expect(1, SetupState::kFailed, Reason::kLinkVersion);
}

TEST_F(RcSetupTest, ShortAndLongBodies_AreRefused) {
  for (const std::size_t length :
       {std::size_t{0}, std::size_t{7}, std::size_t{8}, fastpath::kRcBodyBytes - 1, fastpath::kRcBodyBytes + 1}) {
    world.request();
    world.settle(
        [&](Record& record, std::vector<std::byte>& body) {
          if (record.type == RecordType::kLinkReq) body.resize(length);
        },
        10ms);
    expect(1, SetupState::kFailed, Reason::kLinkValue);
    for (std::size_t i = 0; i < 2; i++) world.devices[i]->close(world.setups[i]), world.setups[i] = nullptr;
  }
}

TEST_F(RcSetupTest, AnotherLinksNumber_InTheAnswer_IsRefused) {
  run([](Record& record, std::vector<std::byte>& body) {
    if (record.type == RecordType::kLinkAcc) body[7] = std::byte{8};
  });
  expect(0, SetupState::kFailed, Reason::kLinkValue);
}

TEST_F(RcSetupTest, AReasonOfALaterVersion_IsAReason) {
  world.refusal = Reason::kNoMemory;
  run([](Record& record, std::vector<std::byte>& body) {
    if (record.type == RecordType::kLinkAcc) body[2] = std::byte{200};
  });
  expect(0, SetupState::kFailed, Reason::kPolicy);
}

TEST_F(RcSetupTest, RecordsOutOfTurn_EndIt) {
  for (const RecordType type : {RecordType::kLinkReq, RecordType::kLinkAcc, RecordType::kLinkHello}) {
    world.request();
    for (int i = 0; i < 3; i++) world.exchange();  // asked and answered; nothing proven yet
    std::array<std::byte, fastpath::kRcBodyBytes> body;
    encode(LinkHead{.link = 7}, body);
    world.setups[1]->on_record(type, body);
    world.settle();
    expect(1, SetupState::kFailed, Reason::kBadState);
    expect(0, SetupState::kFailed, Reason::kBadState);
    for (std::size_t i = 0; i < 2; i++) world.devices[i]->close(world.setups[i]), world.setups[i] = nullptr;
  }
}

TEST_F(RcSetupTest, ReadyBeforeTheProof_EndsIt) {
  world.request();
  world.exchange();
  world.exchange();
  std::array<std::byte, fastpath::kLinkHeadBytes> body;
  encode(LinkHead{.link = 7}, body);
  world.setups[1]->on_record(RecordType::kLinkReady, body);
  expect(1, SetupState::kFailed, Reason::kBadState);
}

// --- The proof

TEST_F(RcSetupTest, NothingArrives_EndsInTime) {
  world.verbs.fabric().wire().set_filter(
      [](std::size_t, std::span<const std::byte>) { return sim::Fate{.copies = 0}; });
  run();
  expect(0, SetupState::kFailed, Reason::kUnreachable);
  EXPECT_EQ(world.setups[1]->state(), SetupState::kFailed);
}

// For example behind a router: both ports take larger packets than the path between them, in one direction or the
// other.
TEST_F(RcSetupTest, OnlySmallerPacketsArrive_NoLink) {
  lose_large_frames_of(0);
  run();
  expect(0, SetupState::kFailed, Reason::kUnreachable);
  EXPECT_EQ(world.setups[1]->state(), SetupState::kFailed);
}

TEST_F(RcSetupTest, OnlySmallerPacketsComeBack_NoLink) {
  lose_large_frames_of(1);
  run();
  EXPECT_EQ(world.setups[0]->state(), SetupState::kFailed);
  expect(1, SetupState::kFailed, Reason::kUnreachable);
}

TEST_F(RcSetupTest, WhoSleepsMeanwhile_IsWokenByTheProof) {
  world.request();
  EXPECT_EQ(world.setups[0]->wait_descriptor(), -1) << "nothing to wait for but the answer";
  world.exchange();
  for (LinkSetup* const each : world.setups) each->poll(world.verbs.now());
  const auto readable = [&](std::size_t i) {
    pollfd one{world.setups[i]->wait_descriptor(), POLLIN, 0};
    return poll(&one, 1, 0) == 1;
  };
  EXPECT_FALSE(readable(1));
  world.verbs.run_for(1ms);
  EXPECT_TRUE(readable(1)) << "the ping";
  world.setups[1]->poll(world.verbs.now());
  EXPECT_FALSE(readable(0));
  world.verbs.run_for(1ms);
  EXPECT_TRUE(readable(0)) << "the pong";
}

TEST_F(RcSetupTest, SilentPeer_EndsInTime) {
  world.request();
  Record record;
  std::array<std::byte, fastpath::kMaxLinkBody> room;
  EXPECT_TRUE(world.setups[0]->next_record(record, room));
  const Instant until = world.setups[0]->next_timeout();
  EXPECT_EQ(until, world.verbs.now() + RcSetup::kLimit);
  world.setups[0]->poll(until - 1ns);
  expect(0, SetupState::kUnderWay, Reason::kNone);
  world.setups[0]->poll(until);
  expect(0, SetupState::kFailed, Reason::kTooSlow);
  EXPECT_TRUE(world.setups[0]->next_record(record, room)) << "the peer is told";
  EXPECT_EQ(record.type, RecordType::kLinkReady);
}

TEST_F(RcSetupTest, AnotherNumberThanChosen_ProvesNothing) {
  run_with(RecordType::kLinkAcc, [](RcEnd& end) { end.nonce ^= 2; });
  expect(1, SetupState::kFailed, Reason::kUnproven);
  expect(0, SetupState::kFailed, Reason::kUnproven);
}

TEST_F(RcSetupTest, WrongKey_EndsIt) {
  run_with(RecordType::kLinkAcc, [](RcEnd& end) { end.key ^= 0x10000; });
  expect(0, SetupState::kFailed, Reason::kUnreachable);
  EXPECT_EQ(world.setups[1]->state(), SetupState::kFailed);
}

TEST_F(RcSetupTest, WrongSequenceNumber_EndsIt) {
  run_with(RecordType::kLinkReq, [](RcEnd& end) { end.psn = (end.psn + 100) & 0xffffff; });
  EXPECT_EQ(world.setups[0]->state(), SetupState::kFailed);
  EXPECT_EQ(world.setups[1]->state(), SetupState::kFailed);
}

// --- What a device refuses

struct Refusal {
  const char* name;
  int EngineVerbs::Errors::*what;
  int error;
  Reason reason;
};
const Refusal kRefusals[] = {
    {"LockedMemory", &EngineVerbs::Errors::register_memory, ENOMEM, Reason::kNoMemory},
    {"Registration", &EngineVerbs::Errors::register_memory, EINVAL, Reason::kNoDevice},
    {"Channel", &EngineVerbs::Errors::create_channel, EMFILE, Reason::kNoDevice},
    {"CompletionQueue", &EngineVerbs::Errors::create_cq, ENOMEM, Reason::kNoMemory},
    {"QueuePair", &EngineVerbs::Errors::create_qp, ENOMEM, Reason::kNoMemory},
    {"Init", &EngineVerbs::Errors::to_init, EINVAL, Reason::kNoDevice},
    {"ToRtr", &EngineVerbs::Errors::to_rtr, EHOSTUNREACH, Reason::kUnreachable},
    {"ToRts", &EngineVerbs::Errors::to_rts, EINVAL, Reason::kUnreachable},
};
class RefusalTest : public RcSetupTest, public testing::WithParamInterface<Refusal> {};
INSTANTIATE_TEST_SUITE_P(All, RefusalTest, testing::ValuesIn(kRefusals),
                         [](const auto& of) { return std::string(of.param.name); });

TEST_P(RefusalTest, AtTheEndThatAsks) {
  world.verbs.end(0).errors.*GetParam().what = GetParam().error;
  world.request();
  world.settle({}, 100ms);
  expect(0, SetupState::kFailed, GetParam().reason);
  EXPECT_TRUE(world.setups[1] == nullptr || world.setups[1]->state() == SetupState::kFailed);
}

TEST_P(RefusalTest, AtTheEndThatAnswers_TheOtherIsTold) {
  world.verbs.end(1).errors.*GetParam().what = GetParam().error;
  run();
  expect(0, SetupState::kFailed, GetParam().reason);
  expect(1, SetupState::kFailed, GetParam().reason);
}

TEST_F(RcSetupTest, ReceivesRefused_EndsIt) {
  world.verbs.end(1).refuse_receives_after = 40;
  run();
  expect(0, SetupState::kFailed, Reason::kNoDevice);
}

TEST_F(RcSetupTest, FewBytesInARequest_AreEnough_FewerAreNot) {
  world.verbs.end(0).most_inline = 16;
  run();
  expect(0, SetupState::kUp, Reason::kNone);
  for (std::size_t i = 0; i < 2; i++) world.devices[i]->close(world.setups[i]), world.setups[i] = nullptr;
  world.verbs.end(0).most_inline = 15;
  world.request();
  expect(0, SetupState::kFailed, Reason::kNoDevice);
}

TEST_F(RcSetupTest, DeviceLost_EndsIt) {
  world.request();
  world.verbs.take_away(0);
  world.devices[0]->attend();
  expect(0, SetupState::kFailed, Reason::kNoDevice);
  EXPECT_TRUE(world.devices[0]->lost());
  EXPECT_EQ(world.devices[0]->request(8, world.memory[0], world.verbs.end(1).address(), world.verbs.now()), nullptr);
}

// Events wait until they are read. What happened before a link was asked for is not the link's failure.
TEST_F(RcSetupTest, PortWasDownBefore_IsNotItsFailure) {
  world.verbs.report(0, IBV_EVENT_PORT_ERR);
  world.verbs.report(0, IBV_EVENT_PORT_ACTIVE);
  world.request();
  world.devices[0]->attend();
  world.settle();
  expect(0, SetupState::kUp, Reason::kNone);
  expect(1, SetupState::kUp, Reason::kNone);
}

TEST_F(RcSetupTest, EventsFoundOnTheWay_WakeTheOthers) {
  world.request();
  world.devices[0]->attend();
  world.verbs.report(0, IBV_EVENT_PORT_ERR);
  std::vector<std::byte> memory(4096);
  ASSERT_NE(world.devices[0]->request(8, memory, world.verbs.end(1).address(), world.verbs.now()), nullptr);
  pollfd one{world.devices[0]->descriptor(), POLLIN, 0};
  EXPECT_EQ(::poll(&one, 1, 0), 1);
  expect(0, SetupState::kFailed, Reason::kNoDevice);
}

TEST_F(RcSetupTest, TooManyLinks_AreRefused) {
  std::vector<std::byte> one(4096);
  for (std::size_t i = 0; i < RcDevice::kMostLinks; i++)
    ASSERT_NE(world.devices[0]->request(static_cast<std::uint32_t>(i + 1), one, world.verbs.end(1).address(),
                                        world.verbs.now()),
              nullptr);
  EXPECT_EQ(world.devices[0]->request(99, one, world.verbs.end(1).address(), world.verbs.now()), nullptr);
}

TEST_F(RcSetupTest, Closed_GivesTheMemoryBack) {
  ASSERT_TRUE(world.connect());
  const int before = world.verbs.end(0).alive;
  world.devices[0]->close(world.setups[0]);
  EXPECT_TRUE(world.devices[0]->gone(world.memory[0]));
  EXPECT_EQ(world.verbs.end(0).alive, before - 4) << "registration, channel, completion queue, queue pair";
  world.setups[0] = nullptr;
}

// --- The device

TEST(RcDeviceTest, Opening_SaysWhatIsWrong) {
  RcWorld world;
  fastpath::LinkDeviceSpec spec;
  spec.address = IpAddress::from_v4(0x0a090063);
  const auto refused = [&](const char* target) { return RcDevice::open(target, spec, world.problem) == nullptr; };
  EXPECT_TRUE(refused("end0"));
  EXPECT_NE(world.problem.find("10.9.0.99"), std::string::npos) << world.problem;
  EXPECT_TRUE(refused("end7"));
  EXPECT_EQ(world.problem, "RDMA links over end7: no RDMA device of that name; there are: end0, end1");
  EXPECT_TRUE(refused("end0:x"));
  EXPECT_NE(world.problem.find("'x'"), std::string::npos) << world.problem;
  spec.address = world.verbs.end(0).address();
  world.verbs.end(0).errors.alloc_pd = ENOMEM;
  EXPECT_TRUE(refused("end0"));
  world.verbs.end(0).errors = {.open = EACCES};
  EXPECT_TRUE(refused("end0"));
  EXPECT_EQ(world.problem,
            "RDMA links over end0: the device cannot be opened: Permission denied; this user must be able to write to "
            "/dev/infiniband/uverbs*");
  world.verbs.end(0).errors = {};
  world.verbs.end(0).link_layer = IBV_LINK_LAYER_INFINIBAND;
  EXPECT_TRUE(refused("end0"));
  EXPECT_EQ(world.verbs.end(0).alive, 0);
}

TEST(RcDeviceTest, SendMemory_Refused_SaysSo) {
  RcWorld world;
  ASSERT_TRUE(world.open());
  world.verbs.end(0).errors.register_memory = ENOMEM;
  const char* problem = nullptr;
  std::vector<std::byte> more(4096);
  EXPECT_FALSE(world.devices[0]->add_memory(more, problem));
  EXPECT_STREQ(problem, "Cannot allocate memory");
}

}  // namespace
}  // namespace bypass::verbs
