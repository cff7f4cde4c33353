// Kin: a family over World's shard. It has a listener, a peer, and children that join as src/preload has them join.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "family/fixture.h"
#include "socket/family/kin.h"
#include "socket/objects.h"
#include "socket/world.h"
#include "stack/tcp/core.h"

namespace bypass::socket {

using namespace std::chrono_literals;
using test::kOurs;
using test::kPeers;
using test::World;

struct Number {
  File* file;
  int fd;
};

inline sockaddr_in address_of(std::uint32_t host, std::uint16_t port) {
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_addr.s_addr = htonl(host);
  a.sin_port = htons(port);
  return a;
}

/// By this a child and its parent tell each other something.
using Flag = Shared<std::atomic<int>>;

inline Number accept_one(const Number& listener) {
  Accepted accepted;
  const long r = accept(*listener.file, listener.fd, nullptr, nullptr, 0, accepted);
  return r == 0 ? Number{accepted.file, accepted.number} : Number{};
}

class Kin : public testing::Test {
 protected:
  Kin() {
    Wires& wires = shard().wires();
    wires.caps[0] = world_.port().caps();
    wires.caps[0].gather = false;
    wires.macs[0] = world_.port().mac();
    wires.owner = Wires::name(shard().family().slot(), shard().family().incarnation());
    listen();
  }
  ~Kin() override {
    if (child_ > 0) end_child(SIGKILL);
    for (const Number& number : numbers_) close(number);
    // The next case finds a stack without connections.
    EXPECT_TRUE(run_until([&] { return world_.shard().stack().tcp().impl().tcbs.size() == 0; }));
  }

  void listen() {
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    listener_ = {open_socket(fd, AF_INET, SOCK_STREAM, 0), fd};
    const sockaddr_in local = address_of(kOurs, 0);
    ASSERT_EQ(bind(*listener_.file, fd, reinterpret_cast<const sockaddr*>(&local), sizeof local), 0);
    ASSERT_EQ(socket::listen(*listener_.file, fd, 8), 0);
    port_ = kernel_name(fd).port;
    numbers_.push_back(listener_);
  }
  static void close(const Number& number) {
    release(*number.file, number.fd);
    ::close(number.fd);
  }

  /// Forks as src/preload does.
  template <typename Body>
  void fork_child(Body body) {
    const Fork fork = begin_fork();
    ASSERT_NE(fork.reserved, kNoSlot);
    for (const Number& number : numbers_) share_with_child(fork, *number.file);
    child_ = ::fork();
    if (child_ == 0) {
      ::alarm(60);  // a case that has failed leaves no child
      be_child(fork);
      body();
      _exit(testing::Test::HasFailure() ? 1 : 0);
    }
    end_fork_in_parent(fork, child_);
  }
  void be_child(const Fork& fork) {
    if (!join_family(fork)) _exit(2);
    static RelayPort relay(shard().wires(), *shard().context().memory, 0);
    {
      const Guard guard(shard());
      shard().add_port(&relay, 0);
      shard().follow();
    }
    for (const Number& number : numbers_)
      if (!adopt_number(fork, *number.file, number.fd)) _exit(3);
    end_fork_in_child(fork);
  }

  template <typename Done>
  bool run_until(Done done) {
    const auto end = std::chrono::steady_clock::now() + 10s;
    while (!done() && std::chrono::steady_clock::now() < end) {
      world_.shard().poll();
      world_.run_peer_once();
    }
    return done();
  }

  static int asleep() {
    const Guard guard(shard());
    int n = 0;
    if (objects != nullptr) objects->waiters.for_each([&](const Waiter& waiter) { n += waiter.asleep ? 1 : 0; });
    return n;
  }

  /// Waits long: a process that dies takes frames with it, and an ARP request is repeated after a second.
  tcp::Tcb* connect_peer() {
    Context& ctx = world_.peer_context();
    tcp::Options options;
    options.syn_retries = 9;
    return *world_.peer().tcp().connect(ctx, {}, {IpAddress::from_v4(kOurs), port_}, options, nullptr);
  }
  /// The peer's end, and the parent's.
  void connect_both(tcp::Tcb*& peer, Number& connection) {
    peer = connect_peer();
    ASSERT_TRUE(run_until([&] { return world_.peer().tcp().state(*peer) == tcp::State::kEstablished; }));
    connection = accept_one(listener_);
    ASSERT_NE(connection.file, nullptr);
    numbers_.push_back(connection);
  }
  void peer_says(tcp::Tcb& tcb, std::string_view text) {
    const auto room = world_.peer().tcp().reserve(tcb, text.size());
    ASSERT_TRUE(room.ok());
    ASSERT_EQ(room->part[0].size(), text.size());
    std::memcpy(room->part[0].data(), text.data(), text.size());
    world_.peer().tcp().commit(world_.peer_context(), tcb, text.size(), false);
  }
  std::string peer_hears(tcp::Tcb& tcb) {
    std::array<std::span<const std::byte>, 8> spans;
    std::string text;
    const std::size_t n = world_.peer().tcp().peek(tcb, spans, 1000);
    for (std::size_t i = 0; i < n; i++) text.append(reinterpret_cast<const char*>(spans[i].data()), spans[i].size());
    return text;
  }
  void end_child(int signal) {
    if (signal != 0) ::kill(child_, signal);
    siginfo_t info{};
    waitid(P_PID, static_cast<id_t>(child_), &info, WEXITED | WNOWAIT);
    {
      Guard guard(shard());
      sweep_family(guard);
    }
    int status = 0;
    waitpid(std::exchange(child_, 0), &status, 0);
    EXPECT_TRUE(signal != 0 || (WIFEXITED(status) && WEXITSTATUS(status) == 0)) << "status " << status;
  }

  World& world_ = World::get();
  Number listener_{};
  std::uint16_t port_ = 0;
  std::vector<Number> numbers_;
  pid_t child_ = 0;
};

}  // namespace bypass::socket
