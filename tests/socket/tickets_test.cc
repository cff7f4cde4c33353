// Sockets on their way to another process: what refers to them, and when that ends.
#include "socket/family/tickets.h"

#include <sys/socket.h>

#include "os/net/rights_message.h"
#include "socket/kin_fixture.h"

namespace bypass::socket {
namespace {

/// A Unix socket that can be a ticket.
class Paper {
 public:
  Paper() : fd_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)), id_(os::unix_socket_id(fd_)) {}
  ~Paper() { close(); }
  Paper(const Paper&) = delete;
  Paper& operator=(const Paper&) = delete;

  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  [[nodiscard]] int fd() const { return fd_; }
  [[nodiscard]] const std::optional<os::UnixSocketId>& id() const { return id_; }

 private:
  int fd_;
  std::optional<os::UnixSocketId> id_;
};

class Tickets : public Kin {
 protected:
  void SetUp() override {
    if (!paper_.id().has_value() || os::UnixDiag().network() == 0) GTEST_SKIP() << "the kernel knows no cookies";
    ASSERT_NO_FATAL_FAILURE(connect_both(peer_, connection_));
    ASSERT_TRUE(make_ticket(*connection_.file, *paper_.id()));
  }
  void TearDown() override {
    paper_.close();
    settle_tickets();
    EXPECT_EQ(tickets_out(), 0U);
    if (peer_ != nullptr) world_.peer().tcp().close(world_.peer_context(), *peer_);
  }
  /// The process that has passed the connection closes its number.
  void close_here() {
    close(connection_);
    numbers_.pop_back();
  }
  bool peer_sees_end() {
    return run_until([&] { return world_.peer().tcp().state(*peer_) == tcp::State::kCloseWait; });
  }

  Paper paper_;
  tcp::Tcb* peer_ = nullptr;
  Number connection_{};
};

TEST_F(Tickets, WhatIsUnderWay_LivesWithoutANumber) {
  close_here();
  settle_tickets();
  EXPECT_TRUE(connection_.file->alive);
  EXPECT_EQ(tickets_out(), 1U);
  paper_.close();
  settle_tickets();
  EXPECT_FALSE(connection_.file->alive);
  EXPECT_TRUE(peer_sees_end());
}

TEST_F(Tickets, TheReceiver_HasAReferenceOfItsOwn) {
  close_here();
  File* const taken = take_by_ticket(*paper_.id());
  ASSERT_EQ(taken, connection_.file);
  const os::UnixSocketId id = *paper_.id();
  paper_.close();
  settle_ticket(id);
  EXPECT_EQ(tickets_out(), 0U);
  EXPECT_TRUE(taken->alive);
  EXPECT_EQ(taken->references.total(), 1U);
  release(*taken, -1);
  EXPECT_TRUE(peer_sees_end());
}

TEST_F(Tickets, ASocketThatNobodyMadeATicket_GivesNothing) {
  const Paper forged;
  EXPECT_EQ(take_by_ticket(*forged.id()), nullptr);
  os::UnixSocketId other = *paper_.id();
  other.cookie++;
  EXPECT_EQ(take_by_ticket(other), nullptr);
}

TEST_F(Tickets, AThousandMessagesThatAreThrownAway_LeaveNothing) {
  for (int i = 0; i < 1000; i++) {
    const Paper one;
    ASSERT_TRUE(make_ticket(*connection_.file, *one.id()));
  }
  EXPECT_EQ(tickets_out(), 1001U);
  settle_tickets();
  EXPECT_EQ(tickets_out(), 1U);
  EXPECT_EQ(connection_.file->references.total(), 2U);
}

TEST_F(Tickets, ASenderThatIsKilled_LeavesTheTicket) {
  Paper childs;
  fork_child([&] { _exit(make_ticket(*listener_.file, *childs.id()) ? 0 : 6); });
  end_child(0);
  EXPECT_EQ(take_by_ticket(*childs.id()), listener_.file);
  release(*listener_.file, -1);
  childs.close();
  settle_tickets();
  EXPECT_EQ(tickets_out(), 1U);
  EXPECT_EQ(listener_.file->references.total(), 1U);
}

TEST_F(Tickets, ARebuild_CountsThemAnew) {
  (void)connection_.file->references.add(objects->memory, kTicketSlot);  // a process died before it made the ticket
  {
    Guard guard(shard());
    rebuild_after_death(shard());
  }
  EXPECT_EQ(connection_.file->references.of(kTicketSlot), 1U);
  EXPECT_EQ(tickets_out(), 1U);
}

}  // namespace
}  // namespace bypass::socket
