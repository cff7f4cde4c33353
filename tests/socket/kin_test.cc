// A family over one shard: what a forked child shares with its parent, and which process drives the port.
#include "socket/family/kin.h"

#include <poll.h>

#include <array>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "os/os.h"
#include "socket/family/doorbell.h"
#include "socket/family/move_sockets.h"
#include "socket/kin_fixture.h"
#include "socket/wait/readiness.h"
#include "stack/frame/flow_log.h"
#include "stack/memory/arena_packet.h"

namespace bypass::socket {
namespace {

void echo_once(const Number& connection) {
  char bytes[64];
  iovec vector{bytes, sizeof bytes};
  Message in;
  in.data = {&vector, 1};
  const long got = receive(*connection.file, connection.fd, in, 0);
  if (got <= 0) _exit(4);
  vector.iov_len = static_cast<std::size_t>(got);
  bool sigpipe = false;
  if (send(*connection.file, connection.fd, in, 0, sigpipe) != got) _exit(5);
}

TEST_F(Kin, AChild_AcceptsAndAnswersThroughItsParentsPort) {
  Flag go;
  fork_child([&] {
    echo_once(accept_one(listener_));
    while (*go == 0) sched_yield();
  });
  tcp::Tcb* const peer = connect_peer();
  ASSERT_TRUE(run_until([&] { return world_.peer().tcp().state(*peer) == tcp::State::kEstablished; }));
  peer_says(*peer, "hello");
  ASSERT_TRUE(run_until([&] { return peer_hears(*peer) == "hello"; }));
  *go = 1;
  end_child(0);
  // The connection was the child's own. The listener is also its parent's.
  ASSERT_TRUE(run_until([&] { return world_.peer().tcp().state(*peer) == tcp::State::kCloseWait; }));
  EXPECT_TRUE(listener_.file->alive);
  EXPECT_EQ(listener_.file->references.total(), 1U);
  EXPECT_FALSE(has_kin());
  world_.peer().tcp().close(world_.peer_context(), *peer);
}

TEST_F(Kin, AParentThatClosesAtOnce_LeavesTheChildItsConnection) {
  tcp::Tcb* peer = nullptr;
  Number connection{};
  ASSERT_NO_FATAL_FAILURE(connect_both(peer, connection));
  Flag go;
  fork_child([&] {
    while (*go == 0) sched_yield();
    echo_once(connection);
  });
  close(connection);
  numbers_.pop_back();
  EXPECT_TRUE(connection.file->alive) << "the child, or what stands for it, refers to it";
  *go = 1;
  peer_says(*peer, "still there?");
  ASSERT_TRUE(run_until([&] { return peer_hears(*peer) == "still there?"; }));
  end_child(0);
  ASSERT_TRUE(run_until([&] { return world_.peer().tcp().state(*peer) == tcp::State::kCloseWait; }));
  world_.peer().tcp().close(world_.peer_context(), *peer);
}

TEST_F(Kin, BytesReceivedBeforeTheFork_AreReadByTheChild) {
  tcp::Tcb* peer = nullptr;
  Number connection{};
  ASSERT_NO_FATAL_FAILURE(connect_both(peer, connection));
  peer_says(*peer, "early");
  ASSERT_TRUE(run_until([&] { return world_.shard().stack().tcp().readable(*socket_of(*connection.file).tcb) == 5; }));
  fork_child([&] { echo_once(connection); });
  ASSERT_TRUE(run_until([&] { return peer_hears(*peer) == "early"; }));
  end_child(0);
  world_.peer().tcp().close(world_.peer_context(), *peer);
}

// The frames are copied to the arena before any process looks at them. So there is nothing left to copy in bulk.
TEST_F(Kin, MemoryUsedUp_WhoHasNothingToReadIsGivenWhatComes) {
  tcp::Tcb* peer = nullptr;
  Number connection{};
  ASSERT_NO_FATAL_FAILURE(connect_both(peer, connection));
  Flag go;
  fork_child([&] {
    while (*go == 0) sched_yield();
  });
  Memory& memory = objects->memory;
  const std::size_t budget = memory.stats().budget_bytes;
  {
    const Guard guard(shard());
    memory.keep_back(1U << 20);
    memory.set_budget(memory.stats().used_bytes + (1U << 20));
  }
  for (int i = 0; i < 3; i++) {
    const std::string said(1000, static_cast<char>('a' + i));
    peer_says(*peer, said);
    std::string heard;
    EXPECT_TRUE(run_until([&] {
      char bytes[4096];
      iovec vector{bytes, sizeof bytes};
      Message in;
      in.data = {&vector, 1};
      const long got = receive(*connection.file, connection.fd, in, MSG_DONTWAIT);
      if (got > 0) heard.append(bytes, static_cast<std::size_t>(got));
      return heard.size() >= said.size();
    })) << i;
    EXPECT_EQ(heard, said);
  }
  EXPECT_EQ(world_.shard().stack().counters().drop_no_memory, 0U);
  {
    const Guard guard(shard());
    memory.keep_back(0);
    memory.set_budget(budget);
  }
  *go = 1;
  end_child(0);
  world_.peer().tcp().close(world_.peer_context(), *peer);
}

TEST_F(Kin, AChildKilledInsideACall_LetsOthersIn) {
  Flag inside;
  File& file = *listener_.file;
  fork_child([&] {
    {
      const Guard guard(shard());
      hold(file, kReading);
    }
    *inside = 1;
    for (;;) pause();
  });
  while (*inside == 0) sched_yield();
  EXPECT_EQ(file.users, 1);
  end_child(SIGKILL);
  EXPECT_EQ(file.users, 0);
  EXPECT_FALSE(socket_of(file).has(kReading));
  EXPECT_EQ(file.references.total(), 1U);
}

// A child dies in the middle of a send, with the lock or (in a long send) without it. Nothing of that send becomes
// data, and the other processes go on.
TEST_F(Kin, AChildKilledWhileItWrites_LeavesTheConnectionToOthers) {
  ShardLock::Handlers handlers;
  handlers.recover = [](void*, const void*) { rebuild_after_death(shard()); };
  shard().lock().set_handlers(handlers);
  for (const bool in_lock : {true, false}) {
    tcp::Tcb* peer = nullptr;
    Number connection{};
    ASSERT_NO_FATAL_FAILURE(connect_both(peer, connection));
    Flag go, inside;
    fork_child([&] {
      // The parent ends its own half of the fork with the lock. It would wait for a child that keeps the lock.
      while (*go == 0) sched_yield();
      Socket& socket = socket_of(*connection.file);
      if (in_lock) {
        (void)shard().lock().lock();
        (void)tcp_engine().reserve(*socket.tcb, 1000);
      } else {
        const Guard guard(shard());
        (void)tcp_engine().reserve(*socket.tcb, 100'000);
        hold(socket, kWriting);
      }
      *inside = 1;
      for (;;) pause();
    });
    *go = 1;
    while (*inside == 0) sched_yield();
    end_child(SIGKILL);
    iovec vector{const_cast<char*>("alive"), 5};
    Message message;
    message.data = {&vector, 1};
    bool sigpipe = false;
    EXPECT_EQ(send(*connection.file, connection.fd, message, 0, sigpipe), 5);
    EXPECT_TRUE(run_until([&] { return peer_hears(*peer) == "alive"; })) << in_lock;
    world_.peer().tcp().close(world_.peer_context(), *peer);
    close(connection);
    numbers_.pop_back();
  }
  shard().lock().set_handlers({});
}

TEST_F(Kin, AChildKilledBeforeItWakesASleeper_HasItWoken) {
  {
    const Guard guard(shard());
    ASSERT_TRUE(shard().begin_watch({}));  // so only a wake-up tells the sleeper of the wire
  }
  Number accepted{};
  std::thread sleeper([&] { accepted = accept_one(listener_); });
  while (asleep() == 0) sched_yield();
  Flag told;
  fork_child([&] {
    {
      Guard guard(shard());
      signal(*listener_.file, kIn);
      guard.leave_untouched();  // it is killed here and wakes no process
    }
    *told = 1;
    for (;;) pause();
  });
  while (*told == 0) sched_yield();
  tcp::Tcb* const peer = connect_peer();
  ASSERT_TRUE(run_until([&] { return world_.peer().tcp().state(*peer) == tcp::State::kEstablished; }));
  end_child(SIGKILL);
  sleeper.join();
  {
    const Guard guard(shard());
    shard().end_watch();
  }
  ASSERT_NE(accepted.file, nullptr);
  numbers_.push_back(accepted);
  world_.peer().tcp().close(world_.peer_context(), *peer);
}

// The dead process's set may have been the only one that was told. The process dies before it accepts.
TEST_F(Kin, AChildThatDies_LeavesWaitingConnectionsToBeToldOfAnew) {
  const int set_fd = ::epoll_create1(0);
  File* const set = open_epoll(set_fd);
  ASSERT_NE(set, nullptr);
  numbers_.push_back({set, set_fd});
  epoll_event event{.events = EPOLLIN | EPOLLET, .data = {.u64 = 7}};
  ASSERT_EQ(epoll_control(*set, set_fd, EPOLL_CTL_ADD, listener_.fd, listener_.file, &event), 0);
  tcp::Tcb* const peer = connect_peer();
  const auto events = [&] { return socket::epoll_wait(*set, set_fd, &event, 1, Duration{}, nullptr); };
  long told = 0;
  ASSERT_TRUE(run_until([&] { return (told += told == 0 ? events() : 0) == 1; }));
  ASSERT_EQ(events(), 0) << "an edge is told once";
  fork_child([] { pause(); });
  end_child(SIGKILL);
  EXPECT_EQ(events(), 1);
  const Number connection = accept_one(listener_);
  ASSERT_NE(connection.file, nullptr);
  numbers_.push_back(connection);
  fork_child([] { pause(); });
  end_child(SIGKILL);
  EXPECT_EQ(events(), 0) << "none waits any more";
  world_.peer().tcp().close(world_.peer_context(), *peer);
}

/// Each thread sleeps in an epoll set of its own, which has the listener exclusively (EPOLLEXCLUSIVE).
class ExclusiveKin : public Kin {
 protected:
  ExclusiveKin() {
    {
      const Guard guard(shard());
      EXPECT_TRUE(shard().begin_watch({}));  // so only a wake-up tells the sleepers of the wire
    }
    for (int i = 0; i < 2; i++) {
      const int fd = ::epoll_create1(0);
      const Number set{open_epoll(fd), fd};
      numbers_.push_back(set);
      epoll_event event{.events = EPOLLIN | EPOLLEXCLUSIVE, .data = {}};
      EXPECT_EQ(control(set, EPOLL_CTL_ADD, event), 0);
      sleepers_.emplace_back([this, set] {
        epoll_event got{};
        EXPECT_EQ(socket::epoll_wait(*set.file, set.fd, &got, 1, 20s, nullptr), 1);
        awake_++;
        EXPECT_EQ(control(set, EPOLL_CTL_DEL, got), 0);
      });
    }
    while (asleep() != 2) sched_yield();
  }
  ~ExclusiveKin() override {
    for (std::thread& sleeper : sleepers_) sleeper.join();
    const Guard guard(shard());
    shard().end_watch();
  }
  long control(const Number& set, int operation, epoll_event& event) {
    return epoll_control(*set.file, set.fd, operation, listener_.fd, listener_.file, &event);
  }
  std::vector<std::thread> sleepers_;
  std::atomic<int> awake_{0};
};

// The first thread may be about to end, and accept at most one of the connections.
TEST_F(ExclusiveKin, AsManySignals_CallAsManySleepers) {
  {
    const Guard guard(shard());
    for (int i = 0; i < 2; i++) signal(*listener_.file, kIn);
    int called = 0;
    objects->waiters.for_each([&](const Waiter& waiter) { called += waiter.asleep && waiter.called ? 1 : 0; });
    EXPECT_EQ(called, 2);
  }
  tcp::Tcb* const peer = connect_peer();
  EXPECT_TRUE(run_until([&] { return awake_ == 2; }));
  world_.peer().tcp().close(world_.peer_context(), *peer);
}

TEST_F(ExclusiveKin, CalledOneThatLeavesWithoutAccepting_HasTheNextCalled) {
  tcp::Tcb* const peer = connect_peer();
  EXPECT_TRUE(run_until([&] { return awake_ == 2; }));
  world_.peer().tcp().close(world_.peer_context(), *peer);
}

TEST_F(Kin, AForkThatFails_LeavesNothing) {
  const Fork fork = begin_fork();
  share_with_child(fork, *listener_.file);
  EXPECT_EQ(listener_.file->references.total(), 2U);
  end_fork_in_parent(fork, -1);
  EXPECT_EQ(listener_.file->references.total(), 1U);
  EXPECT_FALSE(has_kin());
}

TEST_F(Kin, AChildThatDiesBeforeItsFirstWord_LeavesNothing) {
  const Fork fork = begin_fork();
  share_with_child(fork, *listener_.file);
  child_ = ::fork();
  if (child_ == 0) _exit(0);
  end_fork_in_parent(fork, child_);
  end_child(0);
  EXPECT_EQ(listener_.file->references.total(), 1U);
  EXPECT_FALSE(has_kin());
}

// The kernel closes what a process has when the process dies. No process has looked for the dead one yet.
TEST_F(Kin, PortsOfAChildThatHasDied_AreFreeAtOnce) {
  const auto bind_one = [](int type, std::uint16_t port) {
    const int fd = ::socket(AF_INET, type, 0);
    const Number number{open_socket(fd, AF_INET, type, 0), fd};
    const sockaddr_in local = address_of(kOurs, port);
    const long bound = bind(*number.file, fd, reinterpret_cast<const sockaddr*>(&local), sizeof local);
    EXPECT_EQ(bound, 0) << "port " << port;
    if (type == SOCK_STREAM && bound == 0) {
      EXPECT_EQ(socket::listen(*number.file, fd, 8), 0) << "port " << port;
    }
    return number;
  };
  Flag stream, datagram;
  fork_child([&] {
    *stream = kernel_name(bind_one(SOCK_STREAM, 0).fd).port;
    *datagram = kernel_name(bind_one(SOCK_DGRAM, 0).fd).port;
    pause();
  });
  while (*datagram == 0) sched_yield();
  ::kill(child_, SIGKILL);
  waitpid(std::exchange(child_, 0), nullptr, 0);
  numbers_.push_back(bind_one(SOCK_STREAM, static_cast<std::uint16_t>(*stream)));
  numbers_.push_back(bind_one(SOCK_DGRAM, static_cast<std::uint16_t>(*datagram)));
}

TEST_F(Kin, ANumberMadeDuringTheFork_IsTheKernelsInTheChild) {
  const Fork fork = begin_fork();
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  const Number late{open_socket(fd, AF_INET, SOCK_STREAM, 0), fd};
  child_ = ::fork();
  if (child_ == 0) {
    if (!join_family(fork)) _exit(2);
    _exit(adopt_number(fork, *late.file, fd) ? 1 : 0);
  }
  end_fork_in_parent(fork, child_);
  end_child(0);
  close(late);
}

/// A process that holds listeners for others, as a driver does, asks the kernel whether one is still open.
TEST_F(Kin, AListenerThatOneHolds_EndsWhenItsSocketIsClosedEverywhere) {
  Socket& listener = socket_of(*listener_.file);
  static std::vector<std::uint64_t> open;  // in any process
  const auto open_sockets = [] { return open; };
  open = {1};
  Flag end;
  fork_child([&] {
    while (*end == 0) sched_yield();
  });
  EXPECT_FALSE(hold_sockets(open_sockets)) << "a worker has it";
  tcp::Tcb* const peer = connect_peer();
  ASSERT_TRUE(run_until([&] { return world_.peer().tcp().state(*peer) == tcp::State::kEstablished; }));
  *end = 1;
  end_child(0);
  open.push_back(listener.details->kernel_inode);
  for (int look = 0; look < 3; look++) EXPECT_TRUE(hold_sockets(open_sockets)) << "a master has it";
  EXPECT_TRUE(listener.alive);
  EXPECT_EQ(world_.peer().tcp().state(*peer), tcp::State::kEstablished) << "it waits for the next worker";
  numbers_.clear();  // a driver has no number
  open.pop_back();
  EXPECT_FALSE(hold_sockets(open_sockets));
  EXPECT_FALSE(listener.alive) << "nobody has it";
  ::close(listener_.fd);
  EXPECT_TRUE(run_until([&] { return world_.peer().tcp().state(*peer) == tcp::State::kClosed; }));
}

/// A process joins by itself, and no other prepares for it. Frames that came before are in the arena.
TEST_F(Kin, WhereADriverServes_BytesLieInTheArenaThoughItIsAlone) {
  tcp::Tcb* peer = nullptr;
  Number connection{};
  ASSERT_NO_FATAL_FAILURE(connect_both(peer, connection));
  const tcp::Tcb& tcb = *socket_of(*connection.file).tcb;
  tcp::Engine& engine = world_.shard().stack().tcp();
  std::array<std::span<const std::byte>, 2> spans;
  peer_says(*peer, "alone");
  ASSERT_TRUE(run_until([&] { return engine.readable(tcb) == 5; }));
  ASSERT_EQ(engine.peek(tcb, spans, 10), 1U);
  EXPECT_FALSE(objects->memory.contains(spans[0].data())) << "it lies where the port has it";
  shard().wires().keeper.pid = os::getpid();
  enter_arena();
  EXPECT_FALSE(has_kin());
  peer_says(*peer, "early");
  ASSERT_TRUE(run_until([&] { return engine.readable(tcb) == 10; }));
  ASSERT_EQ(engine.peek(tcb, spans, 10), 2U);
  EXPECT_TRUE(objects->memory.contains(spans[1].data()));
  shard().wires().keeper.pid = 0;
  enter_arena();
  world_.peer().tcp().close(world_.peer_context(), *peer);
}

// A process hears from the child that it listens, or takes the number that the child has given back. It may be faster
// than the device.
TEST_F(Kin, AChildsListener_ListensAndEndsOnceTheOwnerHasToldTheDevices) {
  FlowLog& flows = shard().stack().network().flows();
  shard().set_steering_patience(60s);  // on a busy machine this process may be late
  WakeTarget target;
  target.slot = shard().family().slot();
  const int bell = make_doorbell(target.doorbell);
  ASSERT_GE(bell, 0);
  const auto sleep = [&] { (void)shard().watch_until(kNever); };
  {
    const Guard guard(shard());
    flows.set_active(true);
    ASSERT_TRUE(shard().begin_watch(target));
    sleep();
  }
  Flag done, go;
  fork_child([&] {
    while (*go == 0) sched_yield();  // the end of the parent's fork also takes the lock, and tells the devices
    listen();
    *done = 1;
    close(numbers_.back());
    *done = 2;
  });
  *go = 1;
  for (int step = 1; step <= 2;) {
    pollfd rings{bell, POLLIN, 0};
    ASSERT_EQ(::poll(&rings, 1, 10'000), 1) << "nobody calls the owner for step " << step;
    const Guard guard(shard());
    silence_doorbell(bell);
    if (!flows.pending().empty()) {  // otherwise it was called once more for what it knows
      EXPECT_EQ(*done, step - 1) << "the call is over and no device has been told";
      EXPECT_EQ(flows.pending()[0].add, step == 1);
      shard().poll_locked();
      EXPECT_TRUE(flows.pending().empty());
      step++;
    }
    sleep();
  }
  while (*done != 2) sched_yield();
  {
    const Guard guard(shard());
    shard().end_watch();
    flows.set_active(false);
  }
  ::close(bell);
  end_child(0);
}

TEST_F(Kin, FramesLeftForTheOwner_AreSentInOrderAsFarAsThereIsRoom) {
  Wires& wires = shard().wires();
  Memory& memory = *shard().context().memory;
  RelayPort relay(wires, memory, 0);
  std::vector<Packet*> frames(FrameRing::kPlaces + 10);
  Guard guard(shard());
  ASSERT_EQ(relay.alloc(0, frames), frames.size());
  for (std::size_t i = 0; i < frames.size(); i++) {
    Packet& frame = *frames[i];
    frame.len = frame.frame_len = 60;
    std::memset(frame.data, 0, 60);
    std::memcpy(frame.data, &i, sizeof i);
  }
  ASSERT_EQ(relay.send(0, frames), FrameRing::kPlaces);
  relay.free(std::span(frames).subspan(FrameRing::kPlaces));
  std::array<Packet*, 64> got;
  // Frames that earlier cases have left on the cable.
  while (const std::size_t n = world_.peer_port().receive(0, got)) world_.peer_port().free({got.data(), n});
  std::size_t seen = 0;
  while (wires.frames_left) {
    take_left_frames(wires, shard().context());
    shard().context().flush();
    for (std::size_t n; (n = world_.peer_port().receive(0, got)) != 0;) {
      for (std::size_t i = 0; i < n; i++, seen++) EXPECT_EQ(std::memcmp(got[i]->data, &seen, sizeof seen), 0);
      world_.peer_port().free({got.data(), n});
    }
  }
  EXPECT_EQ(seen, FrameRing::kPlaces);
}

// A frame that finds no place in the ring stays with its sender. It is not lost at the end of the sender's hold.
TEST_F(Kin, FramesForTheOwner_AreNoMoreThanTheRingHasRoomFor) {
  RelayPort relay(shard().wires(), *shard().context().memory, 0);
  Guard guard(shard());
  PortQueue queue(&relay, 0, 0);
  const auto send = [&queue] {
    Packet* const frame = queue.alloc();
    frame->len = frame->frame_len = 60;
    if (queue.transmit(frame)) return true;
    queue.free(frame);
    return false;
  };
  std::uint32_t sent = 0;
  while (send()) sent++;
  queue.flush();
  EXPECT_EQ(sent, FrameRing::kPlaces);
  EXPECT_EQ(queue.pending(), 0U);
  take_left_frames(shard().wires(), shard().context());
  queue.renew_limit();
  const std::uint32_t room = FrameRing::kPlaces - shard().wires().rings[0]->size();
  ASSERT_GT(room, 0U);
  EXPECT_TRUE(queue.can_transmit(std::min<std::size_t>(room, PortQueue::kBatch)));
  while (shard().wires().frames_left) {
    shard().context().flush();
    std::array<Packet*, 64> got;
    while (const std::size_t n = world_.peer_port().receive(0, got)) world_.peer_port().free({got.data(), n});
    take_left_frames(shard().wires(), shard().context());
  }
  queue.drain();
}

}  // namespace
}  // namespace bypass::socket
