#include "stack/ip/arp.h"

#include "stack/net/one_host.h"

namespace bypass::test {
namespace {

class Arp : public OneHost {
 protected:
  Arp() : OneHost(config()) {}
  static HostConfig config() {
    HostConfig config;
    config.stack.arp_reachable = 10s;
    config.stack.arp_queue = 4;
    return config;
  }
};

TEST_F(Arp, InterfaceSetUp_AnnouncesTwice) {
  World fresh;
  fresh.add_host({});
  sim::SimPort& other = fresh.add_probe();
  fresh.run_for(1ms);
  const auto first = fresh.read(other);
  ASSERT_EQ(first.size(), 1U);
  EXPECT_TRUE(is_announcement(first[0]));
  EXPECT_EQ(arp(first[0]).sender_ip, ip("10.9.0.1").v4());
  EXPECT_EQ(ethernet(first[0]).destination, MacAddress::broadcast());
  fresh.run_for(10s);
  EXPECT_EQ(fresh.read(other).size(), 1U) << "RFC 5227: twice, two seconds apart";
}

TEST_F(Arp, FirstPacket_AsksAndFollowsTheAnswer) {
  ASSERT_TRUE(send_to("10.9.0.2"));
  const auto asked = run(1us);
  ASSERT_EQ(asked.size(), 1U);
  EXPECT_TRUE(is_arp_request(asked[0]));
  EXPECT_EQ(arp(asked[0]).target_ip, ip("10.9.0.2").v4());
  EXPECT_EQ(arp(asked[0]).sender_ip, ip("10.9.0.1").v4());
  const auto sent = exchange(arp_reply());
  ASSERT_EQ(sent.size(), 1U);
  EXPECT_EQ(ethernet(sent[0]).destination, mac(2));
  EXPECT_EQ(ipv4(sent[0]).destination, ip("10.9.0.2").v4());
  EXPECT_TRUE(checksum_is_good(checksum(&ipv4(sent[0]), 20)));
}

TEST_F(Arp, KnownNeighbour_IsNotAskedAgain) {
  resolve_peer();
  ASSERT_TRUE(send_to("10.9.0.2"));
  const auto sent = run(1us);
  ASSERT_EQ(sent.size(), 1U);
  EXPECT_EQ(ethernet(sent[0]).type, wire::kEtherTypeIpv4);
}

class ArpBehind : public OneHost {
 protected:
  ArpBehind() : OneHost(config()) {}
  static HostConfig config() {
    HostConfig config;
    config.caps.keeps_sent = true;
    return config;
  }
  Stack& stack() { return host.stack(); }
};

TEST_F(ArpBehind, KnownNeighbour_IsAskedBehindWhatWasSent) {
  resolve_peer();
  ASSERT_TRUE(send_to("10.9.0.2"));
  stack().ask_behind(host.ctx());
  EXPECT_EQ(stack().asked(), 1U);
  const auto sent = run(1us);
  ASSERT_EQ(sent.size(), 2U);
  EXPECT_EQ(ethernet(sent[0]).type, wire::kEtherTypeIpv4);
  EXPECT_TRUE(is_arp_request(sent[1]));
  EXPECT_EQ(ethernet(sent[1]).destination, mac(2));
  exchange(arp_reply());
  EXPECT_EQ(stack().asked(), 0U);
}

TEST_F(ArpBehind, NobodyKnown_NobodyIsAsked) {
  ASSERT_TRUE(send_to("10.9.0.2"));  // asked, and silent
  stack().ask_behind(host.ctx());
  EXPECT_EQ(stack().asked(), 0U);
}

TEST_F(Arp, PortThatKeepsNothing_NobodyIsAskedBehind) {
  resolve_peer();
  host.stack().ask_behind(host.ctx());
  EXPECT_EQ(host.stack().asked(), 0U);
}

TEST_F(Arp, NoAnswer_AsksThreeTimesThenDrops) {
  ASSERT_TRUE(send_to("10.9.0.2"));
  const auto asked = run(5s);
  EXPECT_EQ(asked.size(), 3U);
  EXPECT_EQ(counters().arp_failed, 1U);
  EXPECT_EQ(counters().drop_arp_queue, 1U);
  EXPECT_EQ(leaked(), 0U);
}

TEST_F(Arp, AfterFailure_TheNextPacketAsksAnew) {
  ASSERT_TRUE(send_to("10.9.0.2"));
  run(5s);
  ASSERT_TRUE(send_to("10.9.0.2"));
  EXPECT_EQ(run(1ms).size(), 1U);
  EXPECT_EQ(exchange(arp_reply()).size(), 1U);
}

TEST_F(Arp, QueueFull_TheOldestGivesWay) {
  for (int i = 0; i < 6; i++) ASSERT_TRUE(send_to("10.9.0.2", "packet " + std::to_string(i)));
  run(1us);
  EXPECT_EQ(counters().drop_arp_queue, 2U);
  const auto sent = exchange(arp_reply());
  ASSERT_EQ(sent.size(), 4U);
  EXPECT_EQ(std::to_integer<char>(sent[0].back()), '2');
  EXPECT_EQ(std::to_integer<char>(sent[3].back()), '5');
}

TEST_F(Arp, ManyUnresolved_WaitWithinTheTablesBound) {
  for (int i = 2; i < 200; i++)
    for (int k = 0; k < 4; k++) ASSERT_TRUE(send_to(("10.9.0." + std::to_string(i)).c_str()));
  EXPECT_EQ(counters().drop_arp_queue, 198U * 4 - NeighbourTable::kMaxWaiting);
  run(5s);
  EXPECT_EQ(counters().arp_failed, 198U);
  EXPECT_EQ(leaked(), 0U);
}

TEST_F(Arp, ExternalBytes_AreNotHeldForANeighbour) {
  Path path;
  ASSERT_TRUE(host.network().resolve({}, ip("10.9.0.2"), path));
  Packet* packet = host.network().alloc(host.ctx(), path);
  const std::byte outside[4]{};
  packet->len = 20;
  packet->frame_len = 24;
  packet->external[0] = outside;
  packet->external_len[0] = 4;
  ASSERT_TRUE(host.network().send(host.ctx(), path, packet, 6));
  EXPECT_EQ(counters().drop_arp_queue, 1U);
}

TEST_F(Arp, StaleAndUnused_IsForgottenWithoutAQuestion) {
  resolve_peer();
  EXPECT_TRUE(run(200s).empty());
  ASSERT_TRUE(send_to("10.9.0.2"));
  const auto asked = run(1us);
  ASSERT_EQ(asked.size(), 1U);
  EXPECT_TRUE(is_arp_request(asked[0]));
}

TEST_F(Arp, StaleInUse_IsAskedAloneWhileItGoesOn) {
  Path path;
  ASSERT_TRUE(host.network().resolve({}, ip("10.9.0.2"), path));
  ASSERT_TRUE(send_on(path));
  exchange(arp_reply());
  ASSERT_TRUE(send_on(path));
  run(11s);
  ASSERT_TRUE(send_on(path));
  const auto sent = run(1us);
  ASSERT_EQ(sent.size(), 2U);
  EXPECT_TRUE(is_arp_request(sent[0]));
  EXPECT_EQ(ethernet(sent[0]).destination, mac(2)) << "to the neighbour alone";
  EXPECT_EQ(ethernet(sent[1]).type, wire::kEtherTypeIpv4);
  exchange(arp_reply());
  EXPECT_TRUE(run(5s).empty()) << "reachable again";
}

TEST_F(Arp, Confirmed_StaysReachableWithoutQuestions) {
  Path path;
  ASSERT_TRUE(host.network().resolve({}, ip("10.9.0.2"), path));
  ASSERT_TRUE(send_on(path));
  exchange(arp_reply());
  for (int i = 0; i < 40; i++) {
    ASSERT_TRUE(send_on(path));
    host.network().confirm(host.ctx(), path);
    const auto sent = run(1s);
    ASSERT_EQ(sent.size(), 1U);
    EXPECT_EQ(ethernet(sent[0]).type, wire::kEtherTypeIpv4);
  }
}

TEST_F(Arp, StaleNeighbourGone_EndsInBroadcastAndFailure) {
  Path path;
  ASSERT_TRUE(host.network().resolve({}, ip("10.9.0.2"), path));
  ASSERT_TRUE(send_on(path));
  exchange(arp_reply());
  run(11s);
  ASSERT_TRUE(send_on(path));
  unsigned alone = 0, to_all = 0;
  for (const auto& frame : run(8s)) {
    if (!is_arp_request(frame)) continue;
    (ethernet(frame).destination == mac(2) ? alone : to_all)++;
  }
  EXPECT_EQ(alone, 3U);
  EXPECT_EQ(to_all, 3U);
  EXPECT_EQ(counters().arp_failed, 1U);
}

TEST_F(Arp, NeighbourMovesToAnotherMac_PathsFollow) {
  Path path;
  ASSERT_TRUE(host.network().resolve({}, ip("10.9.0.2"), path));
  ASSERT_TRUE(send_on(path));
  exchange(arp_reply());
  // The host's own request tells us its address. A path that cached the old one must not be used again.
  exchange(arp_frame({.from_mac = mac(5), .sender_mac = mac(5)}));
  ASSERT_TRUE(send_on(path));
  const auto sent = run(1us);
  ASSERT_EQ(sent.size(), 1U);
  EXPECT_EQ(ethernet(sent[0]).destination, mac(5));
}

TEST_F(Arp, RequestForUs_IsAnsweredAndLearnedFrom) {
  const auto answers = exchange(arp_frame({}));
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(arp(answers[0]).operation, wire::kArpReply);
  EXPECT_EQ(arp(answers[0]).sender_mac, mac(1));
  EXPECT_EQ(ethernet(answers[0]).destination, mac(2));
  EXPECT_EQ(counters().arp_replies, 1U);
  ASSERT_TRUE(send_to("10.9.0.2"));
  EXPECT_EQ(ethernet(run(1us).at(0)).type, wire::kEtherTypeIpv4);
}

TEST_F(Arp, AddressProbe_IsAnsweredButNotLearnedFrom) {
  const auto answers = exchange(arp_frame({.sender_ip = "0.0.0.0"}));
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(host.network().impl().arp.next_timeout(), kNever) << "no entry, no deadline";
}

TEST_F(Arp, RequestForAnother_IsIgnoredAndNotLearnedFrom) {
  EXPECT_TRUE(exchange(arp_frame({.target_ip = "10.9.0.77"})).empty());
  EXPECT_EQ(counters().drop_arp_ignored, 1U);
  ASSERT_TRUE(send_to("10.9.0.2"));
  EXPECT_TRUE(is_arp_request(run(1us).at(0)));
}

TEST_F(Arp, UnaskedReply_IsNotBelieved) {
  exchange(arp_reply());
  EXPECT_EQ(counters().drop_arp_ignored, 1U);
  ASSERT_TRUE(send_to("10.9.0.2"));
  EXPECT_TRUE(is_arp_request(run(1us).at(0)));
}

TEST_F(Arp, GratuitousFromKnownNeighbour_IsDoubtedNotBelieved) {
  resolve_peer();
  const auto asked =
      exchange(arp_frame({.from_mac = mac(6), .sender_mac = mac(6), .sender_ip = "10.9.0.2", .target_ip = "10.9.0.2"}));
  ASSERT_EQ(asked.size(), 1U);
  EXPECT_TRUE(is_arp_request(asked[0]));
  EXPECT_EQ(ethernet(asked[0]).destination, MacAddress::broadcast());
  ASSERT_TRUE(send_to("10.9.0.2"));
  EXPECT_EQ(ethernet(run(1us).at(0)).destination, mac(2)) << "until the real one has answered";
}

TEST_F(Arp, SenderClaimsOurAddress_IsCountedAndDefendedOnce) {
  const auto claim = arp_frame({.sender_ip = "10.9.0.1", .target_ip = "10.9.0.1"});
  const auto defence = exchange(claim);
  ASSERT_EQ(defence.size(), 1U);
  EXPECT_TRUE(is_announcement(defence[0]));
  EXPECT_TRUE(exchange(claim).empty()) << "RFC 5227 §2.4: not again within ten seconds";
  EXPECT_EQ(counters().drop_arp_conflict, 2U);
  EXPECT_EQ(host.network().address_conflict(0).address, ip("10.9.0.1"));
  EXPECT_EQ(host.network().address_conflict(0).mac, mac(2));
}

TEST_F(Arp, Malformed_IsCounted) {
  auto wrong_protocol = arp_frame({});
  wrong_protocol[16] = std::byte{0x86};
  auto multicast_sender = arp_frame({.sender_mac = {{0x01, 0, 0x5e, 0, 0, 1}}});
  auto cut = arp_frame({});
  cut.resize(41);
  for (const auto& frame : {wrong_protocol, multicast_sender, cut}) EXPECT_TRUE(exchange(frame).empty());
  EXPECT_EQ(counters().drop_arp_malformed, 3U);
}

TEST_F(Arp, FloodOfRequests_CostsNoEntryInUse) {
  Path path;
  ASSERT_TRUE(host.network().resolve({}, ip("10.9.0.2"), path));
  ASSERT_TRUE(send_on(path));
  exchange(arp_reply());
  ASSERT_TRUE(send_on(path));
  run(1us);
  const std::uint32_t generation = host.network().generation();
  for (int i = 0; i < 2000; i++) {
    const std::string from = "10.9.0." + std::to_string(3 + i % 250);
    world.wire().inject(0, arp_frame({.sender_mac = mac(static_cast<unsigned>(i)), .sender_ip = from.c_str()}));
    if (i % 500 == 0) run(1us);
  }
  run(1us);
  EXPECT_EQ(host.network().generation(), generation) << "no path has to look again";
  ASSERT_TRUE(send_on(path));
  EXPECT_EQ(ethernet(run(1us).at(0)).destination, mac(2));
}

TEST_F(Arp, PortOpenedAfresh_AnnouncesAndAsksAgain) {
  resolve_peer();
  ASSERT_TRUE(send_to("10.9.0.9"));  // waits
  run(1us);
  const Prefix prefix{ip("10.9.0.1"), 24};
  ASSERT_TRUE(host.stack().set_interface(0, {.mac = mac(1), .addresses = {&prefix, 1}}));
  const auto sent = run(1ms);
  ASSERT_EQ(sent.size(), 1U);
  EXPECT_TRUE(is_announcement(sent[0]));
  EXPECT_LE(host.port().buffers_out(), 32U) << "what waited was given back";
  ASSERT_TRUE(send_to("10.9.0.2"));
  EXPECT_TRUE(is_arp_request(run(1us).at(0)));
}

// A table by itself, to test bounds that a host's subnet cannot reach.
TEST(NeighbourTable, FullOfEntriesInUse_LearnsNothingButServesTheWanted) {
  auto table = std::make_unique<NeighbourTable>();
  for (std::uint32_t i = 0; i < NeighbourTable::kSize; i++) {
    const std::uint16_t name = table->add_wanted(0, i);
    ASSERT_NE(name, 0);
    (*table)[name].state = NeighbourState::kReachable;
    (*table)[name].used = true;
    (*table)[name].confirmed = Instant{Duration{i == 77 ? 1 : 1000}};
  }
  EXPECT_EQ(table->add_learned(0, 100'000), 0);
  const std::uint32_t generation = table->generation();
  EXPECT_NE(table->add_wanted(0, 100'001), 0);
  EXPECT_EQ(table->find(0, 77), 0) << "the one that was silent longest";
  EXPECT_NE(table->generation(), generation);
}

// A subnet with more hosts than the table has places.
class WideArp : public OneHost {
 protected:
  WideArp() : OneHost({.prefix = 16}) {}
};

// Between two uses an entry is stale, and no path has its MAC. Forged senders must not take its place then.
TEST_F(WideArp, FloodOfForgedSenders_LeavesTheEntryOfAPeerAlone) {
  resolve_peer();
  run(11s);
  for (std::uint32_t i = 0; i < 4 * NeighbourTable::kSize; i++) {
    const std::string sender = "10.9." + std::to_string(1 + i / 200) + "." + std::to_string(1 + i % 200);
    exchange(arp_frame({.from_mac = mac(9), .sender_mac = mac(9), .sender_ip = sender.c_str()}));
  }
  ASSERT_TRUE(send_to("10.9.0.2"));
  const auto sent = run(1us);
  ASSERT_FALSE(sent.empty());
  EXPECT_EQ(ethernet(sent.back()).type, wire::kEtherTypeIpv4) << "at once, to the MAC that was known";
}

TEST(NeighbourTable, FullOfQuestions_RefusesMore) {
  auto table = std::make_unique<NeighbourTable>();
  for (std::uint32_t i = 0; i < NeighbourTable::kSize; i++)
    (*table)[table->add_wanted(0, i)].state = NeighbourState::kIncomplete;
  EXPECT_EQ(table->add_wanted(0, 100'000), 0);
}

}  // namespace
}  // namespace bypass::test
