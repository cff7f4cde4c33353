// The directory of ports: hints that survive, and a file that is wrong.
#include "fastpath/shm/rendezvous/directory.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "fastpath/shm/world.h"

namespace bypass::test {
namespace {

using shm::Directory;

constexpr std::uint32_t kHere = 0x1234'5679, kElsewhere = 0x8765'4321;

class DirectoryTest : public LeakFree {
 protected:
  DirectoryTest() {
    char name[] = "/tmp/bypass-test-directory.XXXXXX";
    path_ = ::mkdtemp(name);
    folder_ = Descriptor(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  }
  ~DirectoryTest() override { std::filesystem::remove_all(path_); }
  void TearDown() override {
    folder_.reset();
    directory_ = {};
    LeakFree::TearDown();
  }

  [[nodiscard]] std::filesystem::path file() const { return path_ / "local-ports"; }
  Directory& open() {
    auto opened = Directory::open(folder_.get());
    EXPECT_TRUE(opened.ok());
    directory_ = std::move(opened.value);
    return directory_;
  }
  [[nodiscard]] Refusal refusal() const { return Directory::open(folder_.get()).refusal; }

  std::filesystem::path path_;
  Descriptor folder_;
  Directory directory_;
};

TEST_F(DirectoryTest, New_KnowsNobody) {
  const Directory& d = open();
  for (const int port : {1, 80, 65535}) {
    EXPECT_FALSE(d.has_listener(static_cast<std::uint16_t>(port), kHere));
    EXPECT_FALSE(d.has_clients(static_cast<std::uint16_t>(port), kHere));
  }
}

TEST_F(DirectoryTest, Notes_AreOfOnePortAndOneNetwork_AndOfTheirKind) {
  const Directory& d = open();
  d.note_listener(80, kHere);
  EXPECT_TRUE(d.has_listener(80, kHere));
  EXPECT_FALSE(d.has_listener(80, kElsewhere));
  EXPECT_FALSE(d.has_listener(79, kHere));
  EXPECT_FALSE(d.note_client_of_listener(79, kHere));
  EXPECT_FALSE(d.note_client_of_listener(80, kElsewhere));
  EXPECT_FALSE(d.has_clients(79, kHere) || d.has_clients(80, kElsewhere) || d.has_clients(80, kHere));
  EXPECT_FALSE(d.has_listener(81, kHere));
  EXPECT_FALSE(d.has_clients(80, kHere));
  EXPECT_TRUE(d.note_client_of_listener(80, kHere));
  EXPECT_TRUE(d.has_clients(80, kHere));
  EXPECT_FALSE(d.has_clients(80, kElsewhere));
  EXPECT_TRUE(d.has_listener(80, kHere));
}

TEST_F(DirectoryTest, FirstAndLastPort_HaveAPlace) {
  const Directory& d = open();
  for (const std::uint16_t port : {std::uint16_t{0}, std::uint16_t{65535}}) {
    d.note_listener(port, kHere), d.note_client(port, kHere);
    EXPECT_TRUE(d.has_listener(port, kHere) && d.has_clients(port, kHere));
  }
  EXPECT_EQ(std::filesystem::file_size(file()), 65536U * 8);
}

TEST_F(DirectoryTest, AnotherNetworkListens_TakesThePlace) {
  const Directory& d = open();
  d.note_listener(80, kHere);
  d.note_listener(80, kElsewhere);
  EXPECT_FALSE(d.has_listener(80, kHere));
  EXPECT_TRUE(d.has_listener(80, kElsewhere));
}

TEST_F(DirectoryTest, NetworkThatCannotBeAsked_IsNobodys) {
  const Directory& d = open();
  d.note_listener(80, 0), d.note_client(80, 0);
  EXPECT_FALSE(d.has_listener(80, 0));
  EXPECT_FALSE(d.has_clients(80, 0));
  EXPECT_EQ(std::filesystem::file_size(file()), 0U);
}

TEST_F(DirectoryTest, AnotherProcess_SeesWhatWasNoted) {
  open().note_listener(80, kHere);
  const auto second = Directory::open(folder_.get());
  ASSERT_TRUE(second.ok());
  EXPECT_TRUE(second.value.has_listener(80, kHere));
}

TEST_F(DirectoryTest, NotOpen_KnowsNobodyAndTakesNothing) {
  const Directory none;
  none.note_listener(80, kHere), none.note_client(80, kHere);
  EXPECT_FALSE(none.has_listener(80, kHere));
  EXPECT_FALSE(none.has_clients(80, kHere));
}

// --- A wrong file

TEST_F(DirectoryTest, CutShortUnderUs_ReadsAsNobody_AndTakesNotesAgain) {
  const Directory& d = open();
  d.note_listener(65000, kHere), d.note_client(65000, kHere);
  std::filesystem::resize_file(file(), 65000 * 8 + 2);  // in the middle of the place
  EXPECT_FALSE(d.has_listener(65000, kHere));
  EXPECT_FALSE(d.has_clients(65000, kHere));
  std::filesystem::resize_file(file(), 0);
  EXPECT_FALSE(d.has_listener(65000, kHere));
  d.note_listener(65000, kHere);
  EXPECT_TRUE(d.has_listener(65000, kHere));
}

TEST_F(DirectoryTest, FilledWithAnything_TellsOfNobodyOfOurNetwork) {
  const Directory& d = open();
  std::ofstream(file()) << std::string(65536 * 8, '\xa5');
  EXPECT_FALSE(d.has_listener(80, kHere));
  EXPECT_FALSE(d.has_clients(80, kHere));
}

TEST_F(DirectoryTest, Link_IsNotFollowed) {
  std::ofstream(path_ / "victim") << "kept";
  std::filesystem::create_symlink(path_ / "victim", file());
  EXPECT_EQ(refusal(), Refusal::kNoResources);
  EXPECT_EQ(std::filesystem::file_size(path_ / "victim"), 4U);
}

TEST_F(DirectoryTest, Folder_IsRefused) {
  std::filesystem::create_directory(file());
  EXPECT_EQ(refusal(), Refusal::kNoResources);
}

// An open() that waits for a writer would hang the program.
TEST_F(DirectoryTest, Pipe_IsRefusedWithoutWaiting) {
  ASSERT_EQ(::mkfifo(file().c_str(), 0600), 0);
  EXPECT_EQ(refusal(), Refusal::kNoResources);
}

TEST_F(DirectoryTest, AnotherUsersFile_IsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  std::ofstream(file()) << "";
  ASSERT_EQ(::chown(file().c_str(), 65534, 65534), 0);
  EXPECT_EQ(refusal(), Refusal::kNoResources);
}

TEST_F(DirectoryTest, FileLimitBelowIt_IsRefused_AndNobodyGetsASignal) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit low{65536 * 8 - 1, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &low), 0);
  const Refusal why = refusal();
  ::setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(why, Refusal::kNoResources);
  EXPECT_FALSE(std::filesystem::exists(file()));
}

TEST_F(DirectoryTest, NoDescriptorLeft_IsRefused) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  const int folder = folder_.get();  // UBSan takes a descriptor when it looks at an object
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const Refusal why = Directory::open(folder).refusal;
  ::setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_EQ(why, Refusal::kNoResources);
}

// --- Tags

TEST_F(DirectoryTest, TagOfANetwork_IsTheSameForAllItsSockets_AndNever0) {
  const Descriptor one(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const Descriptor two(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_NE(shm::network_tag(one.get()), 0U);
  EXPECT_EQ(shm::network_tag(one.get()), shm::network_tag(two.get()));
}

TEST_F(DirectoryTest, TagOfWhatIsNoSocket_Is0) {
  EXPECT_EQ(shm::network_tag(folder_.get()), 0U);
  EXPECT_EQ(shm::network_tag(-1), 0U);
}

}  // namespace
}  // namespace bypass::test
