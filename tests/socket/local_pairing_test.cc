// Two ends of a connection within the host look for each other. One is a socket of ours, the other a bare Pairing.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <string>
#include <vector>

#include "fastpath/shm/rendezvous/message.h"
#include "fastpath/shm/rendezvous/pairing.h"
#include "socket/objects.h"
#include "socket/shared/local.h"
#include "socket/socket.h"
#include "socket/world.h"

namespace bypass::socket {
namespace {

namespace shm = fastpath::shm;
using State = shm::Pairing::State;
using Stage = LocalEnd::Stage;

/// No process has the link, as if a fork had just shared the socket with its child.
constexpr std::uint32_t kChild = kMaxProcesses - 1;

class LocalPairing : public testing::Test {
 protected:
  LocalPairing() : before_(local_policy) {
    if (::mkdtemp(folder_.data()) == nullptr) std::abort();
    const int number = ::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    directory_ = std::move(shm::Directory::open(number).value);
    ::close(number);
    local_policy = {};
    local_policy.directory = &directory_;
    local_policy.may_be_local = [](const sockaddr*) { return true; };
    connect_both();
  }
  ~LocalPairing() override {
    {
      Guard guard(world_.shard());
      (void)ours().references.drop(objects->memory, kChild);
    }
    release(*file_, accepted_);
    ::close(accepted_);
    ::close(peers_);
    local_policy = before_;
    const std::string remove = "rm -r '" + folder_ + "'";
    EXPECT_EQ(std::system(remove.c_str()), 0);
  }

  void connect_both() {
    sockaddr_in here{};
    here.sin_family = AF_INET;
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* const address = reinterpret_cast<sockaddr*>(&here);
    socklen_t bytes = sizeof here;
    const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ASSERT_EQ(::bind(listener, address, bytes), 0);
    ASSERT_EQ(::listen(listener, 1), 0);
    ASSERT_EQ(::getsockname(listener, address, &bytes), 0);
    directory_.note_client(ntohs(here.sin_port), shm::network_tag(listener));
    peers_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ASSERT_EQ(::connect(peers_, address, bytes), 0);
    accepted_ = ::accept4(listener, address, &bytes, SOCK_CLOEXEC);
    ::close(listener);
    file_ = adopt_accepted(accepted_, address, bytes, 0);
    ASSERT_NE(file_, nullptr);
  }

  [[nodiscard]] Socket& ours() const { return socket_of(*file_); }
  [[nodiscard]] Stage stage() const { return ours().details->local->stage; }
  [[nodiscard]] Instant now() const { return world_.shard().clock().now(); }

  /// A call of the program, by which our end begins its search.
  void begin_ours() {
    std::byte byte{};
    iovec part{&byte, 1};
    Message message{};
    message.data = {&part, 1};
    (void)local_receive(ours(), accepted_, message, MSG_DONTWAIT);
  }
  void begin_peers() {
    peer_.begin(directory_.folder(), peers_, {1 << 16, 1 << 16}, now(), now() + std::chrono::seconds(5));
  }
  void step_ours() {
    Guard guard(world_.shard());
    if (stage() == Stage::kPairing) local_on_channel(ours());
  }
  void share_ours() {
    Guard guard(world_.shard());
    ASSERT_TRUE(ours().references.add(objects->memory, kChild));
  }

  test::World& world_ = test::World::get();
  LocalPolicy before_;
  std::string folder_ = testing::TempDir() + "local_pairing_XXXXXX";
  shm::Directory directory_;
  shm::Pairing peer_;
  File* file_ = nullptr;
  int peers_ = -1, accepted_ = -1;
};

/// How many steps our end makes, in turns with the peer, before a fork shares the socket; and which end begins.
struct Moment {
  int steps;
  bool we_begin;
};

class LocalPairingShared : public LocalPairing, public testing::WithParamInterface<Moment> {};

TEST_F(LocalPairing, OfTwo_IsMade) {
  begin_peers();
  begin_ours();
  for (int i = 0; i < 20 && stage() == Stage::kPairing; i++) {
    peer_.step(now());
    step_ours();
  }
  peer_.step(now());
  EXPECT_EQ(stage(), Stage::kPaired);
  EXPECT_EQ(peer_.state(), State::kPaired);
}

// A host that hears that the guest is ready writes into memory at once. A guest writes there when the host says OPEN,
// and the host says that once it is paired. So a host is told that this end is ready only if it is.
TEST_P(LocalPairingShared, PeerThatMayWriteHasOneThatReads) {
  const Moment moment = GetParam();
  if (moment.we_begin) begin_ours();
  begin_peers();
  if (!moment.we_begin) begin_ours();
  for (int i = 0; i < moment.steps; i++) {
    peer_.step(now());
    step_ours();
  }
  peer_.step(now());
  const bool paired = stage() == Stage::kPaired;
  share_ours();
  step_ours();
  peer_.step(now());
  EXPECT_EQ(stage(), paired ? Stage::kPaired : Stage::kOver);
  if (paired || peer_.state() != State::kPaired) return;
  EXPECT_EQ(peer_.role(), shm::Role::kGuest);
  std::array<std::byte, shm::kMessageRoom> room;
  shm::Channel channel = peer_.take_channel();
  const shm::Channel::Received received = channel.receive(room);
  ASSERT_EQ(received.kind, shm::Channel::Received::Kind::kPacket);
  EXPECT_EQ(shm::message_in(room, received).value.kind, shm::MessageKind::kRefused);
}

INSTANTIATE_TEST_SUITE_P(AtEachStep, LocalPairingShared, testing::ValuesIn([] {
                           std::vector<Moment> moments;
                           for (int steps = 0; steps < 6; steps++)
                             for (const bool we_begin : {false, true}) moments.push_back({steps, we_begin});
                           return moments;
                         }()),
                         [](const auto& each) {
                           return std::to_string(each.param.steps) + (each.param.we_begin ? "_AsHost" : "_AsGuest");
                         });

}  // namespace
}  // namespace bypass::socket
