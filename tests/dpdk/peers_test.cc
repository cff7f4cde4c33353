// Peers that end, die, freeze and come back, under traffic; rivals for a path.
#include <thread>

#include "driver.h"

namespace bypass::test {
namespace {

// The counters of both ends, for the message of a failure. Both ends are in the middle of a command.
std::string account(Driver& a, Driver& b) {
  std::string text;
  for (Driver* each : {&a, &b})
    text += " [" + each->ask("stats") + " | " + each->hear() + " | " + each->ask("said") + "]";
  return text;
}

// The end under test floods; its peer echoes and is replaced. "running" after each replacement shows that
// frames pass again.
void replace_peer(const std::string& peer_kind, const std::string& kind, const std::function<void(Driver&)>& end_peer) {
  Folder folder;
  const std::string path = folder / "wire.sock";
  Driver survivor;
  auto peer = std::make_unique<Driver>();
  ASSERT_OK(peer->ask("open " + peer_kind + " " + path));
  ASSERT_OK(survivor.ask("open " + kind + " " + path));
  peer->say("echo");
  survivor.say("flood");
  for (int round = 0; round < rounds(); round++) {
    ASSERT_EQ(survivor.hear(), "running") << "round " << round << account(survivor, *peer);
    end_peer(*peer);
    peer = std::make_unique<Driver>();
    ASSERT_OK(peer->ask("open " + peer_kind + " " + path));
    peer->say("echo");
  }
  ASSERT_EQ(survivor.hear(), "running") << account(survivor, *peer);
  EXPECT_OK(survivor.ask("stats"));
  EXPECT_OK(survivor.hear());
}

TEST(DpdkPeers, VirtioSurvivesAVhostThatIsKilled) {
  replace_peer("vhost", "virtio", [](Driver& peer) { peer.kill_now(); });
}
TEST(DpdkPeers, VhostSurvivesAVirtioThatIsKilled) {
  replace_peer("virtio", "vhost", [](Driver& peer) { peer.kill_now(); });
}
TEST(DpdkPeers, VirtioSurvivesAVhostThatCloses) {
  replace_peer("vhost", "virtio", [](Driver& peer) {
    EXPECT_OK(peer.ask("close"));
    EXPECT_OK(peer.hear());
  });
}
TEST(DpdkPeers, VhostSurvivesAVirtioThatCloses) {
  replace_peer("virtio", "vhost", [](Driver& peer) {
    EXPECT_OK(peer.ask("close"));
    EXPECT_OK(peer.hear());
  });
}

// A frozen peer: no call blocks meanwhile, and frames pass again when the peer goes on.
void freeze_peer(const std::string& peer_kind, const std::string& kind) {
  Folder folder;
  const std::string path = folder / "wire.sock";
  Driver survivor, peer;
  ASSERT_OK(peer.ask("open " + peer_kind + " " + path));
  ASSERT_OK(survivor.ask("open " + kind + " " + path));
  peer.say("echo");
  for (int round = 0; round < rounds(); round++) {
    survivor.say("flood");
    ASSERT_EQ(survivor.hear(), "running") << "round " << round << account(survivor, peer);
    peer.signal(SIGSTOP);
    EXPECT_OK(survivor.ask("stats"));  // ends the flood, whose answer comes first
    EXPECT_OK(survivor.hear());
    peer.signal(SIGCONT);
  }
  peer.signal(SIGSTOP);
  EXPECT_OK(survivor.ask("close"));
  peer.signal(SIGCONT);
}
TEST(DpdkPeers, VirtioIsNotHeldUpByAFrozenVhost) {
  freeze_peer("vhost", "virtio");
}
TEST(DpdkPeers, VhostIsNotHeldUpByAFrozenVirtio) {
  freeze_peer("virtio", "vhost");
}

TEST(DpdkPeers, VirtioOpensWhileTheVhostIsFrozen) {
  Wire wire;
  ASSERT_OK(wire.open_vhost());
  wire.vhost.signal(SIGSTOP);
  EXPECT_OK(wire.open_virtio());
  wire.vhost.signal(SIGCONT);
  EXPECT_OK(wire.virtio.ask("wait-link up"));
  wire.vhost.say("echo");
  EXPECT_EQ(wire.virtio.ask("ping 100 60"), "ok 100 0");
}

// The peer of a process that ends meanwhile may still want the last FIN.
TEST(DpdkPeers, LinkOfAVhostEndIsExpectedWhileItsPeerIsThere) {
  Wire wire;
  ASSERT_OK(wire.open_vhost());
  ASSERT_OK(wire.vhost.ask("wait-peer gone"));
  ASSERT_OK(wire.open_virtio());
  EXPECT_OK(wire.vhost.ask("wait-peer here"));  // the link comes up in its next receive()
  EXPECT_OK(wire.vhost.ask("wait-link up"));
  wire.virtio.kill_now();
  EXPECT_OK(wire.vhost.ask("wait-peer gone"));
}

TEST(DpdkPeers, BothRestartInTurn) {
  Folder folder;
  const std::string path = folder / "wire.sock";
  auto vhost = std::make_unique<Driver>(), virtio = std::make_unique<Driver>();
  ASSERT_OK(vhost->ask("open vhost " + path));
  ASSERT_OK(virtio->ask("open virtio " + path));
  for (int round = 0; round < rounds(); round++) {
    auto& fallen = round % 2 == 0 ? vhost : virtio;
    fallen = std::make_unique<Driver>();
    ASSERT_OK(fallen->ask((round % 2 == 0 ? "open vhost " : "open virtio ") + path));
    vhost->say("echo");
    virtio->say("flood");
    ASSERT_EQ(virtio->hear(), "running");
    for (Driver* end : {virtio.get(), vhost.get()}) {
      EXPECT_OK(end->ask("stats"));
      EXPECT_OK(end->hear());
    }
  }
}

TEST(DpdkPeers, AChildThatDroppedDoesNotHideItsParentsDeath) {
  Wire wire;
  wire.open();
  const std::string answer = wire.vhost.ask("hold-in-child");
  ASSERT_OK(answer);
  const pid_t child = std::atoi(answer.c_str() + 3);
  wire.vhost.kill_now();
  EXPECT_OK(wire.virtio.ask("wait-link down"));
  Driver next;
  EXPECT_OK(next.ask("open vhost " + wire.path));
  EXPECT_OK(wire.virtio.ask("wait-link up"));
  kill(child, SIGKILL);
}

TEST(DpdkPeers, ASecondClientWaitsForTheFirstToLeave) {
  Wire wire;
  wire.open();
  Driver rival;
  ASSERT_OK(rival.ask("open virtio " + wire.path));
  wire.vhost.say("echo");
  EXPECT_EQ(wire.virtio.ask("ping 1000 60"), "ok 1000 0");
  while (rival.ask("said").find("another client") == std::string::npos)
    std::this_thread::yield();  // at its second look
  wire.virtio.kill_now();
  EXPECT_OK(rival.ask("wait-link up"));
  rival.say("flood");
  EXPECT_EQ(rival.hear(), "running");
}

TEST(DpdkPeers, AStalePathIsTakenOver) {
  Folder folder;
  const std::string path = folder / "wire.sock";
  Driver dead, next;
  ASSERT_OK(dead.ask("open vhost " + path));
  dead.kill_now();
  ASSERT_TRUE(std::filesystem::exists(path));
  EXPECT_OK(next.ask("open vhost " + path));
  EXPECT_OK(next.ask("close"));
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(DpdkPeers, ALivePathIsRefused) {
  Wire wire;
  wire.open();
  Driver thief;
  const std::string answer = thief.ask("open vhost " + wire.path);
  EXPECT_EQ(answer.rfind("error", 0), 0U) << answer;
  EXPECT_NE(answer.find("another process serves this path"), std::string::npos) << answer;
  wire.vhost.say("echo");
  EXPECT_EQ(wire.virtio.ask("ping 1000 60"), "ok 1000 0");
}

}  // namespace
}  // namespace bypass::test
