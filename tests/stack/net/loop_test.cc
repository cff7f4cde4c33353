// A host that talks to its own address: no frame reaches the port.
#include "stack/net/one_host.h"

namespace bypass::test {
namespace {

class Looped : public OneHost {
 protected:
  explicit Looped(const HostConfig& config = {}) : OneHost(config) {
    server = *host.udp().open({ip("10.9.0.1"), 7}, 1 << 20, {}, &server);
    client = *host.udp().open({ip("10.9.0.1"), 9}, 1 << 20, {}, &client);
  }
  Result<std::size_t> send(const std::string& text) {
    const std::span<const std::byte> piece = bytes_of(text);
    host.ctx().now = world.now();
    return host.udp().send(host.ctx(), *client, {ip("10.9.0.1"), 7}, {}, {&piece, 1}, {});
  }
  udp::Binding* server;
  udp::Binding* client;
};

TEST_F(Looped, Datagram_ArrivesAtTheNextPoll) {
  ASSERT_TRUE(send("to myself").ok());
  EXPECT_TRUE(host.stack().output_pending());
  EXPECT_LE(host.stack().next_timeout(), world.now());
  EXPECT_EQ(host.udp().queued(*server), 0U);
  EXPECT_TRUE(run(1us).empty()) << "the wire sees nothing";
  udp::Datagram datagram;
  ASSERT_TRUE(host.udp().front(*server, datagram));
  EXPECT_EQ(datagram.length, 9U);
  EXPECT_EQ(datagram.source, (Endpoint{ip("10.9.0.1"), 9}));
  EXPECT_FALSE(host.stack().output_pending());
}

TEST_F(Looped, NobodyThere_ComesBackAsRefused) {
  host.udp().close(host.ctx(), *server);
  host.udp().connect(*client, {ip("10.9.0.1"), 7});
  ASSERT_TRUE(send("anybody?").ok());
  run(10us);
  EXPECT_EQ(host.udp().take_error(*client), Error::kRefused);
}

TEST_F(Looped, TooMany_MakeTheSenderWait) {
  int sent = 0;
  while (send("x").ok()) sent++;
  EXPECT_EQ(send("x").error(), Error::kWouldBlock);
  EXPECT_EQ(sent, 256);
  run(1us);
  EXPECT_EQ(host.udp().queued(*server), 256U);
  EXPECT_TRUE(send("x").ok());
}

TEST_F(Looped, NoPortOpen_StillWorks) {
  host.ctx().queue(0).drain();
  host.ctx().ports = 0;
  ASSERT_TRUE(send("no wire").ok());
  host.stack().resume_output(host.ctx());
  EXPECT_EQ(host.udp().queued(*server), 1U);
  host.ctx().ports = 1;
}

TEST_F(Looped, OwnAddressFromTheWire_IsNotBelieved) {
  exchange(udp_frame({.from = "10.9.0.1"}, 9, 7, bytes_of("spoofed")));
  EXPECT_EQ(host.udp().queued(*server), 0U);
  EXPECT_EQ(counters().drop_ip_source, 1U);
}

/// TCP over the loop: large frames, bytes outside of the packet, both ends in one stack.
class LoopedStream : public Looped {
 protected:
  void SetUp() override {
    listener = *tcp.listen({ip("10.9.0.1"), 80}, 8, {}, &listener);
    host.ctx().now = world.now();
    from = *tcp.connect(host.ctx(), {}, {ip("10.9.0.1"), 80}, {}, &from);
    ASSERT_TRUE(world.run_until([&] { return tcp.accept_queue_length(*listener) == 1; }));
    to = *tcp.accept(host.ctx(), *listener, &to);
  }
  void TearDown() override {
    EXPECT_TRUE(world.read(probe).empty());
    for (tcp::Tcb* end : {from, to})
      if (end != nullptr) tcp.abort(host.ctx(), *end);
    tcp.close_listener(host.ctx(), *listener);
  }
  void write() {
    const auto room = tcp.reserve(*from, std::min<std::size_t>(total - sent, 100'000));
    if (sent == total || !room.ok()) return;
    for (const auto& part : room->part)
      for (std::byte& b : part) b = static_cast<std::byte>(sent++ % 251);
    tcp.commit(host.ctx(), *from, room->size(), false);
  }
  void read() {
    std::array<std::span<const std::byte>, 16> parts;
    const std::size_t n = tcp.peek(*to, parts);
    std::size_t taken = 0;
    for (std::size_t i = 0; i < n; i++)
      for (const std::byte b : parts[i])
        if (b != static_cast<std::byte>((got + taken++) % 251)) ADD_FAILURE() << "at " << got + taken;
    got += taken;
    if (taken != 0) tcp.consume(host.ctx(), *to, taken);
  }
  bool carries(std::size_t bytes) {
    total += bytes;
    return world.run_until([&] {
      host.ctx().now = world.now();
      write();
      read();
      return got == total;
    });
  }
  tcp::Engine& tcp = host.tcp();
  tcp::Listener* listener = nullptr;
  tcp::Tcb *from = nullptr, *to = nullptr;
  std::size_t sent = 0, got = 0, total = 0;
};

TEST_F(LoopedStream, OfLargeFrames_IsCarried) {
  EXPECT_TRUE(carries(3'000'000)) << sent << " sent, " << got << " arrived";
}

TEST_F(LoopedStream, MemoryUsedUp_IsCarriedASegmentAtATime) {
  ASSERT_TRUE(carries(100'000));
  constexpr std::size_t kRing = 128U << 10, kKept = 64U << 10;
  Memory& memory = host.memory();
  memory.keep_back(kKept);
  memory.set_budget(memory.stats().used_bytes + kRing + kKept);
  EXPECT_TRUE(carries(100'000)) << sent << " sent, " << got << " arrived";
  EXPECT_GT(counters().drop_no_memory, 0U);
  EXPECT_LT(counters().tcp_rto, 4U) << "nor does it wait for a timer each";
}

}  // namespace
}  // namespace bypass::test
