// What a device that steers is told: FlowLog, and which of the stack's flows have a rule of their own.
#include "stack/frame/flow_log.h"
#include "stack/ip/route.h"
#include "stack/tcp/script.h"

namespace bypass::test {
namespace {

constexpr std::uint8_t kTcp = 6, kUdp = 17;

struct Steered : Script {
  explicit Steered(const Given& given = {}) : Script(given) {
    const Prefix own{ip("10.9.0.1"), 24};
    InterfaceConfig config;
    config.mac = host().mac_address();
    config.addresses = {&own, 1};
    config.steered = true;
    (void)host().stack().set_interface(0, config);
    ignore_all();
  }

  // Called after a death that broke this object.
  void rebuild(void* broken) {
    ctx().now = world().now();
    engine().impl().current = broken;
    host().memory().begin_rebuild();
    host().stack().rebuild(ctx());
    host().memory().finish_rebuild();
  }

  // No room for one more.
  void fill_flow_log() {
    host().memory().set_budget(1);
    for (std::uint16_t port = 1; host().network().flows().note({kUdp, {ip("10.9.0.1"), port}, {}}, true);) port++;
  }

  // Returns the notes as text, and forgets them: "+tcp 10.9.0.1:80<10.9.0.2:40000".
  std::string noted() {
    std::string text;
    for (const FlowChange& change : host().network().flows().pending()) {
      const auto& [protocol, local, remote] = change.flow;
      if (!text.empty()) text += ' ';
      text += std::string(change.add ? "+" : "-") + (protocol == kTcp ? "tcp:" : "udp:") + std::to_string(local.port);
      if (remote.port != 0) text += "<" + std::to_string(remote.port);
    }
    host().network().flows().clear();
    return text;
  }
};

TEST(FlowLog, WithoutASteeredInterface_NotesNothing) {
  Script s;
  s.listen();
  EXPECT_TRUE(s.host().network().flows().pending().empty());
}

TEST(FlowLog, WhatIsTakenBackAtOnce_LeavesNothing) {
  Steered s;
  FlowLog& flows = s.host().network().flows();
  const FlowSpec one{kTcp, {ip("10.9.0.1"), 1}, {}}, other{kTcp, {ip("10.9.0.1"), 2}, {}};
  EXPECT_TRUE(flows.note(one, true));
  flows.note_end(one);
  EXPECT_EQ(s.noted(), "");
  EXPECT_TRUE(flows.note(one, true));
  EXPECT_TRUE(flows.note(other, true));
  flows.note_end(one);
  EXPECT_EQ(s.noted(), "+tcp:1 +tcp:2 -tcp:1");
}

TEST(FlowLog, GrowsAndKeepsItsOrder) {
  Steered s;
  FlowLog& flows = s.host().network().flows();
  for (std::uint16_t port = 1; port <= 1000; port++) EXPECT_TRUE(flows.note({kUdp, {ip("10.9.0.1"), port}, {}}, true));
  ASSERT_EQ(flows.pending().size(), 1000U);
  for (std::uint16_t i = 0; i < 1000; i++) EXPECT_EQ(flows.pending()[i].flow.local.port, i + 1);
}

TEST(FlowLog, WithoutMemory_CountsWhatIsLost) {
  Steered s;
  s.host().memory().set_budget(1);
  EXPECT_FALSE(s.host().network().flows().note({kTcp, {ip("10.9.0.1"), 1}, {}}, true));
  EXPECT_EQ(s.noted(), "");
  EXPECT_EQ(s.counters().steer_lost, 1U);
}

// By then the rule belongs to another socket.
TEST(FlowLog, BeginningThatWasLost_HasNoEnd) {
  Steered s;
  s.establish();  // each kind has its slab
  const auto bound = s.host().udp().open({ip("10.9.0.1"), 53}, 1 << 16, {.port = true}, nullptr);
  ASSERT_TRUE(bound.ok());
  EXPECT_EQ(s.noted(), "+tcp:80 +udp:53");
  s.fill_flow_log();
  const auto second = s.host().udp().open({ip("10.9.0.1"), 53}, 1 << 16, {.port = true}, nullptr);
  const auto listener = s.engine().listen({ip("10.9.0.1"), 81}, 1, {}, nullptr, true);
  ASSERT_TRUE(second.ok() && listener.ok());
  s.new_peer(40001);
  s.connect(5000);
  EXPECT_EQ(s.counters().steer_lost, 4U);  // the one that did not fit
  s.host().network().flows().clear();
  s.abort();
  s.host().udp().close(s.ctx(), **second);
  s.engine().close_listener(s.ctx(), **listener);
  EXPECT_EQ(s.noted(), "");
  s.host().udp().close(s.ctx(), **bound);
  EXPECT_EQ(s.noted(), "-udp:53");
}

TEST(FlowLog, SurvivesARebuild) {
  Steered s;
  s.listen();
  s.rebuild(nullptr);
  EXPECT_EQ(s.noted(), "+tcp:80");
}

TEST(Steering, Listener_CoversItsConnections) {
  Steered s;
  s.establish();
  EXPECT_EQ(s.noted(), "+tcp:80");
  s.abort();
  EXPECT_EQ(s.noted(), "");
}

TEST(Steering, ListenerThatGoes_LeavesARuleForEachOfItsConnections) {
  Steered s;
  s.establish();
  (void)s.noted();
  s.engine().close_listener(s.ctx(), *s.listener());
  EXPECT_EQ(s.noted(), "+tcp:80<40000 -tcp:80");
  s.abort();
  EXPECT_EQ(s.noted(), "-tcp:80<40000");
}

TEST(Steering, SecondListenerOfThePort_GoesOnCovering) {
  Steered s;
  const auto other = s.engine().listen({ip("10.9.0.1"), 80}, 1, {}, nullptr, true);
  ASSERT_TRUE(other.ok());
  const auto one = s.engine().listen({ip("10.9.0.1"), 80}, 1, {}, nullptr, true);
  ASSERT_TRUE(one.ok());
  s.new_peer(40000);
  s.inject(seg().syn().seq(0)).ignore_all();
  (void)s.noted();
  s.engine().close_listener(s.ctx(), **one);
  EXPECT_EQ(s.noted(), "-tcp:80");
}

TEST(Steering, Connection_HasARuleBeforeItsSynLeaves) {
  Steered s;
  s.connect(5000);
  EXPECT_EQ(s.noted(), "+tcp:5000<40000");
}

TEST(Steering, Connection_KeepsItsRuleUntilTimeWaitEnds) {
  Steered s;
  s.establish_active();
  const Endpoint local{ip("10.9.0.1"), s.local_port}, remote{ip("10.9.0.2"), 40000};
  const std::string rule = "tcp:" + std::to_string(s.local_port) + "<40000";
  EXPECT_EQ(s.noted(), "+" + rule);
  s.close().inject(seg().fin().seq(1).ack(2)).ignore_all();
  EXPECT_EQ(s.noted(), "");
  EXPECT_TRUE(s.engine().serves(local, remote));
  s.at(61s);
  EXPECT_EQ(s.noted(), "-" + rule);
  EXPECT_FALSE(s.engine().serves(local, remote));
}

TEST(Steering, ConnectionLostInADeath_LosesItsRule) {
  Steered s;
  s.establish_active();
  const std::string rule = "tcp:" + std::to_string(s.local_port) + "<40000";
  EXPECT_EQ(s.noted(), "+" + rule);
  s.rebuild(s.tcb());
  EXPECT_EQ(s.noted(), "-" + rule);
}

TEST(Steering, TimeWaitLostInADeath_LosesItsRule) {
  Steered s;
  s.establish_active();
  const std::string rule = "tcp:" + std::to_string(s.local_port) + "<40000";
  s.close().inject(seg().fin().seq(1).ack(2)).ignore_all();
  EXPECT_EQ(s.noted(), "+" + rule);
  s.rebuild(s.engine().impl().time_waits.oldest);
  EXPECT_EQ(s.noted(), "-" + rule);
}

TEST(Steering, DeviceOpenedAfresh_IsToldEverything) {
  Steered s;
  s.establish_active();
  s.listen();
  const auto bound = s.host().udp().open({ip("10.9.0.1"), 53}, 1 << 16, {}, nullptr);
  ASSERT_TRUE(bound.ok());
  const std::string port = std::to_string(s.local_port);
  EXPECT_EQ(s.noted(), "+tcp:" + port + "<40000 +tcp:" + port + " +udp:53");
  s.host().stack().steer_all(s.ctx());
  EXPECT_EQ(s.noted(), "+tcp:" + port + " +udp:53");  // the listener covers that connection
  s.host().udp().close(s.ctx(), **bound);
  EXPECT_EQ(s.noted(), "-udp:53");
}

TEST(Steering, ChosenEndpoint_IsAFreeNumberOfTheRoutesAddress) {
  Steered s;
  const Endpoint remote{ip("10.9.0.2"), 80};
  const auto one = s.engine().choose_endpoint(s.ctx(), {}, remote);
  const auto other = s.engine().choose_endpoint(s.ctx(), {}, remote);
  ASSERT_TRUE(one.ok() && other.ok());
  EXPECT_EQ(one->address, ip("10.9.0.1"));
  EXPECT_NE(one->port, other->port);
  EXPECT_FALSE(s.engine().choose_endpoint(s.ctx(), {}, {ip("192.0.2.1"), 80}).ok());
}

}  // namespace
}  // namespace bypass::test
