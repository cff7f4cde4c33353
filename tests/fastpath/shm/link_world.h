// What tests of links over shared memory share: run directories, two devices, and the records between them.
#pragma once

#include <dirent.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fastpath/lane/message.h"
#include "fastpath/shm/device.h"
#include "fastpath/shm/world.h"

namespace bypass::test {

using fastpath::Arrival;
using fastpath::LinkHead;
using fastpath::LinkSetup;
using fastpath::LinkState;
using fastpath::Mover;
using fastpath::Nonce;
using fastpath::Reason;
using fastpath::Record;
using fastpath::RecordType;
using fastpath::SetupState;
using fastpath::ShmEnd;
using fastpath::Write;
using shm::Channel;
using shm::Introduction;
using shm::Meeting;
using shm::ShmDevice;
using shm::ShmLink;

/// A directory of its own, which is removed at the end.
class Folder {
 public:
  Folder() { EXPECT_NE(::mkdtemp(path_.data()), nullptr); }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  [[nodiscard]] Descriptor open() const {
    return Descriptor(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  }
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& each : std::filesystem::directory_iterator(path_)) found.push_back(each.path().filename());
    return found;
  }

 private:
  std::string path_ = (std::filesystem::temp_directory_path() / "bypass-link.XXXXXX").string();
};

/// Two devices. Records of one reach the other.
class LinkWorld {
 public:
  static constexpr std::size_t kMemory = std::size_t{64} << 10;
  static constexpr std::size_t kGuard = 4096;  // on either side of what the peer may write

  explicit LinkWorld(bool shared = true) {
    for (std::size_t i = 0; i < 2; i++) {
      devices[i] = std::make_unique<ShmDevice>(folder(shared ? 0 : i).open());
      room_[i].assign(kMemory + 2 * kGuard, std::byte{0x5a});
    }
  }

  [[nodiscard]] const Folder& folder(std::size_t i = 0) const { return folders_[i]; }
  std::span<std::byte> memory(std::size_t i) { return std::span(room_[i]).subspan(kGuard, kMemory); }
  [[nodiscard]] bool guards_hold(std::size_t i) const {
    const auto whole = [](std::span<const std::byte> bytes) {
      return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0x5a}; });
    };
    return whole(std::span(room_[i]).first(kGuard)) && whole(std::span(room_[i]).last(kGuard));
  }

  void request(std::uint32_t id = 7) { setups[0] = devices[0]->request(id, memory(0), {}, now); }
  /// A record whose body it empties is not delivered.
  using Change = std::function<void(Record&, std::vector<std::byte>&)>;
  /// True: a record was sent.
  bool exchange(const Change& change = {}) {
    bool any = false;
    for (std::size_t from = 0; from < 2; from++) {
      std::array<std::byte, fastpath::kMaxLinkBody> room;
      Record record;
      while (setups[from] != nullptr && setups[from]->next_record(record, room)) {
        any = true;
        std::vector<std::byte> body(room.begin(), room.begin() + record.length);
        if (change) change(record, body);
        if (!body.empty()) hear(1 - from, record.type, body);
      }
    }
    return any;
  }
  void hear(std::size_t i, RecordType type, std::span<const std::byte> body) {
    if (setups[i] != nullptr) return setups[i]->on_record(type, body);
    setups[i] = devices[i]->answer(body, refusal, memory(i), {}, now);
  }
  /// Runs until no device has anything to send.
  void settle(const Change& change = {}) {
    for (int quiet = 0; quiet < 4;) {
      quiet = exchange(change) ? 0 : quiet + 1;
      for (LinkSetup* const each : setups)
        if (each != nullptr) each->poll(now);
    }
  }
  /// A link that is up at both ends.
  bool bring_up() {
    request();
    settle();
    return setups[0]->state() == SetupState::kUp && setups[1] != nullptr && setups[1]->state() == SetupState::kUp;
  }
  ShmLink& link(std::size_t i) { return static_cast<ShmLink&>(setups[i]->link()); }
  std::vector<Arrival> poll(std::size_t i) {
    std::array<Arrival, 32> room;
    std::vector<Arrival> all;
    while (const std::size_t n = link(i).poll(room)) all.insert(all.end(), room.begin(), room.begin() + n);
    return all;
  }

  Instant now{std::chrono::hours(1)};
  std::array<std::unique_ptr<ShmDevice>, 2> devices;
  std::array<LinkSetup*, 2> setups{};
  Reason refusal = Reason::kNone;

 private:
  std::array<Folder, 2> folders_;
  std::array<std::vector<std::byte>, 2> room_;
};

inline bool is_readable(int fd) {
  pollfd item{fd, POLLIN, 0};
  return ::poll(&item, 1, 0) == 1;
}

inline Write write_of(std::uint64_t to, std::span<const std::byte> bytes, std::uint32_t immediate) {
  Write write;
  write.to = to;
  write.from[0] = bytes;
  write.notify = immediate != 0;
  write.immediate = immediate;
  return write;
}

/// A peer that breaks the rules. It answers the request of end 0 by hand, and has the shared memory.
class Hand {
 public:
  explicit Hand(LinkWorld& world) : world_(world), folder_(world.folder().open()) {
    world.request();
    std::vector<std::byte> request;
    world.exchange([&request](Record&, std::vector<std::byte>& body) { request.swap(body); });
    EXPECT_EQ(decode(request, head_), Reason::kNone);
    EXPECT_EQ(decode(request, true, theirs), Reason::kNone);
    ours.secret.fill(std::byte{9});
    ours.size = LinkWorld::kMemory;
    ours.window = 64;
  }

  Reason come() { return Meeting::come(folder_.get(), theirs.name, channel); }
  void introduce(const Nonce& secret) {
    const Introduction words{.link = head_.link, .secret = secret};
    channel.take_descriptors(true);
    channel.send(std::as_bytes(std::span(&words, 1)));
  }
  void agree() {
    std::array<std::byte, fastpath::kShmBodyBytes> body;
    encode(head_, ours, body);
    world_.setups[0]->on_record(RecordType::kLinkAcc, body);
  }
  /// Takes the memory.
  bool take() {
    world_.setups[0]->poll(world_.now);
    std::array<std::byte, 64> room;
    Channel::Received got = channel.receive(room);
    file = std::move(got.descriptor);
    auto opened = shm::Segment::open(file.get());
    if (opened.ok()) segment = std::move(opened.value);
    return segment.is_mapped();
  }
  /// Does all steps, with the right answer to the ping.
  bool bring_up() {
    if (come() != Reason::kNone) return false;
    introduce(theirs.secret);
    agree();
    if (!take()) return false;
    put({.to = offsetof(fastpath::LinkBlock, reserved),
         .length = 8 | kNotify,
         .immediate = fastpath::to_immediate({fastpath::Op::kLinkPong, 0, fastpath::kNoLane})},
        std::span(theirs.secret).first(8));
    tell(produced);
    world_.setups[0]->poll(world_.now);
    return world_.setups[0]->state() == SetupState::kUp;
  }

  /// What comes before a write's bytes in the ring.
  struct Header {
    std::uint64_t to = 0;
    std::uint32_t length = 0;
    std::uint32_t immediate = 0;
  };
  static constexpr std::uint32_t kNotify = 1U << 31;
  /// Puts a write into the ring, and tells nobody.
  void put(const Header& header, std::span<const std::byte> bytes = {}) {
    const shm::RingView ring = segment.outgoing();
    std::memcpy(ring.bytes + produced % ring.size, &header, sizeof header);
    std::copy(bytes.begin(), bytes.end(), ring.bytes + produced % ring.size + sizeof header);
    produced += sizeof header + (bytes.size() + 15) / 16 * 16;
  }
  void tell(std::uint64_t index) { segment.outgoing().own->produced.store(index); }

  ShmEnd theirs, ours;
  Channel channel;
  Descriptor file;
  shm::Segment segment;
  std::uint64_t produced = 0;

 private:
  LinkWorld& world_;
  Descriptor folder_;
  LinkHead head_;
};

}  // namespace bypass::test
