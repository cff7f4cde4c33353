// From a connection to shared memory, and memory that is wrong.
#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <string>

#include "fastpath/shm/world.h"

namespace bypass::test {
namespace {

using shm::MessageKind;
using shm::Pairing;
using shm::Segment;
using State = Pairing::State;

bool put(const shm::RingView& view, shm::Producer& producer, std::string_view text) {
  const auto room = producer.room(view, text.size());
  if (room.part[0].size() < text.size()) return false;
  std::memcpy(room.part[0].data(), text.data(), text.size());
  (void)producer.publish(view, text.size());
  return true;
}
std::string take(const shm::RingView& view, shm::Consumer& consumer) {
  std::string text;
  const auto there = consumer.peek(view);
  for (const auto& part : there.part) text.append(reinterpret_cast<const char*>(part.data()), part.size());
  (void)consumer.consume(view, text.size());
  return text;
}

/// The flags of our mapping of a segment (smaps(5)); empty: there is no mapping.
std::string mapping_flags() {
  std::ifstream maps("/proc/self/smaps");
  std::string line;
  bool ours = false;
  while (std::getline(maps, line)) {
    if (line.find("memfd:bypass-connection") != std::string::npos) ours = true;
    if (ours && line.rfind("VmFlags:", 0) == 0) return line;
  }
  return {};
}

class PairingTest : public LeakFree {
 protected:
  void TearDown() override {
    us = {}, peer = {};
    connection.reset();
    LeakFree::TearDown();
  }

  std::unique_ptr<Connection> connection = std::make_unique<Connection>();
  Pairing us, peer;
};

TEST_F(PairingTest, BothEnds_ShareTwoRings_AndWakeEachOther) {
  peer.begin(meeting_folder(), connection->client.get(), kSizes, kStart, kDeadline);
  us.begin(meeting_folder(), connection->server.get(), kSizes, kStart, kDeadline);
  settle(kStart, us, peer);
  ASSERT_EQ(us.state(), State::kPaired) << to_string(us.refusal());
  ASSERT_EQ(peer.state(), State::kPaired) << to_string(peer.refusal());
  const Segment ours = us.take_segment(), theirs = peer.take_segment();
  EXPECT_EQ(ours.outgoing().size, kSizes.to_host);
  EXPECT_EQ(ours.incoming().size, kSizes.to_guest);
  EXPECT_EQ(theirs.outgoing().size, kSizes.to_guest);

  shm::Producer to_peer, to_us;
  shm::Consumer at_us, at_peer;
  EXPECT_TRUE(put(ours.outgoing(), to_peer, "question"));
  EXPECT_EQ(take(theirs.incoming(), at_peer), "question");
  EXPECT_TRUE(put(theirs.outgoing(), to_us, "answer"));
  EXPECT_EQ(take(ours.incoming(), at_us), "answer");
  EXPECT_TRUE(at_peer.peek(theirs.incoming()).size() == 0);

  shm::Channel mine = us.take_channel(), other = peer.take_channel();
  std::array<std::byte, 64> room;
  EXPECT_EQ(mine.receive(room).kind, shm::Channel::Received::Kind::kNothing);
  other.wake();
  EXPECT_EQ(mine.receive(room).kind, shm::Channel::Received::Kind::kWake);
  other.close();
  EXPECT_EQ(mine.receive(room).kind, shm::Channel::Received::Kind::kGone);
}

TEST_F(PairingTest, Memory_IsLeftOutOfDumps_AndGoneWithItsOwners) {
  peer.begin(meeting_folder(), connection->client.get(), kSizes, kStart, kDeadline);
  us.begin(meeting_folder(), connection->server.get(), kSizes, kStart, kDeadline);
  settle(kStart, us, peer);
  EXPECT_NE(mapping_flags().find(" dd "), std::string::npos) << mapping_flags();
  us = {}, peer = {};
  EXPECT_EQ(mapping_flags(), "");
}

TEST_F(PairingTest, PairedChannel_TakesNoDescriptorAnyMore) {
  peer.begin(meeting_folder(), connection->client.get(), kSizes, kStart, kDeadline);
  us.begin(meeting_folder(), connection->server.get(), kSizes, kStart, kDeadline);
  settle(kStart, us, peer);
  shm::Channel mine = us.take_channel(), other = peer.take_channel();
  const shm::Message message = message_of(MessageKind::kReady);
  if (other.send(bytes_of(message), 0) == shm::Channel::Sent::kSent)
    GTEST_SKIP() << "no SO_PASSRIGHTS before Linux 6.16";
  EXPECT_EQ(other.send(bytes_of(message)), shm::Channel::Sent::kSent);
}

TEST_F(PairingTest, FullChannel_IsAWakeUpThatWaitsAlready) {
  peer.begin(meeting_folder(), connection->client.get(), kSizes, kStart, kDeadline);
  us.begin(meeting_folder(), connection->server.get(), kSizes, kStart, kDeadline);
  settle(kStart, us, peer);
  shm::Channel mine = us.take_channel(), other = peer.take_channel();
  const shm::Message message = message_of(MessageKind::kReady);
  while (other.send(bytes_of(message)) == shm::Channel::Sent::kSent) {
  }
  EXPECT_EQ(other.send(bytes_of(message)), shm::Channel::Sent::kFull);
  other.wake();  // does not wait
  EXPECT_TRUE(os::readable(mine.descriptor()));
}

TEST(Segment, Sizes_ArePowersOfTwoWithinBounds) {
  for (const std::uint64_t size : {std::uint64_t{0}, std::uint64_t{2048}, std::uint64_t{12288}, 2 * shm::kMostRing})
    EXPECT_EQ(Segment::create({size, 8192}).refusal, Refusal::kBadSize);
  EXPECT_EQ(Segment::create({shm::kMostRing, shm::kLeastRing}).refusal, Refusal::kNone);
}

TEST(Segment, LimitOnFileSizes_IsARefusal_NotASignal) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  const rlimit small{8192, limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const Refusal refusal = Segment::create(kSizes).refusal;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  EXPECT_EQ(refusal, Refusal::kNoResources);
}

TEST(Segment, Made_CanNeitherShrinkNorGrow) {
  const auto made = Segment::create(kSizes);
  ASSERT_TRUE(made.ok());
  EXPECT_NE(::ftruncate(made.value.descriptor(), 0), 0);
  EXPECT_NE(::ftruncate(made.value.descriptor(), 1 << 20), 0);
  EXPECT_NE(::fcntl(made.value.descriptor(), F_ADD_SEALS, F_SEAL_WRITE), 0);
}

TEST(Segment, HoleMadeByThePeer_ReadsAsZeroes) {
  const auto made = Segment::create(kSizes);
  ASSERT_TRUE(made.ok());
  const auto opened = Segment::open(made.value.descriptor());
  ASSERT_TRUE(opened.ok());
  const auto view = made.value.outgoing();
  view.bytes[0] = std::byte{7};
  ASSERT_EQ(::fallocate(made.value.descriptor(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                        static_cast<off_t>(made.value.bytes())),
            0);
  EXPECT_EQ(opened.value.incoming().bytes[0], std::byte{0});
}

// --- Memory from a host that owns the connection and is hostile

struct Trap {
  const char* name;
  Refusal expected;
  std::function<Descriptor()> make;
};

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

Descriptor file_with(const shm::SegmentHeader& header, std::uint64_t bytes, int seals, unsigned flags = 0) {
  Descriptor file(::memfd_create("trap", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags));
  if (!file.is_open()) return file;
  EXPECT_EQ(::ftruncate(file.get(), static_cast<off_t>(bytes)), 0);
  if (flags == 0) (void)!::pwrite(file.get(), &header, sizeof header, 0);
  if (seals != 0) {
    EXPECT_EQ(::fcntl(file.get(), F_ADD_SEALS, seals), 0);
  }
  return file;
}
shm::SegmentHeader good_header() {
  return {.rings = kSizes};
}
constexpr std::uint64_t kGoodBytes = shm::kFrontBytes + kSizes.to_guest + kSizes.to_host;

Descriptor with_rings(std::uint64_t to_guest, std::uint64_t to_host, std::uint64_t bytes) {
  shm::SegmentHeader header;
  header.rings = {to_guest, to_host};
  return file_with(header, bytes, kSeals);
}

const std::vector<Trap>& traps() {
  static const std::vector<Trap> all = {
      {"NotSealed", Refusal::kNotSealed, [] { return file_with(good_header(), kGoodBytes, 0); }},
      {"MayShrink", Refusal::kNotSealed,
       [] { return file_with(good_header(), kGoodBytes, F_SEAL_GROW | F_SEAL_SEAL); }},
      {"MayGrow", Refusal::kNotSealed,
       [] { return file_with(good_header(), kGoodBytes, F_SEAL_SHRINK | F_SEAL_SEAL); }},
      {"Truncated", Refusal::kBadSize, [] { return file_with(good_header(), kGoodBytes - 4096, kSeals); }},
      {"LongerThanItSays", Refusal::kBadSize, [] { return file_with(good_header(), kGoodBytes + 4096, kSeals); }},
      {"NoWholePages", Refusal::kBadSize, [] { return file_with(good_header(), kGoodBytes - 1, kSeals); }},
      {"Empty", Refusal::kBadSize, [] { return file_with(good_header(), 0, kSeals); }},
      {"HeaderAlone", Refusal::kBadSize, [] { return file_with(good_header(), sizeof(shm::SegmentHeader), kSeals); }},
      {"RingOfZero", Refusal::kBadSize, [] { return with_rings(0, 8192, shm::kFrontBytes + 8192); }},
      {"RingOfNoPower", Refusal::kBadSize, [] { return with_rings(12288, 8192, shm::kFrontBytes + 12288 + 8192); }},
      {"RingTooSmall", Refusal::kBadSize, [] { return with_rings(2048, 2048, shm::kFrontBytes + 4096); }},
      {"RingTooLarge", Refusal::kBadSize,
       [] { return with_rings(2 * shm::kMostRing, 4096, shm::kFrontBytes + 2 * shm::kMostRing + 4096); }},
      {"RingsThatOverflow", Refusal::kBadSize,
       [] { return with_rings(std::uint64_t{1} << 63, std::uint64_t{1} << 63, shm::kFrontBytes); }},
      {"BadMagic", Refusal::kBadHeader,
       [] {
         auto header = good_header();
         header.magic++;
         return file_with(header, kGoodBytes, kSeals);
       }},
      {"AnotherVersion", Refusal::kOtherVersion,
       [] {
         auto header = good_header();
         header.version++;
         return file_with(header, kGoodBytes, kSeals);
       }},
      {"AnotherLayout", Refusal::kBadHeader,
       [] {
         auto header = good_header();
         header.side_bytes /= 2;
         return file_with(header, kGoodBytes, kSeals);
       }},
      {"Zeroes", Refusal::kBadHeader,
       [] {
         shm::SegmentHeader zeroes{0, 0, 0, {0, 0}};
         return file_with(zeroes, kGoodBytes, kSeals);
       }},
      {"NotToBeWritten", Refusal::kNotMapped,
       [] { return file_with(good_header(), kGoodBytes, kSeals | F_SEAL_WRITE); }},
      {"OpenedToRead", Refusal::kNotMapped,
       [] {
         const Descriptor file = file_with(good_header(), kGoodBytes, kSeals);
         return Descriptor(::open(("/proc/self/fd/" + std::to_string(file.get())).c_str(), O_RDONLY | O_CLOEXEC));
       }},
      {"FileOfADisk", Refusal::kNotMemory, [] { return Descriptor(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC)); }},
      {"FileOfATmpfs", Refusal::kNotSealed,
       [] { return Descriptor(::open("/dev/shm", O_RDWR | O_TMPFILE | O_CLOEXEC, 0600)); }},
      {"Device", Refusal::kNotMemory, [] { return Descriptor(::open("/dev/zero", O_RDWR | O_CLOEXEC)); }},
      {"Socket", Refusal::kNotMemory, [] { return Descriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)); }},
      {"HugePages", Refusal::kNotMemory,
       [] { return file_with(good_header(), std::uint64_t{2} << 20, kSeals, MFD_HUGETLB); }},
      {"None", Refusal::kNoProof, [] { return Descriptor(); }},
  };
  return all;
}

class SegmentTrap : public ::testing::TestWithParam<Trap> {};

TEST_P(SegmentTrap, FromAProvenHost_IsRefusedWithItsReason) {
  const std::size_t before = open_descriptors();
  {
    const Connection connection;
    const Squatter name(connection.server.get());
    Pairing us;
    us.begin(meeting_folder(), connection.server.get(), kSizes, kStart, kDeadline);
    shm::Channel host = accept_one(name);
    shm::say_end(host, MessageKind::kWelcome, connection.client.get());
    us.step(kStart);
    EXPECT_EQ(hear(host).kind, MessageKind::kProof);
    shm::say(host, MessageKind::kProof);
    const Descriptor trap = GetParam().make();
    if (!trap.is_open() && GetParam().expected != Refusal::kNoProof) GTEST_SKIP() << "cannot be made here";
    shm::say(host, MessageKind::kSegment, Refusal::kNone, trap.get());
    us.step(kStart);
    us.step(kStart);
    EXPECT_EQ(us.state(), State::kRefused);
    EXPECT_STREQ(to_string(us.refusal()), to_string(GetParam().expected));
    EXPECT_EQ(hear(host).reason, GetParam().expected);
  }
  EXPECT_EQ(open_descriptors(), before);
  EXPECT_EQ(mapping_flags(), "");
}
INSTANTIATE_TEST_SUITE_P(All, SegmentTrap, ::testing::ValuesIn(traps()),
                         [](const auto& each) { return std::string(each.param.name); });

/// The header's bytes at random. The memory is mapped only if the header is right.
TEST(Segment, HeaderFuzzed_IsMappedOnlyWhenItFitsTheFile) {
  std::mt19937 random(6);
  for (int i = 0; i < 2000; i++) {
    shm::SegmentHeader header = good_header();
    auto bytes = std::as_writable_bytes(std::span(&header, 1));
    for (unsigned n = random() % 3; n > 0; n--) bytes[random() % bytes.size()] = std::byte(random() % 4 * 0x40);
    const std::uint64_t size = random() % 4 == 0 ? 4096 * (random() % 16) : kGoodBytes;
    const Descriptor file = file_with(header, size, kSeals);
    const auto opened = Segment::open(file.get());
    if (opened.ok()) {
      EXPECT_EQ(opened.value.bytes(), size);
    }
    const auto good = good_header();
    const bool fits = std::memcmp(&header, &good, sizeof good) == 0 && size == kGoodBytes;
    if (fits) {
      EXPECT_TRUE(opened.ok());
    }
  }
}

}  // namespace
}  // namespace bypass::test
