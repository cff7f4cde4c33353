// Two threads over one ring, asleep and awake; and a thread that writes at random over everything that is shared.
#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "fastpath/shm/carrier_switch.h"
#include "fastpath/shm/world.h"

namespace bypass::test {
namespace {

using shm::Channel;
using shm::Consumer;
using shm::Producer;
using shm::RingView;
using shm::Segment;

std::byte byte_at(std::uint64_t offset) {
  return std::byte(offset * 0x9e37'79b9'7f4a'7c15U >> 56);
}

/// Sleeps until the peer wakes it, and ignores other packets.
void sleep_on(Channel& channel) {
  std::array<std::byte, 64> room;
  pollfd item{channel.descriptor(), POLLIN, 0};
  ASSERT_EQ(::poll(&item, 1, 60000), 1) << "a wake-up was lost";
  while (channel.receive(room).kind == Channel::Received::Kind::kWake) {
  }
}

struct Ends {
  Channel a, b;
  Ends() {
    int pair[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    a = Channel(Descriptor(pair[0]));
    b = Channel(Descriptor(pair[1]));
  }
};

void send_all(const RingView& view, Channel& channel, std::uint64_t total) {
  Producer producer;
  std::mt19937 random(1);
  for (std::uint64_t sent = 0; sent < total;) {
    const std::uint64_t wanted = std::min<std::uint64_t>(1 + random() % 700, total - sent);
    const auto room = producer.room(view, 1);
    if (room.size() == 0) {
      if (!producer.arm(view, 1)) sleep_on(channel);
      producer.disarm(view);
      continue;
    }
    std::uint64_t n = 0;
    for (const auto& part : room.part)
      for (std::size_t i = 0; i < part.size() && n < wanted; i++, n++) part[i] = byte_at(sent + n);
    sent += n;
    if (producer.publish(view, n)) channel.wake();
  }
  ASSERT_EQ(producer.broken(), Refusal::kNone);
}

void receive_all(const RingView& view, Channel& channel, std::uint64_t total) {
  Consumer consumer;
  std::mt19937 random(2);
  std::uint64_t wrong = 0;
  for (std::uint64_t got = 0; got < total;) {
    const auto there = consumer.peek(view);
    if (there.size() == 0) {
      if (!consumer.arm(view)) sleep_on(channel);
      consumer.disarm(view);
      continue;
    }
    const std::uint64_t wanted = 1 + random() % 900;
    std::uint64_t n = 0;
    for (const auto& part : there.part)
      for (std::size_t i = 0; i < part.size() && n < wanted; i++, n++) wrong += part[i] != byte_at(got + n);
    got += n;
    if (consumer.consume(view, n)) channel.wake();
  }
  EXPECT_EQ(wrong, 0U);
  EXPECT_EQ(consumer.broken(), Refusal::kNone);
}

TEST(RingThreads, EverythingArrives_AndNoWakeUpIsLost) {
  constexpr std::uint64_t kTotal = std::uint64_t{2} << 20;
  auto made = Segment::create({4096, 4096});
  ASSERT_TRUE(made.ok());
  // Both have one mapping. So a sanitizer sees that they mean the same memory.
  const RingView ours = made.value.outgoing();
  const RingView theirs{const_cast<shm::SideBlock*>(ours.peer), ours.own, ours.bytes, ours.size};
  Ends ends;
  std::thread reader([&] { receive_all(theirs, ends.b, kTotal); });
  send_all(ours, ends.a, kTotal);
  reader.join();
}

/// Both ends of many connections begin at once, each in a thread of its own.
TEST(RingThreads, BothEndsBeginAtOnce_AreOneHostAndOneGuest) {
  for (int round = 0; round < 100; round++) {
    const Connection connection;
    std::atomic<int> ready{0};
    shm::Pairing ends[2];
    const auto pair = [&](int end) {
      const int tcp = end == 0 ? connection.client.get() : connection.server.get();
      ready++;
      while (ready != 2) {
      }
      Instant now = kStart;
      ends[end].begin(meeting_folder(), tcp, kSizes, now, kDeadline);
      for (; ends[end].state() == shm::Pairing::State::kWaiting; now += 100us) {
        pollfd item{ends[end].descriptor(), POLLIN, 0};
        ::poll(&item, 1, 1);
        ends[end].step(now);
      }
    };
    std::thread other(pair, 1);
    pair(0);
    other.join();
    ASSERT_EQ(ends[0].state(), shm::Pairing::State::kPaired) << to_string(ends[0].refusal());
    ASSERT_EQ(ends[1].state(), shm::Pairing::State::kPaired) << to_string(ends[1].refusal());
    EXPECT_NE(ends[0].role(), ends[1].role());
  }
}

/// A thread that has mapped the memory elsewhere and writes anything there. Every second value is one that an index
/// could have, so that it is believed for a while.
void scribble(int file, std::size_t bytes, const std::atomic<bool>& stop, unsigned seed) {
  void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ASSERT_NE(at, MAP_FAILED);
  auto* const words = static_cast<std::atomic<std::uint64_t>*>(at);
  std::mt19937_64 random(seed);
  while (!stop.load(std::memory_order_relaxed)) {
    const std::size_t near = random() % 2 == 0 ? sizeof(shm::SegmentFront) : bytes;
    auto& word = words[random() % (near / sizeof(std::uint64_t))];
    const std::uint64_t old = word.load(std::memory_order_relaxed);
    word.store(random() % 2 == 0 ? old + random() % 64 : random(), std::memory_order_relaxed);
  }
  ::munmap(at, bytes);
}

/// What the victim does with its rings, until both are broken or it has done enough.
void use(const Segment& segment, Channel& channel, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> copy(segment.incoming().size);
  const RingView in = segment.incoming(), out = segment.outgoing();
  Producer producer;
  Consumer consumer;
  for (int i = 0; i < 2000; i++) {
    const auto there = consumer.peek(in);
    ASSERT_LE(there.size(), in.size);
    std::size_t n = 0;
    for (const auto& part : there.part) {
      if (!part.empty()) std::memcpy(copy.data() + n, part.data(), part.size());
      n += part.size();
    }
    if (consumer.consume(in, n)) channel.wake();
    if (!consumer.arm(in)) consumer.disarm(in);
    const auto room = producer.room(out, 1 + random() % out.size);
    ASSERT_LE(room.size(), out.size);
    for (const auto& part : room.part)
      if (!part.empty()) std::memset(part.data(), i, part.size());
    if (producer.publish(out, random() % (room.size() + 1))) channel.wake();
    if (!producer.arm(out, out.size / 2)) producer.disarm(out);
    if (consumer.broken() != Refusal::kNone && producer.broken() != Refusal::kNone) break;
  }
}

TEST(RingThreads, PeerScribblesOverAllThatIsShared_OursIsBrokenAndNothingElse) {
  for (unsigned seed = 0; seed < 40; seed++) {
    SCOPED_TRACE(seed);
    auto made = Segment::create({4096, 8192});
    ASSERT_TRUE(made.ok());
    Ends ends;
    std::atomic<bool> stop{false};
    std::thread hostile([&] { scribble(made.value.descriptor(), made.value.bytes(), stop, seed); });
    for (unsigned use_seed = 0; use_seed < 10; use_seed++) use(made.value, ends.a, seed * 10 + use_seed);
    stop = true;
    hostile.join();
  }
}

// Never both. One of them comes, unless the writer had no processor while it asked.
TEST(RingThreads, ResumeAndStopAtOnce_OneIsSaid) {
  constexpr int kRounds = 5'000;
  std::vector<shm::SideBlock> sides(2 * kRounds);
  std::vector<char> resumed(kRounds), stopped(kRounds);
  std::atomic<int> writer_at = -1, reader_at = -1;
  const auto meet = [](std::atomic<int>& own, const std::atomic<int>& other, int round) {
    own = round;
    while (other < round) std::this_thread::yield();
  };
  std::thread writer([&] {
    for (int i = 0; i < kRounds; i++) {
      meet(writer_at, reader_at, i);
      resumed[i] = shm::claim_resume({&sides[2 * i], &sides[2 * i + 1], nullptr, 0}, 0);
    }
  });
  for (int i = 0; i < kRounds; i++) {
    meet(reader_at, writer_at, i);
    stopped[i] = shm::claim_stop({&sides[2 * i + 1], &sides[2 * i], nullptr, 0}, 0);
  }
  writer.join();
  for (int i = 0; i < kRounds; i++) EXPECT_FALSE(resumed[i] && stopped[i]) << i;
  EXPECT_GT(std::count(resumed.begin(), resumed.end(), 1) + std::count(stopped.begin(), stopped.end(), 1), kRounds / 2);
}

}  // namespace
}  // namespace bypass::test
