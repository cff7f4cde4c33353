// Acknowledgements that a poll leaves to the next poll. They do not delay what the program answers, and they are never
// left for long.
#include <gtest/gtest.h>

#include <string>

#include "softverbs/fabric.h"
#include "softverbs/roce_frame.h"

namespace bypass::rdma::test {
namespace {

constexpr std::size_t kOpcodeAt = 42, kThere = 5'000, kBack = 6'000;

/// A pair. The test polls its second half, at one moment, and records what it sends.
struct Conversation {
  Conversation() {
    for (Half* half : {&pair.a, &pair.b}) {  // who are neighbours by then
      Half& peer = half == &pair.a ? pair.b : pair.a;
      half->send(request(IBV_WR_RDMA_WRITE, peer, kThere), 0, 8);
      pair.fabric.settle();
      half->end.poll();
    }
    pair.fabric.wire().set_filter([this](std::size_t port, std::span<const std::byte> frame) {
      if (port == 1) told += told_by(std::to_integer<unsigned>(frame[kOpcodeAt]));
      return sim::Fate{};
    });
  }
  static const char* told_by(unsigned opcode) {
    switch (opcode) {
      case 0x0a:
        return "write ";
      case 0x10:
        return "answer ";
      case 0x11:
        return "ack ";
      default:
        return "other ";
    }
  }

  SendRequest request(ibv_wr_opcode opcode, Half& peer, std::size_t at) {
    return {.opcode = opcode, .remote_addr = peer.end.address(at), .rkey = peer.end.rkey()};
  }
  /// The first half asks, and its frames have arrived.
  void ask(ibv_wr_opcode opcode, std::size_t length) {
    ASSERT_EQ(pair.a.send(request(opcode, pair.b, kThere), 0, length), 0);
    pair.a.end.device().run(pair.fabric.now());
  }
  /// The second half writes back: posted and sent, as ibv_post_send does.
  void write_back(Acks acks) {
    ASSERT_EQ(pair.b.send(request(IBV_WR_RDMA_WRITE, pair.a, kBack), 0, 8), 0);
    pair.b.end.device().run(pair.fabric.now(), acks);
  }
  std::size_t poll(Acks acks) { return pair.b.end.device().poll(pair.fabric.now(), acks); }
  bool is_pending() { return pair.b.end.device().output_pending(); }
  /// The first half receives it.
  ibv_wc_status outcome() {
    pair.fabric.settle();
    return only(pair.a.end).status;
  }

  Pair pair;
  std::string told;
};

TEST(LeftAcks, ByDefault_ThePollSendsThem) {
  Conversation c;
  c.ask(IBV_WR_RDMA_WRITE, 8);
  c.poll(Acks::kSend);
  EXPECT_EQ(c.told, "ack ");
  EXPECT_FALSE(c.is_pending());
}

TEST(LeftAcks, TheAnswerGoesFirst_ThenTheNextPollSendsThem) {
  Conversation c;
  c.ask(IBV_WR_RDMA_WRITE, 8);
  EXPECT_EQ(c.poll(Acks::kLeave), 1U);
  EXPECT_EQ(c.told, "");
  EXPECT_TRUE(c.is_pending());
  c.write_back(Acks::kLeave);
  EXPECT_EQ(c.told, "write ");
  EXPECT_TRUE(c.is_pending());
  c.poll(Acks::kLeave);
  EXPECT_EQ(c.told, "write ack ");
  EXPECT_FALSE(c.is_pending());
  EXPECT_EQ(c.outcome(), IBV_WC_SUCCESS);
}

TEST(LeftAcks, AnyOtherRun_SendsThem) {
  Conversation c;
  c.ask(IBV_WR_RDMA_WRITE, 8);
  c.poll(Acks::kLeave);
  c.pair.b.end.device().run(c.pair.fabric.now());
  EXPECT_EQ(c.told, "ack ");
  EXPECT_FALSE(c.is_pending());
}

TEST(LeftAcks, OneSaysAllThatHasComeMeanwhile) {
  Conversation c;
  c.ask(IBV_WR_RDMA_WRITE, 8);
  c.poll(Acks::kLeave);
  c.ask(IBV_WR_RDMA_WRITE, 8);
  c.poll(Acks::kLeave);
  EXPECT_EQ(c.told, "ack ");
  c.pair.fabric.settle();
  EXPECT_EQ(c.pair.a.end.poll().size(), 2U);
  EXPECT_EQ(c.told, "ack ");
}

TEST(LeftAcks, AStreamIsAcknowledgedAtOnce) {
  Conversation c;
  c.ask(IBV_WR_RDMA_WRITE, 8 * 1024);
  EXPECT_EQ(c.poll(Acks::kLeave), 8U);
  EXPECT_EQ(c.told, "ack ");
}

TEST(LeftAcks, DataAndRefusals_AreNotLeft) {
  Conversation c;
  c.ask(IBV_WR_RDMA_READ, 8);
  c.poll(Acks::kLeave);
  EXPECT_EQ(c.told, "answer ");
  c.ask(IBV_WR_SEND, 8);  // and there is no receive request
  c.poll(Acks::kLeave);
  EXPECT_EQ(c.told, "answer ack ");
  EXPECT_EQ(c.pair.b.counters().tx_rnr_nak, 1U);
}

// The write before it was good. The refusal tells the peer so.
TEST(LeftAcks, ARefusalComesAtOnce_ForAllBeforeItToo) {
  Conversation c;
  c.ask(IBV_WR_RDMA_WRITE, 8);
  c.poll(Acks::kLeave);
  SendRequest request = c.request(IBV_WR_RDMA_WRITE, c.pair.b, kThere);
  request.rkey++;
  ASSERT_EQ(c.pair.a.send(request, 0, 8), 0);
  c.pair.a.end.device().run(c.pair.fabric.now());
  c.poll(Acks::kLeave);
  c.pair.fabric.settle();
  const std::vector<ibv_wc> all = c.pair.a.end.poll();
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0].status, IBV_WC_SUCCESS);
  EXPECT_EQ(all[1].status, IBV_WC_REM_ACCESS_ERR);
}

// A program that has what it waited for ends its queue pair. What has been done is acknowledged before that.
TEST(LeftAcks, AQueuePairThatEnds_HasSentIts) {
  Conversation destroyed, reset;
  for (Conversation* c : {&destroyed, &reset}) {
    c->ask(IBV_WR_RDMA_WRITE, 8);
    c->poll(Acks::kLeave);
  }
  EXPECT_EQ(destroyed.pair.b.end.device().destroy_qp(*destroyed.pair.b.qp), 0);
  EXPECT_EQ(reset.pair.b.to_state(IBV_QPS_RESET), 0);
  for (Conversation* c : {&destroyed, &reset}) {
    EXPECT_EQ(c->told, "ack ");
    EXPECT_EQ(c->outcome(), IBV_WC_SUCCESS);
  }
}

}  // namespace
}  // namespace bypass::rdma::test
