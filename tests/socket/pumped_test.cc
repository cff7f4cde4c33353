// A connection moves to an object of a pump. Processes that have the old object see that, and the bytes move with the
// connection.
#include "socket/family/pumped.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <string>
#include <string_view>

#include "socket/kin_fixture.h"
#include "socket/wait/readiness.h"

namespace bypass::socket {
namespace {

class Pumped : public Kin {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(connect_both(peer_, old_));
    peer_says(*peer_, "hello");
    ASSERT_TRUE(run_until([&] { return bits(*old_.file) & kIn; }));
  }
  /// This process plays the pump, as `pid` says. The fixture does nothing of the pump's work.
  File* move(std::uint32_t pid) {
    File* const pumped = make_pumped(*old_.file, described_);
    if (pumped == nullptr) return nullptr;
    move_to_pump(*old_.file, *pumped, {pid, 7, 99, 0});
    numbers_.push_back({pumped, -1});
    return pumped;
  }
  static std::uint32_t bits(File& file) {
    const Guard guard(shard());
    return poll_bits(file);
  }
  static long read(File& file, std::string& got) {
    std::array<char, 64> bytes{};
    iovec vector{bytes.data(), bytes.size()};
    Message message;
    message.data = {&vector, 1};
    const long r = receive(file, -1, message, MSG_DONTWAIT);
    got.assign(bytes.data(), r > 0 ? static_cast<std::size_t>(r) : 0);
    return r;
  }
  static std::uint32_t own_pid() { return shard().family().own().pid.load(); }

  tcp::Tcb* peer_ = nullptr;
  Number old_{};
  PumpedSocket described_;
};

TEST_F(Pumped, BytesThatNobodyHasRead_GoWithTheConnection) {
  File* const pumped = move(own_pid());
  ASSERT_NE(pumped, nullptr);
  std::string got;
  EXPECT_EQ(read(*pumped, got), 5);
  EXPECT_EQ(got, "hello");
  peer_says(*peer_, "more");
  ASSERT_TRUE(run_until([&] { return bits(*pumped) & kIn; }));
  EXPECT_EQ(read(*pumped, got), 4);
}

TEST_F(Pumped, TheOldObject_SaysWhereItIs) {
  ASSERT_TRUE(is_pumpable(*old_.file));
  ASSERT_NE(move(own_pid() + 1), nullptr);
  EXPECT_FALSE(is_pumpable(*old_.file));
  EXPECT_TRUE(old_.file->pumped);
  const PumpedAt at = where_pumped(*old_.file);
  EXPECT_EQ(at.number, 7);
  EXPECT_EQ(at.inode, 99U);
  EXPECT_EQ(described_.name.domain, AF_INET);
  EXPECT_EQ(described_.name.local, (Endpoint{IpAddress::from_v4(kOurs), port_}));
}

// The process that has moved the connection may be killed before the pump is told. So the pump looks itself.
TEST_F(Pumped, ThePump_SeesThatTheConnectionIsThere) {
  File* const pumped = make_pumped(*old_.file, described_);
  ASSERT_NE(pumped, nullptr);
  EXPECT_FALSE(has_connection(*pumped));
  move_to_pump(*old_.file, *pumped, {own_pid(), 7, 99, 0});
  numbers_.push_back({pumped, -1});
  EXPECT_TRUE(has_connection(*pumped));
}

// For a process under a filter of system calls.
TEST_F(Pumped, OneThatAProcessCannotComeFor_DoesNotMove) {
  forbid_pump(*old_.file);
  EXPECT_FALSE(is_pumpable(*old_.file));
  EXPECT_EQ(move(own_pid() + 1), nullptr);
  EXPECT_FALSE(old_.file->pumped);
}

// A call that was inside when the connection moved ends with a failure, and is made once more.
TEST_F(Pumped, TheOldObject_CallsEveryOneThatWaits) {
  ASSERT_NE(move(own_pid() + 1), nullptr);
  std::string got;
  EXPECT_EQ(read(*old_.file, got), kMoved);
  EXPECT_EQ(shutdown(*old_.file, -1, SHUT_WR), kMoved);
  bool sigpipe = false;
  EXPECT_EQ(send(*old_.file, -1, Message{}, 0, sigpipe), kMoved);
  EXPECT_FALSE(sigpipe);
  EXPECT_EQ(bits(*old_.file), kIn | kOut | kError | kHangUp);
}

TEST_F(Pumped, ThePump_HearsThatNobodyElseHasIt) {
  Flag go;
  fork_child([&] {
    while (*go == 0) sched_yield();
  });
  File* const pumped = move(own_pid());
  ASSERT_NE(pumped, nullptr);
  EXPECT_TRUE(is_awaited(*old_.file));
  EXPECT_EQ(bits(*old_.file), 0U);
  const std::uint32_t before = old_.file->readiness.version;
  end_child(SIGKILL);
  EXPECT_FALSE(is_awaited(*old_.file));
  EXPECT_EQ(bits(*old_.file), kHangUp);
  EXPECT_NE(old_.file->readiness.version, before) << "who sleeps is not told";
}

// The pump is killed. Bytes that it has taken from either side are lost. So no end may look like a good one.
TEST_F(Pumped, APumpThatIsKilled_ResetsTheConnection) {
  File* const pumped = move(own_pid());
  ASSERT_NE(pumped, nullptr);
  numbers_.pop_back();
  release(*pumped, -1);
  ASSERT_TRUE(run_until([&] { return world_.peer().tcp().state(*peer_) == tcp::State::kClosed; }));
  EXPECT_EQ(world_.peer().tcp().take_error(*peer_), Error::kReset);
}

TEST_F(Pumped, APumpThatEndsWell_EndsTheConnection) {
  File* const pumped = move(own_pid());
  ASSERT_NE(pumped, nullptr);
  std::string got;
  ASSERT_EQ(read(*pumped, got), 5);
  numbers_.pop_back();
  set_pumps_end(*pumped, PumpsEnd::kCloses);
  release(*pumped, -1);
  ASSERT_TRUE(run_until([&] { return world_.peer().tcp().state(*peer_) == tcp::State::kCloseWait; }));
  world_.peer().tcp().close(world_.peer_context(), *peer_);
}

}  // namespace
}  // namespace bypass::socket
