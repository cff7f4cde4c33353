// Verbs semantics: each way in which a request can fail, caused once, and what both ends see.
#include <gtest/gtest.h>

#include <algorithm>

#include "softverbs/fabric.h"

namespace bypass::rdma::test {
namespace {

SendRequest write_to(Half& peer, std::size_t offset = 0) {
  return {.opcode = IBV_WR_RDMA_WRITE, .remote_addr = peer.end.address(offset), .rkey = peer.end.rkey()};
}
SendRequest read_from(Half& peer, std::size_t offset = 0) {
  SendRequest request = write_to(peer, offset);
  request.opcode = IBV_WR_RDMA_READ;
  return request;
}

bool has_event(End& end, ibv_event_type type) {
  const std::vector<AsyncEvent> events = end.events();
  return std::ranges::any_of(events, [&](const AsyncEvent& event) { return event.type == type; });
}

std::vector<ibv_wc_status> statuses(End& end) {
  std::vector<ibv_wc_status> all;
  for (const ibv_wc& wc : end.poll()) all.push_back(wc.status);
  return all;
}
using Statuses = std::vector<ibv_wc_status>;

// --- What the local end finds

TEST(LocalErrors, UnknownKey_IsAProtectionErrorAndFlushesTheRest) {
  Pair pair;
  pair.a.send(write_to(pair.b), 0, 8);
  ibv_sge bad = pair.a.end.sge(0, 8);
  bad.lkey ^= 0x10000;
  pair.a.send(write_to(pair.b), std::span{&bad, 1});
  pair.a.send(write_to(pair.b), 0, 8);
  pair.a.receive(9, 0, 8);
  pair.fabric.settle();
  EXPECT_EQ(statuses(pair.a.end),
            (Statuses{IBV_WC_SUCCESS, IBV_WC_LOC_PROT_ERR, IBV_WC_WR_FLUSH_ERR, IBV_WC_WR_FLUSH_ERR}));
  EXPECT_EQ(pair.a.state(), IBV_QPS_ERR);
  EXPECT_EQ(pair.b.state(), IBV_QPS_RTS) << "the peer knows nothing of it";
}

TEST(LocalErrors, ElementBeyondItsRegion_IsAProtectionError) {
  Pair pair;
  pair.a.send(write_to(pair.b), End::kMemory - 4, 8);
  pair.fabric.settle();
  EXPECT_EQ(only(pair.a.end).status, IBV_WC_LOC_PROT_ERR);
}

TEST(LocalErrors, RegionOfAnotherDomain_IsAProtectionError) {
  Pair pair;
  Device& device = pair.a.end.device();
  Pd* other = device.alloc_pd().object;
  std::uint64_t word = 0;
  Mr* mr = device.reg_mr(*other, &word, 8, reinterpret_cast<std::uintptr_t>(&word), IBV_ACCESS_LOCAL_WRITE).object;
  const ibv_sge sge{reinterpret_cast<std::uintptr_t>(&word), 8, Device::lkey(*mr)};
  pair.a.send(write_to(pair.b), std::span{&sge, 1});
  pair.fabric.settle();
  EXPECT_EQ(only(pair.a.end).status, IBV_WC_LOC_PROT_ERR);
  EXPECT_EQ(device.dealloc_pd(*other), EBUSY);
  EXPECT_EQ(device.dereg_mr(*mr), 0);
  EXPECT_EQ(device.dealloc_pd(*other), 0);
}

TEST(LocalErrors, ReadIntoMemoryThatMayNotBeWritten_IsAProtectionError) {
  Pair pair;
  std::uint64_t word = 17;
  const auto at = reinterpret_cast<std::uintptr_t>(&word);
  Mr* mr = pair.a.end.device().reg_mr(pair.a.end.pd(), &word, 8, at, IBV_ACCESS_REMOTE_READ).object;
  const ibv_sge sge{at, 8, Device::lkey(*mr)};
  pair.a.send(read_from(pair.b), std::span{&sge, 1});
  pair.fabric.settle();
  EXPECT_EQ(only(pair.a.end).status, IBV_WC_LOC_PROT_ERR);
  EXPECT_EQ(word, 17U);
}

TEST(LocalErrors, ReadWithoutInitiatorDepth_IsAnOperationError) {
  PairConfig config{.rd_atomic = 0};
  Pair pair(config);
  pair.a.send(read_from(pair.b), 0, 8);
  pair.fabric.settle();
  EXPECT_EQ(only(pair.a.end).status, IBV_WC_LOC_QP_OP_ERR);
}

TEST(LocalErrors, MessageLongerThanTheReceiveRequest_IsALengthErrorHereAndAnInvalidRequestThere) {
  Pair pair;
  pair.b.end.fill(0, 4096, 1);
  pair.b.receive(3, 0, 1500);
  pair.b.receive(4, 0, 1500);
  pair.a.send({}, 0, 1501);
  pair.fabric.settle();
  EXPECT_EQ(statuses(pair.b.end), (Statuses{IBV_WC_LOC_LEN_ERR, IBV_WC_WR_FLUSH_ERR}));
  EXPECT_EQ(only(pair.a.end).status, IBV_WC_REM_INV_REQ_ERR);
  EXPECT_EQ(pair.a.state(), IBV_QPS_ERR);
  EXPECT_EQ(pair.b.state(), IBV_QPS_ERR);
  EXPECT_EQ(std::memcmp(pair.b.end.at(1500), pair.b.end.at(1500), 1), 0);
  EXPECT_TRUE(has_event(pair.b.end, IBV_EVENT_QP_REQ_ERR));
}

TEST(LocalErrors, ReceiveRequestWithABadKey_IsAProtectionErrorHereAndAnOperationErrorThere) {
  Pair pair;
  ibv_sge bad = pair.b.end.sge(0, 100);
  bad.lkey++;
  pair.b.end.device().post_receive(*pair.b.qp, {8, {&bad, 1}});
  pair.a.send({}, 0, 10);
  pair.fabric.settle();
  EXPECT_EQ(only(pair.b.end).status, IBV_WC_LOC_PROT_ERR);
  EXPECT_EQ(only(pair.a.end).status, IBV_WC_REM_OP_ERR);
}

TEST(LocalErrors, DatagramBeyondTheMtu_IsALengthError) {
  Pair pair(IBV_QPT_UD);
  pair.a.send({.ah = pair.a.ah, .remote_qpn = 5}, 0, 1025);
  pair.fabric.settle();
  EXPECT_EQ(only(pair.a.end).status, IBV_WC_LOC_LEN_ERR);
}

// --- What the remote end finds

struct RemoteAccess {
  const char* name;
  ibv_wr_opcode opcode;
  unsigned region_access;
  unsigned qp_access;
  ibv_wc_status status;
  ibv_event_type event;
};
constexpr unsigned kQpAll = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
const std::array<RemoteAccess, 6> kRemoteAccess = {{
    {"write", IBV_WR_RDMA_WRITE, IBV_ACCESS_REMOTE_READ, kQpAll, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR},
    {"read", IBV_WR_RDMA_READ, IBV_ACCESS_REMOTE_WRITE, kQpAll, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR},
    {"atomic", IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_ACCESS_REMOTE_WRITE, kQpAll, IBV_WC_REM_ACCESS_ERR,
     IBV_EVENT_QP_ACCESS_ERR},
    {"write, queue pair", IBV_WR_RDMA_WRITE, kQpAll, IBV_ACCESS_REMOTE_READ, IBV_WC_REM_INV_REQ_ERR,
     IBV_EVENT_QP_REQ_ERR},
    {"read, queue pair", IBV_WR_RDMA_READ, kQpAll, IBV_ACCESS_REMOTE_WRITE, IBV_WC_REM_INV_REQ_ERR,
     IBV_EVENT_QP_REQ_ERR},
    {"atomic, queue pair", IBV_WR_ATOMIC_FETCH_AND_ADD, kQpAll, IBV_ACCESS_REMOTE_WRITE, IBV_WC_REM_INV_REQ_ERR,
     IBV_EVENT_QP_REQ_ERR},
}};

TEST(RemoteErrors, OperationsWithoutTheRight_AreRefusedAndTouchNothing) {
  for (const RemoteAccess& access : kRemoteAccess) {
    PairConfig config{.access = access.qp_access};
    Pair pair(config);
    std::uint64_t word = 5;
    const auto at = reinterpret_cast<std::uintptr_t>(&word);
    Device& device = pair.b.end.device();
    Mr* mr = device.reg_mr(pair.b.end.pd(), &word, 8, at, access.region_access | IBV_ACCESS_LOCAL_WRITE).object;
    pair.a.end.fill(0, 8, 1);
    pair.a.send({.opcode = access.opcode, .remote_addr = at, .rkey = Device::rkey(*mr), .compare_add = 1}, 0, 8);
    pair.b.receive(2, 0, 8);
    pair.fabric.settle();
    EXPECT_EQ(only(pair.a.end).status, access.status) << access.name;
    EXPECT_EQ(only(pair.b.end).status, IBV_WC_WR_FLUSH_ERR) << access.name;
    EXPECT_EQ(pair.b.state(), IBV_QPS_ERR) << access.name;
    EXPECT_TRUE(has_event(pair.b.end, access.event)) << access.name;
    EXPECT_EQ(word, 5U) << access.name;
    EXPECT_TRUE(pair.a.end.holds(0, 8, 1)) << access.name;
  }
}

TEST(RemoteErrors, AddressesOutsideOfTheRegion_AreAccessErrors) {
  for (const std::uint64_t offset : {std::uint64_t{End::kMemory - 7}, ~std::uint64_t{0}, std::uint64_t{1} << 40}) {
    Pair pair;
    SendRequest request = write_to(pair.b);
    request.remote_addr += offset;
    pair.a.send(request, 0, 8);
    pair.fabric.settle();
    EXPECT_EQ(only(pair.a.end).status, IBV_WC_REM_ACCESS_ERR);
  }
}

TEST(RemoteErrors, KeyOfARegionThatIsGone_IsAnAccessError) {
  Pair pair;
  std::uint64_t word = 5;
  const auto at = reinterpret_cast<std::uintptr_t>(&word);
  Device& device = pair.b.end.device();
  Mr* mr = device.reg_mr(pair.b.end.pd(), &word, 8, at, End::kAllAccess).object;
  const SendRequest request{.opcode = IBV_WR_RDMA_WRITE, .remote_addr = at, .rkey = Device::rkey(*mr)};
  device.dereg_mr(*mr);
  Mr* next = device.reg_mr(pair.b.end.pd(), &word, 8, at, End::kAllAccess).object;
  EXPECT_NE(Device::rkey(*next), request.rkey);
  pair.a.send(request, 0, 8);
  pair.fabric.settle();
  EXPECT_EQ(only(pair.a.end).status, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(word, 5U);
}

TEST(RemoteErrors, RegionTakenAwayInTheMidstOfAWrite_StopsIt) {
  Pair pair;
  std::vector<std::byte> memory(100'000);
  const auto at = reinterpret_cast<std::uintptr_t>(memory.data());
  Device& device = pair.b.end.device();
  Mr* mr = device.reg_mr(pair.b.end.pd(), memory.data(), memory.size(), at, End::kAllAccess).object;
  pair.fabric.wire().set_impairment({.bits_per_second = 1'000'000'000});
  pair.a.end.fill(0, memory.size(), 1);
  pair.a.send({.opcode = IBV_WR_RDMA_WRITE, .remote_addr = at, .rkey = Device::rkey(*mr)}, 0, memory.size());
  pair.fabric.run_until([&] { return memory[20'000] != std::byte{}; }, 1s);
  device.dereg_mr(*mr);
  const std::vector<std::byte> then = memory;
  pair.fabric.settle();
  EXPECT_EQ(only(pair.a.end).status, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(memory, then);
}

TEST(RemoteErrors, RegionTakenAwayInTheMidstOfARead_StopsIt) {
  Pair pair;
  std::vector<std::byte> memory(800'000, std::byte{7});
  const auto at = reinterpret_cast<std::uintptr_t>(memory.data());
  Device& device = pair.b.end.device();
  Mr* mr = device.reg_mr(pair.b.end.pd(), memory.data(), memory.size(), at, End::kAllAccess).object;
  pair.fabric.wire().set_impairment({.bits_per_second = 1'000'000'000});
  pair.a.send({.opcode = IBV_WR_RDMA_READ, .remote_addr = at, .rkey = Device::rkey(*mr)}, 0, memory.size());
  pair.fabric.run_until([&] { return *pair.a.end.at(20'000) != std::byte{}; }, 1s);
  device.dereg_mr(*mr);
  pair.fabric.settle();
  EXPECT_EQ(only(pair.a.end).status, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(*pair.a.end.at(799'999), std::byte{});
}

TEST(RemoteErrors, MoreReadsThanTheResponderAllows_AreAnInvalidRequest) {
  PairConfig config{.rd_atomic = 0};
  Pair pair(config);
  ibv_qp_attr attr{};
  attr.max_rd_atomic = 1;
  ASSERT_EQ(pair.a.to_state(IBV_QPS_SQD), 0);
  ASSERT_EQ(pair.a.modify(attr, IBV_QP_MAX_QP_RD_ATOMIC), 0);
  ASSERT_EQ(pair.a.to_state(IBV_QPS_RTS), 0);
  pair.a.send(read_from(pair.b), 0, 8);
  pair.fabric.settle();
  EXPECT_EQ(only(pair.a.end).status, IBV_WC_REM_INV_REQ_ERR);
}

TEST(RemoteErrors, RequestsBehindTheFailedOne_AreFlushedAndDoNothing) {
  Pair pair;
  SendRequest bad = write_to(pair.b);
  bad.rkey ^= 0x10000;
  pair.a.end.fill(0, 8, 3);
  pair.a.send(read_from(pair.b), 100, 5000);
  pair.a.send(bad, 0, 8);
  pair.a.send(write_to(pair.b, 64), 0, 8);
  pair.fabric.settle();
  EXPECT_EQ(statuses(pair.a.end), (Statuses{IBV_WC_SUCCESS, IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR}));
  EXPECT_EQ(*pair.b.end.at(64), std::byte{});
}

// --- No peer, or a peer that is not ready

TEST(Retries, SilentPeer_IsGivenUpAfterTheRetries) {
  PairConfig config{.timeout = 10, .retries = 3};  // 4.19 ms
  Pair pair(config);
  pair.a.send(write_to(pair.b), 0, 8);
  pair.fabric.settle();
  ASSERT_EQ(only(pair.a.end).status, IBV_WC_SUCCESS);
  pair.b.end.device().destroy_qp(*pair.b.qp);
  pair.a.send(write_to(pair.b), 0, 8);
  pair.a.send(write_to(pair.b), 0, 8);
  const Instant start = pair.fabric.now();
  std::vector<ibv_wc> done;
  pair.fabric.run_until([&] { return (done = pair.a.end.poll()).size() == 2; }, 10s);
  ASSERT_EQ(done.size(), 2U);
  EXPECT_EQ(done[0].status, IBV_WC_RETRY_EXC_ERR);
  EXPECT_EQ(done[1].status, IBV_WC_WR_FLUSH_ERR);
  const Duration taken = pair.fabric.now() - start;
  EXPECT_GE(taken, 4 * 4'194us);
  EXPECT_LE(taken, 4 * 4'194us + 1ms);
  EXPECT_EQ(pair.a.counters().timeouts, 4U);
}

TEST(Retries, PeerWithoutAnAddressOnTheWire_IsGivenUpToo) {
  PairConfig config{.timeout = 10, .retries = 2};
  Pair pair(config);
  pair.fabric.wire().set_filter([](std::size_t, std::span<const std::byte>) { return sim::Fate{.copies = 0}; });
  pair.a.send(write_to(pair.b), 0, 8);
  pair.fabric.settle();
  EXPECT_EQ(only(pair.a.end).status, IBV_WC_RETRY_EXC_ERR);
}

TEST(Retries, TimeoutZero_WaitsForEver) {
  PairConfig config{.timeout = 0, .retries = 1};
  Pair pair(config);
  pair.b.end.device().destroy_qp(*pair.b.qp);
  pair.a.send(write_to(pair.b), 0, 8);
  pair.fabric.run_for(3600s);
  EXPECT_TRUE(pair.a.end.poll().empty());
}

TEST(Rnr, ReceiverThatComesLate_IsWaitedFor) {
  for (const ibv_wr_opcode opcode : {IBV_WR_SEND, IBV_WR_RDMA_WRITE_WITH_IMM}) {
    PairConfig config{.rnr_timer = 14};  // 1.28 ms
    Pair pair(config);
    pair.a.end.fill(0, 3000, 1);
    SendRequest request = write_to(pair.b, 8000);
    request.opcode = opcode;
    pair.a.send(request, 0, 3000);
    pair.a.send(request, 0, 3000);
    pair.fabric.run_for(100ms);
    EXPECT_TRUE(pair.a.end.poll().empty());
    EXPECT_GT(pair.b.counters().tx_rnr_nak, 60U);
    EXPECT_LT(pair.b.counters().tx_rnr_nak, 80U);
    pair.b.receive(1, 8000, 3000);
    pair.b.receive(2, 8000, 3000);
    pair.fabric.settle();
    EXPECT_EQ(statuses(pair.a.end), (Statuses{IBV_WC_SUCCESS, IBV_WC_SUCCESS}));
    EXPECT_EQ(statuses(pair.b.end), (Statuses{IBV_WC_SUCCESS, IBV_WC_SUCCESS}));
    EXPECT_TRUE(pair.b.end.holds(8000, 3000, 1));
    EXPECT_EQ(pair.a.counters().timeouts, 0U);
  }
}

TEST(Rnr, RetriesUsedUp_IsAnError) {
  PairConfig config{.rnr_retries = 2};
  Pair pair(config);
  pair.a.send({}, 0, 8);
  pair.fabric.settle();
  EXPECT_EQ(only(pair.a.end).status, IBV_WC_RNR_RETRY_EXC_ERR);
  EXPECT_EQ(pair.b.counters().tx_rnr_nak, 3U);
  EXPECT_EQ(pair.b.state(), IBV_QPS_RTS);
}

// --- Order

TEST(Fence, HoldsBackWhatFollowsAnUnansweredRead) {
  Pair pair;
  pair.fabric.wire().set_impairment({.delay = 100us});
  // Without the fence the write would leave at once, before the answer to the read does.
  constexpr std::byte kWriteOnly{0x0a}, kReadResponseOnly{0x10};
  bool answered = false, written_early = false;
  pair.fabric.wire().set_filter([&](std::size_t, std::span<const std::byte> frame) {
    if (frame.size() > 42 && frame[42] == kReadResponseOnly) answered = true;
    if (frame.size() > 42 && frame[42] == kWriteOnly && !answered) written_early = true;
    return sim::Fate{};
  });
  pair.a.send(read_from(pair.b), 0, 8);
  SendRequest fenced = write_to(pair.b);
  fenced.flags = IBV_SEND_FENCE;
  pair.a.send(fenced, 0, 8);
  pair.fabric.settle();
  EXPECT_TRUE(answered);
  EXPECT_FALSE(written_early);
  EXPECT_EQ(statuses(pair.a.end), (Statuses{IBV_WC_SUCCESS, IBV_WC_SUCCESS}));
}

// --- Arguments of posting

TEST(Posting, WhatCannotBe_IsRefusedAtOnce) {
  Pair pair;
  Device& device = pair.a.end.device();
  const ibv_sge sge = pair.a.end.sge(0, 8), large = pair.a.end.sge(0, 200);
  const std::array<ibv_sge, 5> five = {sge, sge, sge, sge, sge};
  EXPECT_EQ(pair.a.send({}, five), EINVAL);
  EXPECT_EQ(pair.a.send({.flags = IBV_SEND_INLINE}, std::span{&large, 1}), EINVAL);
  EXPECT_EQ(pair.a.send({.opcode = IBV_WR_DRIVER1}, 0, 8), EINVAL);
  EXPECT_EQ(pair.a.send({.opcode = IBV_WR_BIND_MW}, 0, 8), EINVAL);
  EXPECT_EQ(pair.a.send({.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .remote_addr = 4}, 0, 8), EINVAL);
  EXPECT_EQ(pair.a.send({.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .remote_addr = 8}, 0, 4), EINVAL);
  EXPECT_EQ(device.post_receive(*pair.a.qp, {1, five}), EINVAL);
  for (std::uint32_t i = 0; i < 128; i++) ASSERT_EQ(pair.a.receive(i, 0, 8), 0);
  EXPECT_EQ(pair.a.receive(128, 0, 8), ENOMEM);
  Pair datagrams(IBV_QPT_UD);
  EXPECT_EQ(datagrams.a.send({}, 0, 8), EINVAL) << "no address handle";
  EXPECT_EQ(datagrams.a.send({.opcode = IBV_WR_RDMA_WRITE, .ah = datagrams.a.ah}, 0, 8), EINVAL);
  Pair uc(IBV_QPT_UC);
  EXPECT_EQ(uc.a.send({.opcode = IBV_WR_RDMA_READ}, 0, 8), EINVAL);
}

TEST(Posting, InTheErrorState_CompletesAsFlushed) {
  Pair pair;
  pair.a.send(write_to(pair.b), 0, 8);
  ASSERT_EQ(pair.a.to_state(IBV_QPS_ERR), 0);
  EXPECT_EQ(statuses(pair.a.end), (Statuses{IBV_WC_WR_FLUSH_ERR}));
  EXPECT_EQ(pair.a.send(write_to(pair.b), 0, 8), 0);
  EXPECT_EQ(pair.a.receive(1, 0, 8), 0);
  EXPECT_EQ(statuses(pair.a.end), (Statuses{IBV_WC_WR_FLUSH_ERR, IBV_WC_WR_FLUSH_ERR}));
}

}  // namespace
}  // namespace bypass::rdma::test
