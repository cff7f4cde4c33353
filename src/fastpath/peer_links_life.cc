// PeerLinks: a link's life, as the owner of the ports leads it.
#include <algorithm>
#include <new>
#include <utility>

#include "fastpath/link_record.h"
#include "fastpath/peer_links.h"
#include "stack/tcp/core.h"

namespace bypass::fastpath {

using tcp::Tcb;

namespace {

/// Between looks at devices and at what is being set up.
constexpr Duration kLookUnderWay = std::chrono::microseconds(100), kLook = std::chrono::milliseconds(10);
/// A failed link's device has this long to say what has become of what was posted.
constexpr Duration kPatience = std::chrono::milliseconds(50);
/// Before a link that failed, or was refused, is asked for again; doubled each time that none
/// was of use.
constexpr Duration kFirstPause = std::chrono::milliseconds(200), kLongestPause = std::chrono::seconds(60);
/// Links of one peer that have memory here: it has one of its own making, and the last ones may be ending.
constexpr std::uint32_t kMostLinksOfAPeer = 4;
/// Links that peers have asked for and that carry nothing yet: of one address, and of all. The tag in the request is
/// the asker's to choose, the address is not: TCP has answered it. Behind the first kAtEase the memory is the least.
constexpr std::uint32_t kMostAskedByAddress = 4, kMostAsked = 16, kAtEase = 2;
/// Links of one address that have memory here, whatever their tags: half of the table stays for others.
constexpr std::uint32_t kMostOfAddress = PeerTable::kLinks / 2;
/// Of the arena, registered at a time: no send ring is larger.
constexpr std::size_t kChunk = kMaxBlock;

Duration pause_after(unsigned failures) {
  Duration pause = kFirstPause;
  for (; failures > 1 && pause < kLongestPause; failures--) pause *= 2;
  return std::min(pause, kLongestPause);
}

/// What is so now will be so in a moment.
bool is_lasting(Reason why) {
  return why == Reason::kElsewhere || why == Reason::kOtherUser;
}
constexpr std::uint8_t kManyFailures = 10;  // after which the pause is the longest

/// Lanes that messages have come for, each once.
struct Touched {
  std::array<std::uint16_t, LinkEnd::kMostArrivals> numbers;
  std::size_t count = 0;
  void operator()(std::uint16_t number) {
    const auto end = numbers.begin() + static_cast<std::ptrdiff_t>(count);
    if (std::find(numbers.begin(), end, number) == end) numbers[count++] = number;
  }
};

}  // namespace

// --- Entries

/// It only says when to try again.
bool PeerLinks::is_idle(const PeerLink& link) const {
  return link.stage == Stage::kRefused && link.memory == nullptr && own_[index_of(link)].setup == nullptr;
}

/// A free one, else the oldest of the idle ones.
PeerLink* PeerLinks::take_entry(const IpAddress& peer, std::uint32_t tag, std::uint16_t port) {
  PeerLink* taken = nullptr;
  for (std::size_t i = 0; i < PeerTable::kLinks; i++) {
    PeerLink& link = table_->links[i];
    if (link.stage != Stage::kFree && !is_idle(link)) continue;
    if (taken == nullptr || link.stage == Stage::kFree || (taken->stage != Stage::kFree && link.retry < taken->retry))
      taken = &link;
    if (taken->stage == Stage::kFree) break;
  }
  if (taken == nullptr) return nullptr;
  const IpAddress address = peer;  // it may be that entry's
  *taken = PeerLink{};
  own_[index_of(*taken)] = {};
  taken->peer = address;
  taken->tag = tag;
  taken->port = port;
  table_->used |= std::uint64_t{1} << index_of(*taken);
  return taken;
}

void PeerLinks::free_entry(PeerLink& link) {
  table_->used &= ~(std::uint64_t{1} << index_of(link));
  link = PeerLink{};
}

// Links have half of the arena's budget, and each a quarter of what the others have left of that.
std::uint32_t PeerLinks::next_link_bytes() const {
  if (config_.link_memory != 0) return config_.link_memory;
  std::size_t left = memory_.stats().budget_bytes / 2;
  table_->for_each([&left](std::size_t, const PeerLink& link) { left -= std::min<std::size_t>(left, link.bytes); });
  const auto share = static_cast<std::uint32_t>(std::min<std::size_t>(left / 4, LinkLayout::kMost));
  return std::max(std::bit_floor(share), LinkLayout::kLeast);
}

// A smaller one where the arena has no such block left.
bool PeerLinks::allocate(PeerLink& link, bool at_ease) {
  const std::uint32_t share = next_link_bytes(), least = std::min(share, LinkLayout::kLeast);
  const std::uint32_t wanted = at_ease ? share : least;
  for (std::uint32_t bytes = wanted; bytes >= least; bytes /= 2)
    if (allocate_bytes(link, bytes)) return true;
  return false;
}

bool PeerLinks::allocate_bytes(PeerLink& link, std::uint32_t bytes) {
  const LinkLayout layout(bytes);
  link.memory = static_cast<std::byte*>(memory_.allocate_bulk(bytes));
  link.places = static_cast<LanePlace*>(memory_.allocate(layout.lanes() * sizeof(LanePlace)));
  link.ghosts = static_cast<Lane*>(memory_.allocate(layout.lanes() * sizeof(Lane)));
  if (link.memory == nullptr || link.places == nullptr || link.ghosts == nullptr) {
    release_memory(link);
    return false;
  }
  link.bytes = bytes;
  link.lanes = layout.lanes();
  for (std::size_t size = 0; size < LinkLayout::kSizes; size++) {
    const std::uint32_t first = layout.first(size), end = first + layout.count(size);
    for (std::uint32_t i = first; i < end; i++)
      new (&link.places[i]) LanePlace{.next = i + 1 == end ? kNoLane : static_cast<std::uint16_t>(i + 1)};
    link.free[size] = first == end ? kNoLane : static_cast<std::uint16_t>(first);
  }
  return true;
}

void PeerLinks::release_memory(PeerLink& link) {
  if (link.memory != nullptr) memory_.release(std::exchange(link.memory, nullptr));
  if (link.places != nullptr) memory_.release(std::exchange(link.places, nullptr));
  if (link.ghosts != nullptr) memory_.release(std::exchange(link.ghosts, nullptr));
  link.bytes = link.lanes = 0;
}

// --- Set-up

void PeerLinks::want(Context& ctx, Tcb& tcb, Framed& framed) {
  PeerLink* link = link_to(tcb, framed);
  if (link != nullptr && (ctx.now < link->retry || link->stage == Stage::kEnding)) return;
  const unsigned failures = link != nullptr ? link->failures : 0;
  if (link == nullptr || !is_idle(*link)) link = take_entry(tcb.path.remote, tag_of_peer(framed), tcb.path.port);
  if (link == nullptr) return;
  link->failures = static_cast<std::uint8_t>(failures);
  link->stage = Stage::kWanted;
  link->reason = Reason::kNone;
  link->choice = 0;
  link->id = 0;
  link->carrier = &tcb;
  table_->owner_called = true;
  looked_ = {};  // the next poll begins
}

LinkDevice* PeerLinks::device_of(std::uint16_t port, Mover mover) const {
  if (port >= devices_.size()) return nullptr;
  const auto found = std::find_if(devices_[port].begin(), devices_[port].end(), [mover](const LinkDevice* device) {
    return device != nullptr && device->mover() == mover;
  });
  return found != devices_[port].end() ? *found : nullptr;
}

bool PeerLinks::has_devices() const {
  bool any = false;
  for_each_device([&any](const LinkDevice&) { any = true; });
  return any;
}

/// The first of the port's devices from `choice` on that may reach the peer; null: there is none.
LinkDevice* PeerLinks::choose(const PeerLink& link, std::uint8_t& choice) const {
  const Devices& devices = devices_[link.port];
  for (; choice < devices.size(); choice++) {
    LinkDevice* const device = devices[choice];
    if (device == nullptr || device->lost()) continue;
    if (device->mover() != Mover::kShm || at_our_place(link.tag)) return device;
  }
  return nullptr;
}

void PeerLinks::begin(Context& ctx, PeerLink& link) {
  LinkDevice* const device = choose(link, link.choice);
  if (device == nullptr) return refuse(link, Reason::kNoDevice, ctx.now);
  if (!allocate(link, true)) return refuse(link, Reason::kNoMemory, ctx.now);
  do {
    const std::uint64_t number = config_.random();
    if (number == 0) return not_made(ctx, link, Reason::kNoDevice);
    link.id = static_cast<std::uint32_t>(number);
  } while (link.id == 0 || find(link.id) != &link);
  Own& own = own_[index_of(link)];
  own = {};
  link.mover = device->mover();
  link.reads_memory = device->reads_memory();
  own.setup = device->request(link.id, {link.memory, link.bytes}, link.peer, ctx.now);
  if (own.setup == nullptr) return not_made(ctx, link, Reason::kNoDevice);
  link.stage = Stage::kSettingUp;
}

void PeerLinks::on_link_record(Context& ctx, Tcb& tcb, Framed& framed, const Record& record,
                               std::span<const std::byte> body) {
  if (!owner_) return;  // frames come to the owner; it asks again when nobody answers
  if (record.type == RecordType::kLinkReq) return on_request(ctx, tcb, framed, body);
  LinkHead head;
  PeerLink* const link = decode(body, head) == Reason::kNone ? find(head.link) : nullptr;
  if (link == nullptr || link->peer != tcb.path.remote || own_[index_of(*link)].setup == nullptr) return;
  own_[index_of(*link)].setup->on_record(record.type, body);
  looked_ = {};
}

PeerLinks::Held PeerLinks::held_by(const IpAddress& peer, std::uint32_t tag) const {
  Held held;
  table_->for_each([&](std::size_t, const PeerLink& link) {
    if (link.memory == nullptr) return;
    const bool same = link.peer == peer, asked = link.asked_by_peer && link.stage == Stage::kSettingUp;
    held.of_peer += same && link.tag == tag ? 1 : 0;
    held.of_address += same ? 1 : 0;
    held.asked += asked ? 1 : 0;
    held.asked_by_address += same && asked ? 1 : 0;
  });
  return held;
}

void PeerLinks::on_request(Context& ctx, Tcb& tcb, Framed& framed, std::span<const std::byte> body) {
  LinkHead head;
  const Reason why = decode(body, head);
  if (head.link == 0 || find(head.link) != nullptr) return;
  LinkDevice* const device = why == Reason::kNone ? device_of(tcb.path.port, head.mover) : nullptr;
  if (device == nullptr) return decline_request(tcb, framed, head, why == Reason::kNone ? Reason::kNoDevice : why);
  const Held held = held_by(tcb.path.remote, tag_of_peer(framed));
  if (held.of_peer >= kMostLinksOfAPeer || held.of_address >= kMostOfAddress ||
      held.asked_by_address >= kMostAskedByAddress || held.asked >= kMostAsked)
    return decline_request(tcb, framed, head, Reason::kPolicy);
  PeerLink* const link = take_entry(tcb.path.remote, tag_of_peer(framed), tcb.path.port);
  if (link == nullptr) return;
  if (!allocate(*link, held.asked < kAtEase)) return free_entry(*link);
  Own& own = own_[index_of(*link)];
  device->attend();  // what has befallen the device before befalls no link that is made now
  own.setup = device->answer(body, Reason::kNone, {link->memory, link->bytes}, link->peer, ctx.now);
  if (own.setup == nullptr) {
    release_memory(*link);
    return free_entry(*link);
  }
  link->id = own.setup->id();
  link->mover = device->mover();
  link->reads_memory = device->reads_memory();
  link->asked_by_peer = true;
  link->carrier = &tcb;
  link->stage = Stage::kSettingUp;
  looked_ = {};
}

/// Said in this turn of the connection: the peer goes on to its next device, and does not wait for nothing.
void PeerLinks::decline_request(Tcb& tcb, Framed& framed, LinkHead head, Reason why) {
  PeerLink* const link = take_entry(tcb.path.remote, tag_of_peer(framed), tcb.path.port);
  if (link == nullptr) return;
  link->stage = Stage::kRefused;
  link->reason = head.reason = why;
  link->mover = head.mover;
  link->asked_by_peer = link->passed_on = true;
  link->carrier = &tcb;
  Own& own = own_[index_of(*link)];
  own.record = {.type = RecordType::kLinkAcc, .link = head.link};
  own.record.length = static_cast<std::uint32_t>(encode(head, own.body));
  own.has_record = true;
}

bool PeerLinks::has_link_record(const Tcb& tcb, const Framed&) {
  bool has = false;
  table_->for_each(
      [&](std::size_t i, const PeerLink& link) { has = has || (link.carrier == &tcb && own_[i].has_record); });
  return has;
}

Record PeerLinks::next_link_record(Tcb& tcb, Framed&, std::span<std::byte> body) {
  Record record;
  table_->for_each([&](std::size_t i, const PeerLink& link) {
    Own& own = own_[i];
    if (link.carrier != &tcb || !own.has_record || record.type != RecordType::kData) return;
    record = own.record;
    std::copy_n(own.body.begin(), record.length, body.begin());
    own.has_record = false;
  });
  return record;
}

void PeerLinks::offer_record(Context& ctx, PeerLink& link) {
  Own& own = own_[index_of(link)];
  if (!own.has_record) own.has_record = own.setup->next_record(own.record, own.body);
  if (own.has_record && link.carrier != nullptr) framed_.run(ctx, *link.carrier);
}

void PeerLinks::poll_setup(Context& ctx, PeerLink& link) {
  LinkSetup& setup = *own_[index_of(link)].setup;
  setup.poll(ctx.now);
  if (std::exchange(own_[index_of(link)].descriptor, setup.wait_descriptor()) != setup.wait_descriptor()) changes_++;
  offer_record(ctx, link);
  if (link.stage != Stage::kSettingUp) return;
  switch (setup.state()) {
    case SetupState::kUnderWay:
      return wait_until(std::min(setup.next_timeout(), ctx.now + kLook));
    case SetupState::kFailed:
      return not_made(ctx, link, setup.reason());
    case SetupState::kUp:
      break;
  }
  link.stage = Stage::kUp;
  link.since = link.shared = ctx.now;
  link.memory_waits = engine_.memory_waits();
  link.peer_memory = setup.peer_memory();
  link.end = LinkEnd(setup.window());
  table_->count(link).links_made++;
  note(link);
  if (link.carrier != nullptr) framed_.run(ctx, *link.carrier);  // the first to have a lane
}

void PeerLinks::back_off(PeerLink& link, Reason why, Instant now) {
  link.reason = why;
  link.failures = static_cast<std::uint8_t>(std::min(link.failures + 1, 255));
  if (is_lasting(why)) link.failures = std::max(link.failures, kManyFailures);
  link.retry = now + pause_after(link.failures);
}

void PeerLinks::refuse(PeerLink& link, Reason why, Instant now) {
  link.stage = Stage::kRefused;
  back_off(link, why, now);
  // Where the connection that it was for has ended meanwhile, nobody misses it.
  if (link.carrier != nullptr || is_lasting(why)) note(link);
}

/// By one device. The next one is asked at once, on an entry of its own: this one's peer may have to be told.
void PeerLinks::not_made(Context& ctx, PeerLink& link, Reason why) {
  const std::uint8_t failures = link.failures;
  refuse(link, why, ctx.now);
  auto next = static_cast<std::uint8_t>(link.choice + 1);
  if (link.asked_by_peer || choose(link, next) == nullptr) return;
  PeerLink* const entry = take_entry(link.peer, link.tag, link.port);
  if (entry == nullptr) return;
  link.passed_on = true;
  entry->stage = Stage::kWanted;
  entry->choice = next;
  entry->failures = failures;
  entry->carrier = link.carrier;
  looked_ = {};
}

// --- Up

void PeerLinks::fail(PeerLink& link, Reason why) {
  if (link.stage != Stage::kUp) return;
  LaneTable lanes{link};
  link.end.fail(why, lanes);
  table_->owner_called = true;
}

std::size_t PeerLinks::fail_all() {
  std::size_t n = 0;
  table_->for_each([&](std::size_t, PeerLink& link) {
    n += link.stage == Stage::kUp ? 1 : 0;
    fail(link, Reason::kLinkError);
  });
  return n;
}

std::size_t PeerLinks::take_messages(Context& ctx, PeerLink& link) {
  Touched touched;
  LaneTable lanes{link};
  const std::size_t n = link.end.poll(own_[index_of(link)].setup->link(), lanes, touched);
  for (std::size_t i = 0; i < touched.count; i++) run_lane(ctx, link, touched.numbers[i]);
  return n;
}

void PeerLinks::take_messages(Context& ctx, PeerLink& link, std::span<const Arrival> arrivals) {
  Touched touched;
  LaneTable lanes{link};
  link.end.take(arrivals, lanes, touched);
  for (std::size_t i = 0; i < touched.count; i++) run_lane(ctx, link, touched.numbers[i]);
}

/// A writer that waits is called by a message, which its peer sends behind all that it had to take first. One that
/// polls goes on as soon as its block says so: the two work side by side, not in turns.
std::size_t PeerLinks::look_for_credit(Context& ctx, PeerLink& link) {
  LaneTable lanes{link};
  Lane* const lane = lanes.find(link.latest);
  if (lane == nullptr || !lane->sees_credit({link.memory, link.bytes})) return 0;
  lane->look({link.memory, link.bytes});
  link.end.enqueue(link.latest, lanes);
  run_lane(ctx, link, link.latest);
  return 1;
}

std::size_t PeerLinks::poll_link(Context& ctx, PeerLink& link) {
  const std::size_t n = take_messages(ctx, link) + look_for_credit(ctx, link);
  if (link.first_ghost != kNoLane) sweep_ghosts(ctx, link);
  Own& own = own_[index_of(link)];
  if (link.end.state() == LinkState::kUp) [[likely]] {
    // Room for the lanes that wait in its queue brings no message: flush() is to look.
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

/// Whether a connection still has something to come over it. A peer that has ended all of them, and then itself, has
/// taken nothing away.
bool PeerLinks::is_missed(PeerLink& link) {
  std::uint32_t left = link.listed;
  for (std::uint32_t i = 0; i < link.lanes && left != 0; i++) {
    if (!link.places[i].listed) continue;
    left--;
    const Tcb* const tcb = connection_of(link, static_cast<std::uint16_t>(i));
    if (tcb != nullptr && !FramedTcp::of(*tcb).lane.peer_ended()) return true;
  }
  return false;
}

/// It has failed: its connections say so.
void PeerLinks::end(Context& ctx, PeerLink& link) {
  const bool missed = is_missed(link);
  if (link.used) link.failures = 0;
  back_off(link, link.end.reason(), ctx.now);
  link.stage = Stage::kEnding;
  link.since = ctx.now;
  if (missed) table_->count(link).links_failed++;
  if (missed) note(link);
  own_[index_of(link)].setup->link().fail();
  run_all(ctx, link);
}

/// Counts are final.
void PeerLinks::close(Context& ctx, PeerLink& link) {
  Own& own = own_[index_of(link)];
  link.stage = Stage::kClosing;
  if (own.setup != nullptr) device_of(link)->close(std::exchange(own.setup, nullptr));
  run_all(ctx, link);
  sweep_ghosts(ctx, link);
}

// --- All of them

std::size_t PeerLinks::poll(Context& ctx) {
  if (!owner_) return 0;
  if (std::exchange(table_->torn, false)) end_all(ctx);
  next_ = kNever;
  std::size_t n = 0;
  bool under_way = false;
  table_->for_each([&](std::size_t, PeerLink& link) {
    if (link.stage == Stage::kUp || link.stage == Stage::kEnding) n += poll_link(ctx, link);
    under_way = under_way || link.stage == Stage::kWanted || link.stage == Stage::kSettingUp ||
                link.stage == Stage::kClosing || (link.stage == Stage::kRefused && link.memory != nullptr);
  });
  if (under_way) wait_until(ctx.now + kLook);
  if (ctx.now - looked_ >= (under_way ? kLookUnderWay : kLook)) look_after(ctx);
  return n;
}

/// What need not be looked at each time.
void PeerLinks::look_after(Context& ctx) {
  looked_ = ctx.now;
  table_->owner_called = false;
  register_arena();
  for_each_device([](LinkDevice& device) { device.attend(); });
  table_->for_each([&](std::size_t i, PeerLink& link) {
    Own& own = own_[i];
    if (link.stage == Stage::kUp) share_lanes(ctx, link);
    if (link.stage == Stage::kWanted) begin(ctx, link);
    if (link.stage == Stage::kSettingUp) poll_setup(ctx, link);
    if (link.stage == Stage::kRefused && own.setup != nullptr) {  // the peer is told
      offer_record(ctx, link);
      const bool told = !own.has_record || link.carrier == nullptr || ctx.now >= link.retry;
      if (told) device_of(link)->close(std::exchange(own.setup, nullptr));
    }
    const bool over = link.stage == Stage::kClosing || link.stage == Stage::kRefused;
    if (!over || own.setup != nullptr || link.memory == nullptr || link.listed != 0) return;
    LinkDevice* const device = device_of(link);
    if (device != nullptr && !device->gone({link.memory, link.bytes})) return;
    release_memory(link);
    link.stage = Stage::kRefused;
  });
}

/// Always a chunk more than has been touched, so that a connection's ring lies within. Nothing, where no device reads
/// it.
void PeerLinks::register_arena() {
  bool any = false;
  for_each_device([&any](const LinkDevice& device) { any = any || device.reads_memory(); });
  const std::span<const std::byte> blocks = memory_.blocks();
  const std::size_t most = memory_.most_block_bytes();
  while (any && table_->registered < std::min(blocks.size() + kChunk, most)) {
    const std::size_t bytes = std::min(kChunk, most - table_->registered);
    bool all = true;
    for_each_device([&](LinkDevice& device) {
      const char* problem = nullptr;
      if (all && device.reads_memory()) all = device.add_memory({blocks.data() + table_->registered, bytes}, problem);
    });
    if (!all) return;
    table_->registered += bytes;
  }
}

bool PeerLinks::arm() {
  bool quiet = true;
  table_->for_each([&](std::size_t i, const PeerLink& link) {
    if (own_[i].setup != nullptr && link.stage == Stage::kUp) quiet = !own_[i].setup->link().arm() && quiet;
  });
  return quiet;
}

std::size_t PeerLinks::wait_descriptors(std::span<int> out) const {
  std::size_t n = 0;
  const auto add = [&](int fd) {
    if (fd >= 0 && n < out.size()) out[n++] = fd;
  };
  for_each_device([&](const LinkDevice& device) { add(device.descriptor()); });
  table_->for_each([&](std::size_t i, const PeerLink&) {
    if (own_[i].setup != nullptr) add(own_[i].setup->wait_descriptor());
  });
  return n;
}

// --- The owner

void PeerLinks::add_device(std::uint16_t port, LinkDevice& device) {
  *std::find(devices_[port].begin(), devices_[port].end(), nullptr) = &device;
  changes_++;
  owner_ = true;
  table_->ready[static_cast<std::size_t>(device.mover()) - 1] |= 1U << port;
}

void PeerLinks::begin_ownership(Context& ctx) {
  owner_ = true;
  table_->ready = {};
  table_->registered = 0;
  end_all(ctx);
}

void PeerLinks::drop_devices(Context& ctx) {
  if (!owner_) return;
  table_->for_each([&](std::size_t, PeerLink& link) {
    if (link.stage == Stage::kUp || link.stage == Stage::kEnding) take_messages(ctx, link);
  });
  end_all(ctx);
  table_->ready = {};
  table_->registered = 0;
  forget_devices();
}

void PeerLinks::forget_devices() {
  devices_.fill({});
  own_.fill({});
  reported_ = {};  // what the parent has said
  owner_ = false;
}

/// Whatever was not counted by now does not count.
void PeerLinks::end_all(Context& ctx) {
  table_->for_each([&](std::size_t i, PeerLink& link) {
    Own& own = own_[i];
    if (link.stage == Stage::kUp || link.stage == Stage::kEnding) {
      LaneTable lanes{link};
      link.end.fail(Reason::kLinkError, lanes);
      link.end.on_drained(lanes);
      table_->count(link).links_failed++;
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

void PeerLinks::rebuild() {
  (void)memory_.mark_in_use(table_);
  table_->for_each([&](std::size_t, PeerLink& link) {
    if (link.memory == nullptr) return;
    const bool whole =
        memory_.mark_in_use(link.memory) && memory_.mark_in_use(link.places) && memory_.mark_in_use(link.ghosts);
    if (whole) return;
    link.memory = nullptr, link.places = nullptr, link.ghosts = nullptr;
    link.lanes = link.bytes = 0;
  });
  // The queue may be torn, and places may name what has gone: connections say where they are.
  table_->torn = true;
  table_->for_each([&](std::size_t, PeerLink& link) {
    link.listed = 0;
    link.first_ghost = kNoLane;
    link.carrier = nullptr;
    for (std::uint32_t i = 0; i < link.lanes; i++) link.places[i] = {};
    link.end = LinkEnd{};
  });
  engine_.impl().tcbs.for_each([&](Tcb& tcb) {
    if (!FramedTcp::has(tcb)) return;
    Framed& framed = FramedTcp::of(tcb);
    framed.lane.queued = 0;
    // A death between the two: what lies in the send ring is written.
    if (tcb.ring.end() > framed.lane.end()) framed.lane.write(tcb.ring.end() - framed.lane.end());
    PeerLink* const link = find(framed.link);
    if (link == nullptr || framed.place >= link->lanes) {
      framed.link = 0;
      return;
    }
    link->places[framed.place] = {.tcb = &tcb, .listed = true};
    link->listed++;
  });
}

}  // namespace bypass::fastpath
