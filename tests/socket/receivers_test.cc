// Which process of a family uses a listener. A helper that gives rights up leaves the listener to a master that uses
// it.
#include "socket/family/receivers.h"

#include <fcntl.h>
#include <poll.h>

#include <array>

#include "socket/family/move_sockets.h"
#include "socket/kin_fixture.h"

namespace bypass::socket {
namespace {

class Receivers : public Kin {
 protected:
  void accept_nothing() {
    Accepted accepted;
    listener_.file->status |= O_NONBLOCK;
    EXPECT_EQ(accept(*listener_.file, listener_.fd, nullptr, nullptr, 0, accepted), kAgain);
  }
  void poll_once() {
    std::array<PollItem, 1> items{PollItem{listener_.fd, POLLIN, 0, listener_.file}};
    EXPECT_EQ(poll(items, Duration{}, nullptr), 0);
  }
  static bool is_used() {
    const Guard guard(shard());
    return is_any_used(guard);
  }
};

TEST_F(Receivers, AMasterThatAccepts_KeepsItsListenerFromAHelper) {
  EXPECT_TRUE(has_use_of_wire()) << "nobody has accepted: it may be a worker's";
  accept_nothing();
  EXPECT_TRUE(has_use_of_wire()) << "it is its own";
  fork_child([] { EXPECT_FALSE(has_use_of_wire()); });
  end_child(0);
}

TEST_F(Receivers, AMasterThatPolls_IsNoCaseOfListenersAlone) {
  EXPECT_TRUE(has_only_what_moves());
  poll_once();
  EXPECT_TRUE(has_only_what_moves()) << "it polls itself";
  fork_child([] {
    EXPECT_FALSE(has_only_what_moves());
    EXPECT_TRUE(has_use_of_wire());
  });
  end_child(0);
}

TEST_F(Receivers, OneThatHasEnded_IsNamedNoMore) {
  fork_child([&] { accept_nothing(); });
  end_child(0);
  EXPECT_TRUE(has_use_of_wire());
  accept_nothing();  // takes the place of the one that has ended
  fork_child([] { EXPECT_FALSE(has_use_of_wire()); });
  end_child(0);
}

TEST_F(Receivers, InACopy_NobodyHasUsedAListenerYet) {
  EXPECT_FALSE(is_used());
  accept_nothing();
  EXPECT_TRUE(is_used());
  {
    const Guard guard(shard());
    forget_receivers();
  }
  EXPECT_FALSE(is_used());
  poll_once();
  EXPECT_TRUE(is_used());
}

TEST_F(Receivers, ConnectionsThatWait_AreReset) {
  tcp::Tcb* const peer = connect_peer();
  const tcp::Listener& listener = *socket_of(*listener_.file).listener;
  ASSERT_TRUE(run_until([&] { return tcp_engine().accept_queue_length(listener) == 1; }));
  {
    Guard guard(shard());
    reset_waiting(guard);
  }
  EXPECT_TRUE(run_until([&] { return world_.peer().tcp().state(*peer) == tcp::State::kClosed; }));
}

}  // namespace
}  // namespace bypass::socket
