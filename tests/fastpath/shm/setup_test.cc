// How a link over shared memory comes up: the whole exchange over run directories, and everything that can be wrong in
// it.
#include "fastpath/shm/setup.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "fastpath/shm/link_world.h"

namespace bypass::test {
namespace {

using shm::ShmSetup;

class ShmSetupTest : public LeakFree {
 protected:
  void TearDown() override {
    world.reset();
    LeakFree::TearDown();
  }
  void expect(std::size_t i, SetupState state, Reason reason) {
    ASSERT_NE(world->setups[i], nullptr);
    EXPECT_EQ(world->setups[i]->state(), state) << i;
    EXPECT_STREQ(to_string(world->setups[i]->reason()), to_string(reason)) << i;
  }
  void run(const LinkWorld::Change& change = {}) {
    world->request();
    world->settle(change);
  }
  /// Runs the exchange with a change to one value in the record of one end.
  void run_with(RecordType in, const std::function<void(ShmEnd&)>& change) {
    run([&](Record& record, std::vector<std::byte>& body) {
      if (record.type != in || body.size() != fastpath::kShmBodyBytes) return;
      LinkHead head;
      ShmEnd end;
      ASSERT_EQ(decode(body, head), Reason::kNone);
      (void)decode(body, in == RecordType::kLinkReq, end);
      change(end);
      encode(head, end, body);
    });
  }

  std::unique_ptr<LinkWorld> world = std::make_unique<LinkWorld>();
};

TEST_F(ShmSetupTest, WholeExchange_BothEndsAreUpAndTheMeetingIsGone) {
  std::vector<RecordType> said;
  run([&](Record& record, std::vector<std::byte>&) { said.push_back(record.type); });
  expect(0, SetupState::kUp, Reason::kNone);
  expect(1, SetupState::kUp, Reason::kNone);
  EXPECT_EQ(said, (std::vector{RecordType::kLinkReq, RecordType::kLinkAcc, RecordType::kLinkReady}));
  EXPECT_TRUE(world->folder().names().empty());
  for (LinkSetup* const each : world->setups) {
    EXPECT_EQ(each->id(), 7U);
    EXPECT_EQ(each->window(), 512U);
    EXPECT_EQ(each->peer_memory(), LinkWorld::kMemory);
    EXPECT_EQ(each->next_timeout(), kNever);
  }
}

// LINK_ACC may come before the guest, or after it.
TEST_F(ShmSetupTest, RecordOvertakesTheGuest_StillUp) {
  Hand hand(*world);
  hand.agree();
  world->setups[0]->poll(world->now);
  ASSERT_EQ(hand.come(), Reason::kNone);
  hand.introduce(hand.theirs.secret);
  EXPECT_TRUE(hand.take());
}

// LINK_READY is still under way, or was lost with its connection.
TEST_F(ShmSetupTest, LaneOfferedBeforeReady_IsUp) {
  std::vector<std::byte> ready;
  run([&](Record& record, std::vector<std::byte>& body) {
    if (record.type == RecordType::kLinkReady) ready.swap(body);
  });
  ASSERT_FALSE(ready.empty());
  expect(0, SetupState::kUp, Reason::kNone);
  expect(1, SetupState::kUnderWay, Reason::kNone);
  world->setups[1]->on_lane_offered();
  expect(1, SetupState::kUp, Reason::kNone);
  world->setups[1]->on_record(RecordType::kLinkReady, ready);
  expect(1, SetupState::kUp, Reason::kNone);
  EXPECT_EQ(world->setups[1]->link().state(), LinkState::kUp);
}

TEST_F(ShmSetupTest, LaneOfferedBeforeTheProof_ProvesNothing) {
  world->request();
  world->exchange();
  ASSERT_NE(world->setups[1], nullptr);
  world->setups[1]->on_lane_offered();
  expect(1, SetupState::kUnderWay, Reason::kNone);
}

TEST_F(ShmSetupTest, NamesAndSecrets_AreOthersEachTime) {
  Hand first(*world);
  world->devices[0]->close(world->setups[0]);
  Hand second(*world);
  EXPECT_NE(first.theirs.name, second.theirs.name);
  EXPECT_NE(first.theirs.secret, second.theirs.secret);
}

TEST_F(ShmSetupTest, Window_IsTheSmallerOne) {
  run_with(RecordType::kLinkReq, [](ShmEnd& end) { end.window = 100; });
  EXPECT_EQ(world->setups[0]->window(), 100U);
  EXPECT_EQ(world->setups[1]->window(), 100U);
}

TEST_F(ShmSetupTest, Meeting_IsOnlyOurUsersWhateverTheUmask) {
  const mode_t before = ::umask(0);
  world->request();
  ::umask(before);
  struct stat about {};
  ASSERT_EQ(world->folder().names().size(), 1U);
  ASSERT_EQ(::stat((world->folder().path() + "/" + world->folder().names()[0]).c_str(), &about), 0);
  EXPECT_TRUE(S_ISSOCK(about.st_mode));
  EXPECT_EQ(about.st_mode & 0777, 0600U);
}

// --- Refusals

TEST_F(ShmSetupTest, AnotherRunDirectory_BothKnow) {
  world = std::make_unique<LinkWorld>(false);
  run();
  expect(0, SetupState::kFailed, Reason::kElsewhere);
  expect(1, SetupState::kFailed, Reason::kElsewhere);
  EXPECT_TRUE(world->folder(0).names().empty());
}

TEST_F(ShmSetupTest, NameThatSomebodyLeftWhoDied_IsNobody) {
  run([&](Record& record, std::vector<std::byte>&) {
    if (record.type != RecordType::kLinkReq) return;
    const std::string path = world->folder().path() + "/" + world->folder().names().at(0);
    std::filesystem::remove(path);
    const Descriptor left(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un name{.sun_family = AF_UNIX, .sun_path = {}};
    ASSERT_LT(path.copy(name.sun_path, sizeof name.sun_path - 1), sizeof name.sun_path - 1);
    ASSERT_EQ(::bind(left.get(), reinterpret_cast<sockaddr*>(&name), sizeof name), 0);
  });
  expect(1, SetupState::kFailed, Reason::kElsewhere);
  expect(0, SetupState::kFailed, Reason::kElsewhere);
}

TEST_F(ShmSetupTest, RunDirectoryThatHasGone_NoLink) {
  std::filesystem::remove(world->folder().path());
  run();
  expect(0, SetupState::kFailed, Reason::kNoSharedMemory);
  EXPECT_EQ(world->setups[1], nullptr) << "nobody is told of what was never asked for";
}

TEST_F(ShmSetupTest, Refused_BothKnowWhy) {
  world->refusal = Reason::kPolicy;
  run();
  expect(0, SetupState::kFailed, Reason::kPolicy);
  expect(1, SetupState::kFailed, Reason::kPolicy);
}

TEST_F(ShmSetupTest, OtherUser_IsNotTalkedTo) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to be another user";
  ::chmod(world->folder().path().c_str(), 0777);
  int ready[2], over[2];
  ASSERT_EQ(::pipe2(ready, O_CLOEXEC), 0);
  ASSERT_EQ(::pipe2(over, O_CLOEXEC), 0);
  const Nonce name{std::byte{1}};
  const pid_t child = ::fork();
  if (child == 0) {
    Meeting meeting;
    char word = 1;
    ::close(over[1]);
    if (::setuid(54321) != 0 || meeting.open(world->folder().open().get(), name) != Reason::kNone) word = 0;
    (void)!::write(ready[1], &word, 1);
    (void)!::read(over[0], &word, 1);
    ::_exit(0);
  }
  char word = 0;
  ASSERT_EQ(::read(ready[0], &word, 1), 1);
  EXPECT_EQ(word, 1);
  Channel channel;
  EXPECT_EQ(Meeting::come(world->folder().open().get(), name, channel), Reason::kOtherUser);
  EXPECT_FALSE(channel.is_open());
  for (const int fd : {ready[0], ready[1], over[0], over[1]}) ::close(fd);
  ::waitpid(child, nullptr, 0);
}

TEST_F(ShmSetupTest, OtherUserAtOurMeeting_IsSentAway) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to be another user";
  ::chmod(world->folder().path().c_str(), 0777);
  Meeting meeting;
  const Nonce name{std::byte{1}};
  const Descriptor folder = world->folder().open();
  ASSERT_EQ(meeting.open(folder.get(), name), Reason::kNone);
  ::chmod((world->folder().path() + "/" + shm::meeting_name(name)).c_str(), 0777);
  const pid_t child = ::fork();
  if (child == 0) {
    Channel channel;
    const bool is_other = ::setuid(54321) == 0 && Meeting::come(folder.get(), name, channel) == Reason::kOtherUser;
    meeting.abandon();
    ::_exit(is_other ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(is_readable(meeting.descriptor()));
  EXPECT_FALSE(meeting.accept().has_value());
}

struct BadValue {
  const char* name;
  void (*change)(ShmEnd&);
  Reason reason;
};

TEST_F(ShmSetupTest, BadRequests_AreRefusedWithTheReason) {
  const BadValue values[] = {
      {"no name", [](ShmEnd& end) { end.name = {}; }, Reason::kLinkValue},
      {"another name", [](ShmEnd& end) { end.name[3] ^= std::byte{1}; }, Reason::kElsewhere},
      {"no secret", [](ShmEnd& end) { end.secret = {}; }, Reason::kLinkValue},
      {"no memory", [](ShmEnd& end) { end.size = 8; }, Reason::kLinkValue},
      {"too much memory", [](ShmEnd& end) { end.size = fastpath::kMostLinkMemory + 1; }, Reason::kLinkValue},
      {"small window", [](ShmEnd& end) { end.window = 15; }, Reason::kLinkValue},
      {"large window", [](ShmEnd& end) { end.window = 4097; }, Reason::kLinkValue},
  };
  for (const BadValue& value : values) {
    SCOPED_TRACE(value.name);
    world = std::make_unique<LinkWorld>();
    run_with(RecordType::kLinkReq, value.change);
    expect(0, SetupState::kFailed, value.reason);
    expect(1, SetupState::kFailed, value.reason);
    EXPECT_TRUE(world->folder().names().empty());
  }
}

TEST_F(ShmSetupTest, BadAnswers_EndIt) {
  const BadValue values[] = {
      {"a name", [](ShmEnd& end) { end.name[0] = std::byte{1}; }, Reason::kLinkValue},
      {"a window above ours", [](ShmEnd& end) { end.window = 513; }, Reason::kLinkValue},
      {"no secret", [](ShmEnd& end) { end.secret = {}; }, Reason::kLinkValue},
  };
  for (const BadValue& value : values) {
    SCOPED_TRACE(value.name);
    world = std::make_unique<LinkWorld>();
    run_with(RecordType::kLinkAcc, value.change);
    expect(0, SetupState::kFailed, value.reason);
    expect(1, SetupState::kFailed, Reason::kPeerLinkDown);
    EXPECT_TRUE(world->folder().names().empty());
  }
}

// Memory from a process that has not read the answer is not taken.
TEST_F(ShmSetupTest, AnswersSecretIsAnother_HostIsNotBelieved) {
  run_with(RecordType::kLinkAcc, [](ShmEnd& end) { end.secret[0] ^= std::byte{1}; });
  expect(0, SetupState::kFailed, Reason::kUnproven);
  expect(1, SetupState::kFailed, Reason::kUnproven);
}

// A process that has not read the request may send nothing there.
TEST_F(ShmSetupTest, GuestWithAWrongSecret_IsSentAwayAndTheRightOneHeard) {
  Hand hand(*world);
  Channel stranger;
  ASSERT_EQ(Meeting::come(world->folder().open().get(), hand.theirs.name, stranger), Reason::kNone);
  const Introduction words{.link = 7, .secret = {}};
  stranger.send(std::as_bytes(std::span(&words, 1)));
  world->setups[0]->poll(world->now);
  std::array<std::byte, 64> room;
  EXPECT_EQ(stranger.receive(room).kind, Channel::Received::Kind::kGone);
  EXPECT_TRUE(hand.bring_up());
}

TEST_F(ShmSetupTest, ManyStrangers_EndIt) {
  Hand hand(*world);
  for (unsigned i = 0; i < ShmSetup::kMostStrangers; i++) {
    ASSERT_EQ(hand.come(), Reason::kNone) << i;
    hand.introduce(hand.ours.secret);
    world->setups[0]->poll(world->now);
  }
  expect(0, SetupState::kFailed, Reason::kUnproven);
  EXPECT_EQ(hand.come(), Reason::kElsewhere);
}

TEST_F(ShmSetupTest, GuestThatLeavesAtOnce_MakesRoom) {
  Hand hand(*world);
  ASSERT_EQ(hand.come(), Reason::kNone);
  world->setups[0]->poll(world->now);
  hand.channel.close();
  world->setups[0]->poll(world->now);
  EXPECT_TRUE(hand.bring_up());
}

TEST_F(ShmSetupTest, NobodyComes_GivenUpInTime) {
  Hand hand(*world);
  hand.agree();
  EXPECT_LE(world->setups[0]->next_timeout(), world->now + ShmSetup::kLimit);
  world->now += ShmSetup::kLimit;
  world->setups[0]->poll(world->now);
  expect(0, SetupState::kFailed, Reason::kTooSlow);
  EXPECT_TRUE(world->folder().names().empty());
}

TEST_F(ShmSetupTest, RecordsOutOfTurn_EndIt) {
  const auto head_body = [](Mover mover) {
    std::vector<std::byte> body(fastpath::kLinkHeadBytes);
    encode(LinkHead{.link = 7, .mover = mover}, body);
    return body;
  };
  for (const auto& [type, mover, reason] : {std::tuple{RecordType::kLinkReady, Mover::kShm, Reason::kBadState},
                                            std::tuple{RecordType::kLinkAcc, Mover::kRc, Reason::kLinkVersion},
                                            std::tuple{RecordType::kLinkAcc, Mover::kShm, Reason::kLinkValue}}) {
    world = std::make_unique<LinkWorld>();
    Hand hand(*world);
    world->setups[0]->on_record(type, head_body(mover));
    expect(0, SetupState::kFailed, reason);
  }
}

// --- What the host sends

/// Answers as the device does. The host is made by hand.
class ShmHostTest : public ShmSetupTest {
 protected:
  void SetUp() override {
    theirs.name.fill(std::byte{3});
    theirs.secret.fill(std::byte{4});
    theirs.size = LinkWorld::kMemory;
    theirs.window = 64;
    ASSERT_EQ(meeting.open(folder.get(), theirs.name), Reason::kNone);
    std::array<std::byte, fastpath::kShmBodyBytes> body;
    encode(LinkHead{.link = 9, .mover = Mover::kShm}, theirs, body);
    world->hear(1, RecordType::kLinkReq, body);
    Record record;
    std::array<std::byte, fastpath::kMaxLinkBody> answer;
    ASSERT_TRUE(world->setups[1]->next_record(record, answer));
    ASSERT_EQ(decode(std::span(answer).first(record.length), false, ours), Reason::kNone);
    guest = meeting.accept();
    ASSERT_TRUE(guest.has_value());
  }
  void TearDown() override {
    guest.reset();
    meeting.close();
    folder.reset();
    ShmSetupTest::TearDown();
  }
  void send(const Nonce& secret, int fd) {
    const Introduction words{.link = 9, .secret = secret};
    guest->send(std::as_bytes(std::span(&words, 1)), fd);
    world->setups[1]->poll(world->now);
  }

  Descriptor folder = world->folder().open();
  Meeting meeting;
  ShmEnd theirs, ours;
  std::optional<Channel> guest;
};

TEST_F(ShmHostTest, NoMemory_Unproven) {
  send(ours.secret, -1);
  expect(1, SetupState::kFailed, Reason::kUnproven);
}

TEST_F(ShmHostTest, WrongSecret_Unproven) {
  auto segment = shm::Segment::create({ShmLink::kRing, ShmLink::kRing});
  ASSERT_TRUE(segment.ok());
  send(theirs.secret, segment.value.descriptor());
  expect(1, SetupState::kFailed, Reason::kUnproven);
}

TEST_F(ShmHostTest, MemoryThatCanBeCutShort_NotMapped) {
  const Descriptor file(::memfd_create("open", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(file.get(), 4096 + 2 * ShmLink::kRing), 0);
  send(ours.secret, file.get());
  expect(1, SetupState::kFailed, Reason::kNoSharedMemory);
}

TEST_F(ShmHostTest, RingsOfAnotherSize_Refused) {
  auto segment = shm::Segment::create({ShmLink::kRing / 2, ShmLink::kRing});
  ASSERT_TRUE(segment.ok());
  send(ours.secret, segment.value.descriptor());
  expect(1, SetupState::kFailed, Reason::kLinkValue);
}

TEST_F(ShmHostTest, HostGoesAway_Over) {
  guest.reset();
  world->setups[1]->poll(world->now);
  expect(1, SetupState::kFailed, Reason::kPeerLinkDown);
}

// --- What is left

TEST_F(ShmSetupTest, NamesOfTheDead_AreSweptAway) {
  const Descriptor folder = world->folder().open();
  const Nonce dead{std::byte{1}}, young{std::byte{2}}, alive{std::byte{3}};
  const auto path = [&](const Nonce& name) { return world->folder().path() + "/" + shm::meeting_name(name); };
  const auto grow_old = [&](const std::string& file) {
    const timespec times[2] = {};
    ASSERT_EQ(::utimensat(AT_FDCWD, file.c_str(), times, 0), 0);
  };
  Meeting kept, left[2];
  ASSERT_EQ(kept.open(folder.get(), alive), Reason::kNone);
  ASSERT_EQ(left[0].open(folder.get(), dead), Reason::kNone);
  ASSERT_EQ(left[1].open(folder.get(), young), Reason::kNone);
  for (Meeting& each : left) {  // as a process that dies leaves it
    ::close(each.descriptor());
    each.abandon();
  }
  const std::string other = world->folder().path() + "/link-and-more";
  ::close(::open(other.c_str(), O_CREAT | O_CLOEXEC, 0600));
  for (const std::string& file : {path(dead), path(alive), other}) grow_old(file);
  Meeting::sweep(folder.get(), 60);
  EXPECT_FALSE(std::filesystem::exists(path(dead)));
  EXPECT_TRUE(std::filesystem::exists(path(young)));
  EXPECT_TRUE(std::filesystem::exists(path(alive)));
  EXPECT_TRUE(std::filesystem::exists(other));
}

}  // namespace
}  // namespace bypass::test
