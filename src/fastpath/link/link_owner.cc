#include "fastpath/link/link_owner.h"

#include <algorithm>
#include <utility>

#include "fastpath/setup/link_record.h"
#include "stack/tcp/core.h"

namespace bypass::fastpath {

using tcp::Tcb;

namespace {

/// The pause before a link that failed, or was refused, is asked for again. It doubles each time that no link was of
/// use.
constexpr Duration kFirstPause = std::chrono::milliseconds(200), kLongestPause = std::chrono::seconds(60);
/// Links of one peer that have memory here: one is of the peer's own making, and the last ones may be ending.
constexpr std::uint32_t kMostLinksOfAPeer = 4;
/// Links that peers have asked for and that carry nothing yet: of one address, and of all. The asker chooses the tag in
/// the request, but not its address, because TCP has answered that address. After the first kAtEase links each gets the
/// least memory.
constexpr std::uint32_t kMostAskedByAddress = 4, kMostAsked = 16, kAtEase = 2;
/// Links of one address that have memory here, whatever their tags: half of the table stays for other addresses.
constexpr std::uint32_t kMostOfAddress = PeerTable::kLinks / 2;

Duration pause_after(unsigned failures) {
  Duration pause = kFirstPause;
  for (; failures > 1 && pause < kLongestPause; failures--) pause *= 2;
  return std::min(pause, kLongestPause);
}

/// True for reasons that will hold for the next attempt, too.
bool is_lasting(Reason why) {
  return why == Reason::kElsewhere || why == Reason::kOtherUser;
}
constexpr std::uint8_t kManyFailures = 10;  // after so many the pause is the longest

}  // namespace

LinkOwner::LinkOwner(const LinksConfig& config, const Parts& parts)
    : config_(config),
      engine_(parts.engine),
      framed_(parts.framed),
      table_(parts.table),
      lanes_(parts.lanes),
      reports_(parts.reports) {}

bool LinkOwner::is_idle(const PeerLink& link) const {
  return link.stage == Stage::kRefused && link.memory == nullptr && own_of(link).setup == nullptr;
}

PeerLink* LinkOwner::take_entry(const IpAddress& peer, std::uint32_t tag, std::uint16_t port) {
  PeerLink* const taken = table_.take_entry(peer, tag, port, [this](const PeerLink& link) { return is_idle(link); });
  if (taken != nullptr) own_of(*taken) = {};
  return taken;
}

// --- Devices

void LinkOwner::add_device(std::uint16_t port, LinkDevice& device) {
  *std::find(devices_[port].begin(), devices_[port].end(), nullptr) = &device;
  changes_++;
  owner_ = true;
  table_.shared().ready[static_cast<std::size_t>(device.mover()) - 1] |= 1U << port;
}

void LinkOwner::begin_ownership(Context& ctx) {
  owner_ = true;
  table_.shared().ready = {};
  table_.shared().registered = 0;
  end_all(ctx);
}

void LinkOwner::drop_devices(Context& ctx) {
  if (!owner_) return;
  table_.shared().for_each([&](std::size_t, PeerLink& link) {
    if (link.stage == Stage::kUp || link.stage == Stage::kEnding) take_messages(ctx, link);
  });
  end_all(ctx);
  table_.shared().ready = {};
  table_.shared().registered = 0;
  forget_devices();
}

void LinkOwner::forget_devices() {
  devices_.fill({});
  own_.fill({});
  reports_.forget();
  owner_ = false;
}

bool LinkOwner::has_devices() const {
  bool any = false;
  for_each_device([&any](const LinkDevice&) { any = true; });
  return any;
}

LinkDevice* LinkOwner::device_of(std::uint16_t port, Mover mover) const {
  if (port >= devices_.size()) return nullptr;
  const auto found = std::find_if(devices_[port].begin(), devices_[port].end(), [mover](const LinkDevice* device) {
    return device != nullptr && device->mover() == mover;
  });
  return found != devices_[port].end() ? *found : nullptr;
}

LinkDevice* LinkOwner::choose(const PeerLink& link, std::uint8_t& choice) const {
  const Devices& devices = devices_[link.port];
  for (; choice < devices.size(); choice++) {
    LinkDevice* const device = devices[choice];
    if (device == nullptr || device->lost()) continue;
    if (device->mover() != Mover::kShm || config_.is_our_place(link.tag)) return device;
  }
  return nullptr;
}

// --- Set-up

void LinkOwner::want(Context& ctx, Tcb& tcb, Framed& framed) {
  PeerLink* link = table_.link_to(tcb, framed);
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
  table_.shared().owner_called = true;
  looked_ = {};  // the next poll begins the set-up
}

void LinkOwner::begin(Context& ctx, PeerLink& link) {
  LinkDevice* const device = choose(link, link.choice);
  if (device == nullptr) return refuse(link, Reason::kNoDevice, ctx.now);
  if (!table_.allocate(link, true)) return refuse(link, Reason::kNoMemory, ctx.now);
  do {
    const std::uint64_t number = config_.random();
    if (number == 0) return not_made(ctx, link, Reason::kNoDevice);
    link.id = static_cast<std::uint32_t>(number);
  } while (link.id == 0 || table_.find(link.id) != &link);
  Own& own = own_of(link);
  own = {};
  link.mover = device->mover();
  link.reads_memory = device->reads_memory();
  own.setup = device->request(link.id, {link.memory, link.bytes}, link.peer, ctx.now);
  if (own.setup == nullptr) return not_made(ctx, link, Reason::kNoDevice);
  link.stage = Stage::kSettingUp;
}

void LinkOwner::on_link_record(Context& ctx, Tcb& tcb, Framed& framed, const Record& record,
                               std::span<const std::byte> body) {
  if (!owner_) return;  // frames come to the owner; the peer asks again when nobody answers
  if (record.type == RecordType::kLinkReq) return on_request(ctx, tcb, framed, body);
  LinkHead head;
  PeerLink* const link = decode(body, head) == Reason::kNone ? table_.find(head.link) : nullptr;
  if (link == nullptr || link->peer != tcb.path.remote || own_of(*link).setup == nullptr) return;
  own_of(*link).setup->on_record(record.type, body);
  looked_ = {};
}

void LinkOwner::on_request(Context& ctx, Tcb& tcb, Framed& framed, std::span<const std::byte> body) {
  LinkHead head;
  const Reason why = decode(body, head);
  if (head.link == 0 || table_.find(head.link) != nullptr) return;
  LinkDevice* const device = why == Reason::kNone ? device_of(tcb.path.port, head.mover) : nullptr;
  if (device == nullptr) return decline_request(tcb, framed, head, why == Reason::kNone ? Reason::kNoDevice : why);
  const LinkTable::Held held = table_.held_by(tcb.path.remote, tag_of_peer(framed));
  if (held.of_peer >= kMostLinksOfAPeer || held.of_address >= kMostOfAddress ||
      held.asked_by_address >= kMostAskedByAddress || held.asked >= kMostAsked)
    return decline_request(tcb, framed, head, Reason::kPolicy);
  PeerLink* const link = take_entry(tcb.path.remote, tag_of_peer(framed), tcb.path.port);
  if (link == nullptr) return;
  if (!table_.allocate(*link, held.asked < kAtEase)) return table_.free_entry(*link);
  Own& own = own_of(*link);
  device->attend();  // what happened to the device earlier must not end a link that is made now
  own.setup = device->answer(body, Reason::kNone, {link->memory, link->bytes}, link->peer, ctx.now);
  if (own.setup == nullptr) {
    table_.release_memory(*link);
    return table_.free_entry(*link);
  }
  link->id = own.setup->id();
  link->mover = device->mover();
  link->reads_memory = device->reads_memory();
  link->asked_by_peer = true;
  link->carrier = &tcb;
  link->stage = Stage::kSettingUp;
  looked_ = {};
}

void LinkOwner::decline_request(Tcb& tcb, Framed& framed, LinkHead head, Reason why) {
  PeerLink* const link = take_entry(tcb.path.remote, tag_of_peer(framed), tcb.path.port);
  if (link == nullptr) return;
  link->stage = Stage::kRefused;
  link->reason = head.reason = why;
  link->mover = head.mover;
  link->asked_by_peer = link->passed_on = true;
  link->carrier = &tcb;
  Own& own = own_of(*link);
  own.record = {.type = RecordType::kLinkAcc, .link = head.link};
  own.record.length = static_cast<std::uint32_t>(encode(head, own.body));
  own.has_record = true;
}

void LinkOwner::offer_to_carry(PeerLink& link, Tcb& tcb) {
  const Own& own = own_of(link);
  if (own.setup == nullptr || (link.stage == Stage::kUp && !own.has_record)) return;
  if (link.carrier != nullptr && FramedTcp::may_speak(*link.carrier)) return;
  if (FramedTcp::may_speak(tcb)) link.carrier = &tcb;
}

void LinkOwner::on_lane_offered(PeerLink& link) {
  if (LinkSetup* const setup = own_of(link).setup; setup != nullptr) setup->on_lane_offered();
  looked_ = {};
}

bool LinkOwner::has_link_record(const Tcb& tcb) const {
  bool has = false;
  table_.shared().for_each(
      [&](std::size_t i, const PeerLink& link) { has = has || (link.carrier == &tcb && own_[i].has_record); });
  return has;
}

Record LinkOwner::next_link_record(const Tcb& tcb, std::span<std::byte> body) {
  Record record;
  table_.shared().for_each([&](std::size_t i, const PeerLink& link) {
    Own& own = own_[i];
    if (link.carrier != &tcb || !own.has_record || record.type != RecordType::kData) return;
    record = own.record;
    std::copy_n(own.body.begin(), record.length, body.begin());
    own.has_record = false;
  });
  return record;
}

void LinkOwner::offer_record(Context& ctx, PeerLink& link) {
  Own& own = own_of(link);
  if (!own.has_record) own.has_record = own.setup->next_record(own.record, own.body);
  if (own.has_record && link.carrier != nullptr) framed_.run(ctx, *link.carrier);
}

void LinkOwner::poll_setup(Context& ctx, PeerLink& link) {
  LinkSetup& setup = *own_of(link).setup;
  setup.poll(ctx.now);
  if (std::exchange(own_of(link).descriptor, setup.wait_descriptor()) != setup.wait_descriptor()) changes_++;
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
  table_.shared().count(link).links_made++;
  reports_.note(link);
  if (link.carrier != nullptr) framed_.run(ctx, *link.carrier);  // it is the first to get a lane
}

void LinkOwner::back_off(PeerLink& link, Reason why, Instant now) {
  link.reason = why;
  link.failures = static_cast<std::uint8_t>(std::min(link.failures + 1, 255));
  if (is_lasting(why)) link.failures = std::max(link.failures, kManyFailures);
  link.retry = now + pause_after(link.failures);
}

void LinkOwner::refuse(PeerLink& link, Reason why, Instant now) {
  link.stage = Stage::kRefused;
  back_off(link, why, now);
  // If the connection that wanted the link has ended meanwhile, nobody misses the link.
  if (link.carrier != nullptr || is_lasting(why)) reports_.note(link);
}

void LinkOwner::not_made(Context& ctx, PeerLink& link, Reason why) {
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

}  // namespace bypass::fastpath
