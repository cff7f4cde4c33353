// A child is killed between the stack's half of a change and the socket's half, at an instruction counted by single
// steps. The process that lives then gives up what the child had: every peer is told, and nothing is left over.
// BYPASS_TEST_LONG=1: 20 times as many places.
#include <cstdlib>
#include <random>

#include "family/stepper.h"
#include "long_form.h"
#include "socket/kin_fixture.h"

namespace bypass::socket {
namespace {

constexpr std::size_t kPlaces = 12, kLongFactor = 20;
constexpr std::uint64_t kSurvives = ~std::uint64_t{0};
constexpr std::uint16_t kPeersPort = 5000, kOwnPort = 5001;

bool in_lock() {
  return shard().lock().mine();
}

/// Finds an object of the stack that its socket does not know, or a socket to which no process refers.
bool is_torn() {
  if (!in_lock()) return false;
  const auto& core = shard().stack().tcp().impl();
  constexpr std::uint32_t kNobodys = tcp::kOrphan | tcp::kAccepting | tcp::kHalfOpen | tcp::kDeferred;
  const auto lost = [](const tcp::Tcb& tcb) {
    const auto* const socket = static_cast<const Socket*>(tcb.event.user);
    return !tcb.has(kNobodys) && (socket == nullptr || socket->tcb != &tcb);
  };
  const auto hidden = [](const tcp::Listener& listener) {
    const auto* const socket = static_cast<const Socket*>(listener.event.user);
    return socket == nullptr || listener_of(*socket) != &listener;
  };
  const auto unreferenced = [](const Socket& socket) { return socket.references.empty(); };
  return core.tcbs.any_of(lost) || core.listeners.any_of(hidden) || objects->sockets.any_of(unreferenced);
}

class KinDeath : public Kin {
 protected:
  KinDeath() {
    ShardLock::Handlers handlers;
    handlers.recover = [](void*, const void*) { rebuild_after_death(shard()); };
    shard().lock().set_handlers(handlers);
    listeners_ = shard().stack().tcp().impl().listeners.size();
    sockets_ = objects->sockets.size();
  }
  ~KinDeath() override { shard().lock().set_handlers({}); }

  /// A child does `act`, and dies in it after that many instructions that count. If it survives, the result is how many
  /// there are.
  template <typename Act>
  std::uint64_t child_acts(std::uint64_t place, bool (*counts)(), Act act) {
    return child_acts(
        place, counts, [] {}, act);
  }
  template <typename Prepare, typename Act>
  std::uint64_t child_acts(std::uint64_t place, bool (*counts)(), Prepare prepare, Act act) {
    Flag go;
    Shared<std::uint64_t> took;
    fork_child([&] {
      while (*go == 0) sched_yield();  // its parent ends its half of the fork with the lock
      prepare();
      test::Stepper::die_after(place, counts);
      act();
      *took = kSurvives - test::Stepper::remaining();
      ::kill(::getpid(), SIGKILL);
    });
    *go = 1;
    const pid_t child = await_death();
    sweep();
    waitpid(child, nullptr, 0);
    return *took;
  }
  /// Nobody waits for the child. It stays a zombie, like the children of a busy parent.
  pid_t await_death() {
    siginfo_t info{};
    waitid(P_PID, static_cast<id_t>(child_), &info, WEXITED | WNOWAIT);
    return std::exchange(child_, 0);
  }
  static void sweep() {
    Guard guard(shard());
    sweep_family(guard);
  }

  /// `once(place)`, called as child_acts() calls it.
  template <typename Once>
  void at_many_places(Once once) {
    const std::uint64_t whole = once(kSurvives);
    ASSERT_GT(whole, 0U);
    std::mt19937_64 random(1);
    const std::size_t places = bypass::test::tries(kPlaces, kLongFactor);
    for (std::size_t i = 0; i < places && !HasFailure(); i++) {
      const std::uint64_t place = 1 + random() % whole;
      SCOPED_TRACE("instruction " + std::to_string(place) + " of " + std::to_string(whole));
      (void)once(place);
    }
  }

  tcp::Engine& peers() { return world_.peer().tcp(); }
  static std::size_t waiting(const Number& listener) {
    const Guard guard(shard());
    return tcp_engine().accept_queue_length(*listener_of(socket_of(*listener.file)));
  }
  std::vector<tcp::Tcb*> connect_peers(std::size_t count) {
    std::vector<tcp::Tcb*> made;
    for (std::size_t i = 0; i < count; i++) made.push_back(connect_peer());
    EXPECT_TRUE(run_until([&] { return waiting(listener_) == count; }));
    return made;
  }
  void expect_told(const std::vector<tcp::Tcb*>& ends) {
    EXPECT_TRUE(run_until([&] {
      return std::ranges::none_of(ends, [&](auto* tcb) { return peers().state(*tcb) == tcp::State::kEstablished; });
    })) << "a peer waits";
    for (tcp::Tcb* tcb : ends) peers().close(world_.peer_context(), *tcb);
  }
  void expect_nothing_left() {
    const auto& core = shard().stack().tcp().impl();
    EXPECT_TRUE(run_until([&] { return core.tcbs.size() == 0; })) << core.tcbs.size() << " connections";
    EXPECT_EQ(core.listeners.size(), listeners_);
    EXPECT_EQ(objects->sockets.size(), sockets_);
  }

 private:
  /// The objects before the case, including those that other cases of the process have left.
  std::size_t listeners_, sockets_;
};

// As the process that gives up what another dead process had.
TEST_F(KinDeath, WhileItGivesItsConnectionsUp_EveryPeerIsTold) {
  at_many_places([&](std::uint64_t place) {
    const std::vector<tcp::Tcb*> ends = connect_peers(2);
    const auto prepare = [this] {
      for (int i = 0; i < 2; i++) (void)accept_one(listener_);
    };
    const std::uint64_t took = child_acts(place, is_torn, prepare, [] {
      Guard guard(shard());
      leave_family(guard);
    });
    expect_told(ends);
    expect_nothing_left();
    return took;
  });
}

// Another process accepts the connection that the child was about to accept, or the connection ends.
TEST_F(KinDeath, WhileItAcceptsAndCloses_ThePeerIsTold) {
  at_many_places([&](std::uint64_t place) {
    const std::vector<tcp::Tcb*> ends = connect_peers(1);
    const std::uint64_t took = child_acts(place, is_torn, [this] { close(accept_one(listener_)); });
    if (waiting(listener_) != 0) close(accept_one(listener_));
    expect_told(ends);
    expect_nothing_left();
    return took;
  });
}

TEST_F(KinDeath, WhileItConnectsAndCloses_NothingIsLeft) {
  at_many_places([&](std::uint64_t place) {
    tcp::Listener* const listener = *peers().listen({IpAddress::from_v4(kPeers), kPeersPort}, 8, {}, nullptr);
    const std::uint64_t took = child_acts(place, is_torn, [] {
      const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
      const Number number{open_socket(fd, AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), fd};
      const sockaddr_in to = address_of(kPeers, kPeersPort);
      (void)connect(*number.file, fd, reinterpret_cast<const sockaddr*>(&to), sizeof to);
      close(number);
    });
    for (int i = 0; i < 3; i++) {
      world_.run_peer_once();
      world_.shard().poll();
    }
    peers().close_listener(world_.peer_context(), *listener);
    expect_nothing_left();
    return took;
  });
}

TEST_F(KinDeath, WhileItListensAndCloses_ThePortIsFree) {
  at_many_places([&](std::uint64_t place) {
    const std::uint64_t took = child_acts(place, is_torn, [] {
      const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
      const Number number{open_socket(fd, AF_INET, SOCK_STREAM, 0), fd};
      const sockaddr_in local = address_of(kOurs, kOwnPort);
      (void)bind(*number.file, fd, reinterpret_cast<const sockaddr*>(&local), sizeof local);
      (void)socket::listen(*number.file, fd, 8);
      close(number);
    });
    expect_nothing_left();
    return took;
  });
}

TEST_F(KinDeath, WhileItBindsADatagramSocketAndCloses_ThePortIsFree) {
  at_many_places([&](std::uint64_t place) {
    const std::uint64_t took = child_acts(place, in_lock, [] {
      const int fd = ::socket(AF_INET, SOCK_DGRAM, 0);
      const Number number{open_socket(fd, AF_INET, SOCK_DGRAM, 0), fd};
      const sockaddr_in local = address_of(kOurs, kOwnPort);
      (void)bind(*number.file, fd, reinterpret_cast<const sockaddr*>(&local), sizeof local);
      close(number);
    });
    expect_nothing_left();
    Guard guard(shard());
    const auto again = udp_engine().open({IpAddress::from_v4(kOurs), kOwnPort}, 1000, {}, nullptr);
    EXPECT_TRUE(again.ok()) << "the port is taken";
    if (again.ok()) udp_engine().close(guard.context(), **again);
    return took;
  });
}

}  // namespace
}  // namespace bypass::socket
