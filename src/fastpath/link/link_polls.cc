// LinkOwner: polls and writes to the links that are up. Ends those that have failed, and gives back their memory.
// Tests: tests/fastpath/peer_links_test.cc, tests/fastpath/peer_links_end_test.cc.
#include <algorithm>
#include <array>
#include <utility>

#include "fastpath/link/link_owner.h"

namespace bypass::fastpath {

namespace {

/// As kLook, but while something is being set up.
constexpr Duration kLookUnderWay = std::chrono::microseconds(100);
/// The interval of looks while lanes wait for room on a link.
constexpr Duration kRoomLook = std::chrono::milliseconds(1);
/// How long a failed link's device has to report what became of the posted writes.
constexpr Duration kPatience = std::chrono::milliseconds(50);
/// How much of the arena is registered at a time: no send ring is larger.
constexpr std::size_t kChunk = kMaxBlock;

/// The lanes for which messages have come, each once.
struct Touched {
  std::array<std::uint16_t, LinkEnd::kMostArrivals> numbers;
  std::size_t count = 0;
  void operator()(std::uint16_t number) {
    const auto end = numbers.begin() + static_cast<std::ptrdiff_t>(count);
    if (std::find(numbers.begin(), end, number) == end) numbers[count++] = number;
  }
};

}  // namespace

// --- One link

std::size_t LinkOwner::take_messages(Context& ctx, PeerLink& link) {
  Touched touched;
  LaneTable lanes{link};
  const std::size_t n = link.end.poll(own_of(link).setup->link(), lanes, touched);
  for (std::size_t i = 0; i < touched.count; i++) lanes_.run_lane(ctx, link, touched.numbers[i]);
  return n;
}

void LinkOwner::take_messages(Context& ctx, PeerLink& link, std::span<const Arrival> arrivals) {
  Touched touched;
  LaneTable lanes{link};
  link.end.take(arrivals, lanes, touched);
  for (std::size_t i = 0; i < touched.count; i++) lanes_.run_lane(ctx, link, touched.numbers[i]);
}

/// A writer that waits is woken by a message. The peer sends that message after all that it had to take first. A writer
/// that polls goes on as soon as its credit block allows: so the two work side by side, not in turns.
std::size_t LinkOwner::look_for_credit(Context& ctx, PeerLink& link) {
  LaneTable lanes{link};
  Lane* const lane = lanes.find(link.latest);
  if (lane == nullptr || !lane->sees_credit({link.memory, link.bytes})) return 0;
  lane->look({link.memory, link.bytes});
  link.end.enqueue(link.latest, lanes);
  lanes_.run_lane(ctx, link, link.latest);
  return 1;
}

std::size_t LinkOwner::poll_link(Context& ctx, PeerLink& link) {
  const std::size_t n = take_messages(ctx, link) + look_for_credit(ctx, link);
  if (link.first_ghost != kNoLane) lanes_.sweep_ghosts(ctx, link);
  Own& own = own_of(link);
  if (link.end.state() == LinkState::kUp) [[likely]] {
    // Room that becomes free brings no message to the lanes that wait in the queue: flush() has to look.
    if (n == 0 && link.end.has_queue() && own.setup->link().room() != 0) return 1;
    return n;
  }
  if (link.stage == Stage::kUp) {
    end(ctx, link);
  } else if (ctx.now - link.since >= kPatience && !own.given_up) {
    own.given_up = true;
    own.setup->give_up();
  }
  if (link.end.state() == LinkState::kDrained) return close(ctx, link), n + 1;
  wait_until(ctx.now + kLook);
  return n;
}

/// The link has failed: its connections report it.
void LinkOwner::end(Context& ctx, PeerLink& link) {
  const bool missed = LinkTable::is_missed(link);
  if (link.used) link.failures = 0;
  back_off(link, link.end.reason(), ctx.now);
  link.stage = Stage::kEnding;
  link.since = ctx.now;
  if (missed) table_.shared().count(link).links_failed++;
  if (missed) reports_.note(link);
  own_of(link).setup->link().fail();
  lanes_.run_all(ctx, link);
}

/// The link's counts are final.
void LinkOwner::close(Context& ctx, PeerLink& link) {
  Own& own = own_of(link);
  link.stage = Stage::kClosing;
  if (own.setup != nullptr) device_of(link)->close(std::exchange(own.setup, nullptr));
  lanes_.run_all(ctx, link);
  lanes_.sweep_ghosts(ctx, link);
}

// --- All links

std::size_t LinkOwner::poll(Context& ctx) {
  if (!owner_) return 0;
  if (std::exchange(table_.shared().torn, false)) end_all(ctx);
  next_ = kNever;
  std::size_t n = 0;
  bool under_way = false;
  table_.shared().for_each([&](std::size_t, PeerLink& link) {
    if (link.stage == Stage::kUp || link.stage == Stage::kEnding) n += poll_link(ctx, link);
    under_way = under_way || link.stage == Stage::kWanted || link.stage == Stage::kSettingUp ||
                link.stage == Stage::kClosing || (link.stage == Stage::kRefused && link.memory != nullptr);
  });
  if (under_way) wait_until(ctx.now + kLook);
  if (ctx.now - looked_ >= (under_way ? kLookUnderWay : kLook)) look_after(ctx);
  return n;
}

bool LinkOwner::flush(Context& ctx) {
  if (table_.shared().used == 0) [[likely]]
    return true;
  bool all = true;
  table_.shared().for_each([&](std::size_t i, PeerLink& link) {
    if (link.stage != Stage::kUp) return;
    if (own_[i].setup == nullptr) {
      all = all && !link.end.has_queue();
      return;
    }
    Link& mover = own_[i].setup->link();
    lanes_.write(ctx, link, mover);
    // A thread that sleeps already may not have asked to be woken for this.
    if (link.end.has_queue() && mover.room() == 0) wait_until(ctx.now + kRoomLook);
  });
  return all && (owner_ || !std::exchange(table_.shared().owner_called, false));
}

/// Takes care of what need not be looked at each time.
void LinkOwner::look_after(Context& ctx) {
  looked_ = ctx.now;
  table_.shared().owner_called = false;
  register_arena();
  for_each_device([](LinkDevice& device) { device.attend(); });
  table_.shared().for_each([&](std::size_t i, PeerLink& link) {
    Own& own = own_[i];
    if (link.stage == Stage::kUp) lanes_.share(ctx, link);
    if (link.stage == Stage::kWanted) begin(ctx, link);
    if (link.stage == Stage::kSettingUp) poll_setup(ctx, link);
    if (link.stage == Stage::kRefused && own.setup != nullptr) {  // the peer is told of the refusal
      offer_record(ctx, link);
      const bool told = !own.has_record || link.carrier == nullptr || ctx.now >= link.retry;
      if (told) device_of(link)->close(std::exchange(own.setup, nullptr));
    }
    const bool over = link.stage == Stage::kClosing || link.stage == Stage::kRefused;
    if (!over || own.setup != nullptr || link.memory == nullptr || link.listed != 0) return;
    LinkDevice* const device = device_of(link);
    if (device != nullptr && !device->gone({link.memory, link.bytes})) return;
    table_.release_memory(link);
    link.stage = Stage::kRefused;
  });
}

/// Registers always one chunk more than has been touched, so that a connection's ring lies within. Registers nothing if
/// no device reads the arena.
void LinkOwner::register_arena() {
  bool any = false;
  for_each_device([&any](const LinkDevice& device) { any = any || device.reads_memory(); });
  const std::span<const std::byte> blocks = table_.blocks();
  const std::size_t most = table_.most_block_bytes();
  while (any && table_.shared().registered < std::min(blocks.size() + kChunk, most)) {
    const std::size_t bytes = std::min(kChunk, most - table_.shared().registered);
    bool all = true;
    for_each_device([&](LinkDevice& device) {
      const char* problem = nullptr;
      if (all && device.reads_memory())
        all = device.add_memory({blocks.data() + table_.shared().registered, bytes}, problem);
    });
    if (!all) return;
    table_.shared().registered += bytes;
  }
}

/// What the devices did not report by now does not count.
void LinkOwner::end_all(Context& ctx) {
  table_.shared().for_each([&](std::size_t i, PeerLink& link) {
    Own& own = own_[i];
    if (link.stage == Stage::kUp || link.stage == Stage::kEnding) {
      LaneTable lanes{link};
      link.end.fail(Reason::kLinkError, lanes);
      link.end.on_drained(lanes);
      table_.shared().count(link).links_failed++;
      close(ctx, link);
    } else if (link.stage != Stage::kClosing && link.stage != Stage::kRefused) {
      refuse(link, Reason::kNoDevice, ctx.now);
    }
    LinkDevice* const device = device_of(link);
    if (own.setup != nullptr && device != nullptr) device->close(own.setup);
    own = {};
    link.retry = ctx.now;
  });
}

bool LinkOwner::arm() {
  bool quiet = true;
  table_.shared().for_each([&](std::size_t i, const PeerLink& link) {
    if (own_[i].setup != nullptr && link.stage == Stage::kUp) quiet = !own_[i].setup->link().arm() && quiet;
  });
  return quiet;
}

std::size_t LinkOwner::wait_descriptors(std::span<int> out) const {
  std::size_t n = 0;
  const auto add = [&](int fd) {
    if (fd >= 0 && n < out.size()) out[n++] = fd;
  };
  for_each_device([&](const LinkDevice& device) { add(device.descriptor()); });
  table_.shared().for_each([&](std::size_t i, const PeerLink&) {
    if (own_[i].setup != nullptr) add(own_[i].setup->wait_descriptor());
  });
  return n;
}

}  // namespace bypass::fastpath
