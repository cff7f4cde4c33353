#include "fastpath/shm/link.h"

#include <algorithm>
#include <array>

#include "stack/copy.h"

namespace bypass::fastpath::shm {
namespace {

/// Wake-ups taken at a time: an honest peer sends one for each sleep.
constexpr int kMostWakes = 64;

/// Copies bytes into the free part of a ring, from its beginning on.
class Cursor {
 public:
  explicit Cursor(const Parts<std::byte>& room) : room_(room) {}
  void put(const void* bytes, std::size_t count) {
    const std::span<std::byte> first = room_.part[0];
    const std::size_t whole = at_ < first.size() ? std::min(count, first.size() - at_) : 0;
    if (whole != 0) copy_bytes(first.data() + at_, bytes, whole);
    if (whole != count) {
      const std::size_t wrapped = at_ + whole - first.size();
      copy_bytes(room_.part[1].data() + wrapped, static_cast<const std::byte*>(bytes) + whole, count - whole);
    }
    at_ += count;
  }
  void skip_to(std::size_t at) { at_ = at; }

 private:
  const Parts<std::byte>& room_;
  std::size_t at_ = 0;
};

void copy_out(const Parts<const std::byte>& from, std::uint64_t at, std::byte* to, std::size_t count) {
  const std::span<const std::byte> first = from.part[0];
  const std::size_t whole = at < first.size() ? std::min<std::size_t>(count, first.size() - at) : 0;
  if (whole != 0) copy_bytes(to, first.data() + at, whole);
  if (whole != count) copy_bytes(to + whole, from.part[1].data() + (at + whole - first.size()), count - whole);
}

}  // namespace

void ShmLink::open(Segment segment, Channel channel) {
  segment_ = std::move(segment);
  channel_ = std::move(channel);
  out_ = segment_.outgoing();
  in_ = segment_.incoming();
}

// --- Writing

std::size_t ShmLink::room() const {
  if (failed_) return 0;
  const std::uint64_t free = producer_.room(out_, kPlenty).size();
  short_ = free < kPlenty;
  return free / slot_bytes(kMostWrite);
}

void ShmLink::post(std::span<const Write> batch) {
  if (failed_) return;
  std::uint64_t bytes = 0;
  for (const Write& write : batch) bytes += slot_bytes(write.size());
  const Parts<std::byte> room = producer_.room(out_, bytes);
  if (room.size() < bytes) return end(true);
  Cursor cursor(room);
  std::uint64_t at = 0;
  for (const Write& write : batch) {
    const auto length = static_cast<std::uint32_t>(write.size());
    const Header header{write.to, length | (write.notify ? kNotify : 0), write.immediate};
    cursor.put(&header, sizeof header);
    for (const std::span<const std::byte> part : write.from) cursor.put(part.data(), part.size());
    if (write.small_length != 0) cursor.put(write.small.data(), write.small_length);
    cursor.skip_to(at += slot_bytes(length));
  }
  if (producer_.publish(out_, bytes)) channel_.wake();
}

// --- Reading

/// Copies one write into our memory. False: the bytes are no valid write.
bool ShmLink::take(const Parts<const std::byte>& there, std::uint64_t at, std::uint64_t limit, Header& header) {
  if (limit - at < sizeof header) return false;
  copy_out(there, at, reinterpret_cast<std::byte*>(&header), sizeof header);
  const std::uint64_t length = header.length & ~kNotify;
  if (length > kMostWrite || slot_bytes(length) > limit - at) return false;
  if (header.to > memory_.size() || length > memory_.size() - header.to) return false;
  copy_out(there, at + sizeof header, memory_.data() + header.to, length);
  return true;
}

std::size_t ShmLink::poll(std::span<Arrival> out) {
  if (!is_open()) return 0;
  const Parts<const std::byte> there = consumer_.peek(in_);
  const std::uint64_t limit = failed_ ? rest_ : there.size();
  std::uint64_t at = 0;
  std::size_t n = 0;
  bool sound = consumer_.broken() == Refusal::kNone && producer_.broken() == Refusal::kNone;
  while (sound && at < limit && n < out.size()) {
    Header header;
    sound = take(there, at, limit, header);
    if (!sound) break;
    const std::uint32_t length = header.length & ~kNotify;
    if ((header.length & kNotify) != 0) out[n++] = {header.immediate, length};
    at += slot_bytes(length);
  }
  if (at != 0 && consumer_.consume(in_, at) && !failed_) channel_.wake();
  if (failed_) rest_ -= at;
  if (!sound) [[unlikely]]
    end(false);
  return n;
}

// --- Waiting

/// The ring stays armed even if something is there already. Another thread may sleep after an arm() of its own, whose
/// wake-up was taken here.
bool ShmLink::arm() {
  const LinkState before = state();
  take_wakes();
  if (failed_) return rest_ != 0 || state() != before;
  consumer_.want(in_);
  if (consumer_.peek(in_).size() != 0 || consumer_.broken() != Refusal::kNone) return true;
  return short_ && producer_.arm(out_, kPlenty);
}

/// Leaves a wake-up in the channel: another thread may be about to see it.
void ShmLink::look() {
  if (channel_.is_open() && (os::poll_now(channel_.descriptor(), POLLRDHUP) & (POLLRDHUP | POLLHUP)) != 0) end(true);
}

void ShmLink::take_wakes() {
  std::array<std::byte, 2> room;
  for (int i = 0; i < kMostWakes && channel_.is_open(); i++) {
    const Channel::Received received = channel_.receive(room);
    if (received.kind == Channel::Received::Kind::kNothing) return;
    if (received.kind != Channel::Received::Kind::kWake) return end(true);
  }
}

// --- The end

LinkState ShmLink::state() const {
  if (!failed_) return LinkState::kUp;
  return rest_ == 0 ? LinkState::kDrained : LinkState::kFailed;
}

/// `take_rest`: what has come until now still counts, once; what the peer writes from now on does not.
void ShmLink::end(bool take_rest) {
  if (!failed_ && take_rest) rest_ = consumer_.peek(in_, SIZE_MAX).size();
  if (!take_rest) rest_ = 0;
  failed_ = true;
  channel_.close();
}

void ShmLink::fail() {
  if (!failed_) end(true);
}

void ShmLink::give_up() {
  end(false);
}

void ShmLink::abandon() {
  channel_.abandon();
  segment_ = {};
}

}  // namespace bypass::fastpath::shm
