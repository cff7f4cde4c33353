// Refusals on the wire: what a stranger's NAK does to our requests, and with which of ours a stranger's fault is
// answered (InfiniBand specification, 9.7.5.2 and tables 45 to 47).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "softverbs/fabric.h"
#include "softverbs/on_the_wire.h"
#include "softverbs/roce_frame.h"

namespace bypass::rdma::test {
namespace {

// --- A stranger's refusals

struct Refusal {
  const char* name;
  std::uint8_t syndrome;
  ibv_wc_status status;
};
class Refused : public OnTheWire, public ::testing::WithParamInterface<Refusal> {
 protected:
  void write(std::uint64_t wr_id) { half.send({.wr_id = wr_id, .opcode = IBV_WR_RDMA_WRITE}, 0, 8); }
  std::vector<Bytes> nak(std::uint32_t psn, std::uint8_t syndrome) {
    return exchange(roce_frame({.opcode = 0x11, .psn = psn}, bytes_of_headers(aeth(syndrome))));
  }
};

TEST_P(Refused, TheRequestFails_ThoseBeforeAreDone_ThoseBehindAreFlushed) {
  for (const std::uint64_t i : {0U, 1U, 2U, 3U}) write(i);
  sent();
  EXPECT_EQ(show(nak(502, GetParam().syndrome)), "");
  const std::vector<ibv_wc> done = end.poll();
  ASSERT_EQ(done.size(), 4U);
  for (std::size_t i = 0; i < done.size(); i++) EXPECT_EQ(done[i].wr_id, i);
  EXPECT_EQ(done[0].status, IBV_WC_SUCCESS);
  EXPECT_EQ(done[1].status, IBV_WC_SUCCESS);
  EXPECT_EQ(done[2].status, GetParam().status);
  EXPECT_EQ(done[3].status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(half.state(), IBV_QPS_ERR);
}

// The answer to the read is lost, not refused. It is asked for again, and the refusal waits.
TEST_P(Refused, ARequestBehindARead_FailsWhenTheReadIsDone) {
  end.fill(0, 8, 1);
  half.send({.wr_id = 0, .opcode = IBV_WR_RDMA_READ}, 100, 8);
  write(1);
  sent();
  EXPECT_EQ(show(nak(501, GetParam().syndrome)), "0c/500 0a/501");
  EXPECT_TRUE(end.poll().empty());
  EXPECT_EQ(show(exchange(0x10, 500, bytes_of_headers(aeth(0x1f), std::uint64_t{7}))), "");
  nak(501, GetParam().syndrome);
  const std::vector<ibv_wc> done = end.poll();
  ASSERT_EQ(done.size(), 2U);
  EXPECT_EQ(done[0].status, IBV_WC_SUCCESS);
  EXPECT_EQ(done[1].status, GetParam().status);
  EXPECT_EQ(*end.at(100), std::byte{7});
}

INSTANTIATE_TEST_SUITE_P(Syndromes, Refused,
                         ::testing::Values(Refusal{"InvalidRequest", 0x61, IBV_WC_REM_INV_REQ_ERR},
                                           Refusal{"RemoteAccess", 0x62, IBV_WC_REM_ACCESS_ERR},
                                           Refusal{"RemoteOperation", 0x63, IBV_WC_REM_OP_ERR},
                                           Refusal{"InvalidRdRequest", 0x64, IBV_WC_REM_INV_RD_REQ_ERR},
                                           Refusal{"Reserved", 0x65, IBV_WC_BAD_RESP_ERR},
                                           Refusal{"LastReserved", 0x7f, IBV_WC_BAD_RESP_ERR}),
                         [](const auto& refusal) { return std::string(refusal.param.name); });

TEST_F(Refused, ForItsNumber_IsNoFailure) {
  for (const std::uint64_t i : {0U, 1U, 2U}) write(i);
  sent();
  EXPECT_EQ(show(nak(501, 0x60)), "0a/501 0a/502");
  EXPECT_EQ(only(end).wr_id, 0U) << "the one before has arrived";
  exchange(roce_frame({.opcode = 0x11, .psn = 502}, bytes_of_headers(aeth(0x1f))));
  EXPECT_EQ(end.poll().size(), 2U);
  EXPECT_EQ(half.state(), IBV_QPS_RTS);
}

TEST_F(Refused, BecauseNobodyIsReady_WaitsAsLongAsToldAndComesAgain) {
  write(0);
  write(1);
  sent();
  EXPECT_EQ(show(nak(501, 0x2e)), "");  // 1.28 ms
  EXPECT_EQ(only(end).wr_id, 0U);
  fabric.run_for(1275us);
  EXPECT_EQ(show(sent()), "");
  fabric.run_for(10us);
  EXPECT_EQ(show(sent()), "0a/501");
}

TEST_F(Refused, WithAReservedKindOfSyndrome_SaysNothing) {
  write(0);
  sent();
  for (const std::uint8_t syndrome : {std::uint8_t{0x40}, std::uint8_t{0x5f}}) EXPECT_EQ(show(nak(500, syndrome)), "");
  EXPECT_TRUE(end.poll().empty());
  EXPECT_EQ(half.state(), IBV_QPS_RTS);
}

// --- Our own

struct Cause {
  const char* name;
  std::uint8_t syndrome;
  std::uint8_t opcode;
  Bytes (*rest)(End&);
  unsigned access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
};
class OurRefusal : public OnTheWire, public ::testing::WithParamInterface<Cause> {};

Bytes with_bytes(Bytes headers, std::size_t payload) {
  headers.resize(headers.size() + payload, std::byte{0xee});
  return headers;
}
Bytes atomic(std::uint64_t address, std::uint32_t rkey) {
  AtomicEth header;
  header.address = address;
  header.rkey = rkey;
  header.swap_add = header.compare = 0;
  header.swap_add = 1;
  return bytes_of_headers(header);
}

TEST_P(OurRefusal, SaysWhy_AndEndsTheQueuePair) {
  ibv_qp_attr attr{};
  attr.qp_access_flags = GetParam().access;
  ASSERT_EQ(half.modify(attr, IBV_QP_ACCESS_FLAGS), 0);
  half.receive(1, 0, 100);
  char expected[16];
  std::snprintf(expected, sizeof expected, "11/100:%02x", GetParam().syndrome);
  EXPECT_EQ(show(exchange(GetParam().opcode, 100, GetParam().rest(end))), expected);
  EXPECT_EQ(half.state(), IBV_QPS_ERR);
  const std::vector<AsyncEvent> events = end.events();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].type, GetParam().syndrome == 0x62 ? IBV_EVENT_QP_ACCESS_ERR : IBV_EVENT_QP_REQ_ERR);
  EXPECT_EQ(only(end).status, IBV_WC_WR_FLUSH_ERR) << "the receive request is not what was wrong";
  EXPECT_TRUE(std::all_of(end.at(0), end.at(200), [](std::byte b) { return b == std::byte{}; }));
  EXPECT_EQ(show(exchange(GetParam().opcode, 100, GetParam().rest(end))), "") << "said once";
}

constexpr unsigned kNoWrites = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

INSTANTIATE_TEST_SUITE_P(
    Causes, OurRefusal,
    ::testing::Values(
        Cause{"WriteKey", 0x62, 0x0a,
              [](End& e) { return with_bytes(bytes_of_headers(reth(e.address(0), e.rkey() ^ 1, 8)), 8); }},
        Cause{"WriteBounds", 0x62, 0x0a,
              [](End& e) { return with_bytes(bytes_of_headers(reth(e.address(End::kMemory) - 7, e.rkey(), 8)), 8); }},
        Cause{"WriteRight", 0x61, 0x0a,
              [](End& e) { return with_bytes(bytes_of_headers(reth(e.address(0), e.rkey(), 8)), 8); }, kNoWrites},
        Cause{"WriteShorterThanItSays", 0x61, 0x0a,
              [](End& e) { return with_bytes(bytes_of_headers(reth(e.address(0), e.rkey(), 12)), 8); }},
        Cause{"WriteLongerThanItSays", 0x61, 0x0a,
              [](End& e) { return with_bytes(bytes_of_headers(reth(e.address(0), e.rkey(), 4)), 8); }},
        Cause{"WriteBeyondAnyMessage", 0x61, 0x06,
              [](End& e) { return with_bytes(bytes_of_headers(reth(e.address(0), e.rkey(), 0x80000000)), 1024); }},
        Cause{"ReadKey", 0x62, 0x0c, [](End& e) { return bytes_of_headers(reth(e.address(0), e.rkey() ^ 1, 8)); }},
        Cause{"ReadBounds", 0x62, 0x0c,
              [](End& e) { return bytes_of_headers(reth(e.address(End::kMemory) - 7, e.rkey(), 8)); }},
        Cause{"ReadRight", 0x61, 0x0c, [](End& e) { return bytes_of_headers(reth(e.address(0), e.rkey(), 8)); },
              kNoReads},
        Cause{"ReadBeyondAnyMessage", 0x61, 0x0c,
              [](End& e) { return bytes_of_headers(reth(e.address(0), e.rkey(), 0x80000000)); }},
        Cause{"SwapKey", 0x62, 0x13, [](End& e) { return atomic(e.address(0), e.rkey() ^ 1); }},
        Cause{"AddBounds", 0x62, 0x14, [](End& e) { return atomic(e.address(End::kMemory), e.rkey()); }},
        Cause{"AddRight", 0x61, 0x14, [](End& e) { return atomic(e.address(0), e.rkey()); }, kNoAtomics},
        Cause{"AddToAnOddAddress", 0x61, 0x14, [](End& e) { return atomic(e.address(4), e.rkey()); }}),
    [](const auto& cause) { return std::string(cause.param.name); });

TEST_F(OurRefusal, OfAMessageThatAReceiveRequestCannotTake) {
  half.receive(1, 0, 100);
  EXPECT_EQ(show(exchange(0x04, 100, Bytes(101))), "11/100:61");
  EXPECT_EQ(only(end).status, IBV_WC_LOC_LEN_ERR);
}

TEST_F(OurRefusal, BecauseTheReceiveRequestIsWrong_IsAnOperationError) {
  ibv_sge bad = end.sge(0, 100);
  bad.lkey ^= 1;
  end.device().post_receive(*half.qp, {1, {&bad, 1}});
  EXPECT_EQ(show(exchange(0x04, 100, Bytes(8))), "11/100:63");
  EXPECT_EQ(only(end).status, IBV_WC_LOC_PROT_ERR);
  EXPECT_TRUE(end.events().empty());
}

TEST_F(OurRefusal, OfAMessageWithinAnother_FailsTheReceiveRequestUnderWay) {
  half.receive(1, 0, 4096);
  EXPECT_EQ(show(exchange(0x00, 100, Bytes(1024))), "11/100:1f");
  EXPECT_EQ(show(exchange(0x0c, 101, bytes_of_headers(reth(end.address(0), end.rkey(), 8)))), "11/101:61");
  EXPECT_EQ(only(end).status, IBV_WC_REM_INV_REQ_ERR);
}

TEST_F(OurRefusal, OfMoreReadsThanWereAgreedOn_ComesBehindTheAnswersOfTheOthers) {
  for (std::uint32_t psn = 100; psn <= 104; psn++)
    fabric.wire().inject(
        0, roce_frame({.opcode = 0x0c, .psn = psn}, bytes_of_headers(reth(end.address(0), end.rkey(), 8))));
  EXPECT_EQ(show(sent()), "10/100 10/101 10/102 10/103 11/104:61");
}

}  // namespace
}  // namespace bypass::rdma::test
