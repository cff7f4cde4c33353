#include "stack/ip/arp.h"

#include <algorithm>
#include <utility>

#include "stack/frame/wire.h"
#include "stack/memory/arena_packet.h"
#include "stack/stack.h"

namespace bypass {
namespace {

constexpr std::uint16_t kHardwareEthernet = 1;
constexpr std::uint8_t kAnnouncements = 2;                       // RFC 5227 §1.1 ANNOUNCE_NUM
constexpr Duration kAnnounceInterval = std::chrono::seconds(2);  // ANNOUNCE_INTERVAL
constexpr Duration kDefendInterval = std::chrono::seconds(10);   // DEFEND_INTERVAL
constexpr Duration kHearInterval = std::chrono::seconds(1);  // between two announcements of one host that are reported
constexpr std::int64_t kStaleLifetimes = 10;  // a stale entry that nobody uses is removed after so many lifetimes
constexpr std::uint32_t kMinFrame = 60;       // IEEE 802.3 without the check sequence

bool parses(const Packet& frame) {
  if (!wire::fits<wire::Arp>(frame, sizeof(wire::Ethernet))) return false;
  const auto& arp = wire::at<wire::Arp>(frame, sizeof(wire::Ethernet));
  return arp.hardware == kHardwareEthernet && arp.protocol == wire::kEtherTypeIpv4 && arp.hardware_len == 6 &&
         arp.protocol_len == 4 && (arp.operation == wire::kArpRequest || arp.operation == wire::kArpReply) &&
         !arp.sender_mac.is_multicast() && !arp.sender_mac.is_zero();
}

}  // namespace

Arp::Arp(const StackConfig& config, const RouteTable& routes, StackCounters& counters)
    : routes_(routes),
      counters_(counters),
      reachable_(config.arp_reachable),
      retry_(config.arp_retry),
      max_attempts_(static_cast<std::uint8_t>(std::clamp(config.arp_attempts, 1U, 100U))),
      max_queue_(std::max(config.arp_queue, 1U)) {}

// --- Received

void Arp::on_packet(Context& ctx, std::uint16_t port, Packet* frame, bool broadcast) {
  if (!parses(*frame)) {
    counters_.drop_arp_malformed++;
    return ctx.release(frame);
  }
  const wire::Arp arp = wire::at<wire::Arp>(*frame, sizeof(wire::Ethernet));
  ctx.release(frame);
  const Interface& interface = routes_.interface(port);
  const std::uint32_t sender_ip = arp.sender_ip, target_ip = arp.target_ip;
  if (arp.sender_mac == interface.mac) {  // our own frame, which a loop in the network has sent back
    counters_.drop_arp_ignored++;
  } else if (interface.owns(sender_ip)) {
    on_conflict(ctx, port, arp.sender_mac, sender_ip);
  } else if (!interface.owns(target_ip)) {
    if (sender_ip == target_ip && interface.on_link(sender_ip) != nullptr) hear(ctx.now, sender_ip);
    doubt(ctx, port, arp.sender_mac, sender_ip);
  } else if (arp.operation == wire::kArpRequest) {
    on_request(ctx, port, arp.sender_mac, sender_ip, target_ip);
  } else {
    // Believes only answers to our own requests that were sent to this host alone.
    const std::uint16_t name = broadcast ? std::uint16_t{0} : table_.find(port, sender_ip);
    if (name != 0 && table_[name].state != NeighbourState::kFailed) return resolved(ctx, name, arp.sender_mac);
    counters_.drop_arp_ignored++;
  }
}

void Arp::hear(Instant now, std::uint32_t address) {
  const auto known = std::ranges::find(heard_, address, &Heard::address);
  Heard& heard = known != heard_.end() ? *known : *std::ranges::min_element(heard_, {}, &Heard::at);
  if (heard.due || (heard.at != Instant::min() && now - heard.at < kHearInterval)) return;
  heard = {address, true, now};
  heard_due_++;
}

std::size_t Arp::take_announced(Announced& addresses) {
  if (heard_due_ == 0) [[likely]]
    return 0;
  std::size_t n = 0;
  for (Heard& heard : heard_)
    if (std::exchange(heard.due, false)) addresses[n++] = IpAddress::from_v4(heard.address);
  heard_due_ = 0;
  return n;
}

// RFC 5227 §2.4 (b): defend once, then not again within the interval, so that two defenders do not storm.
void Arp::on_conflict(Context& ctx, std::uint16_t port, const MacAddress& sender, std::uint32_t sender_ip) {
  counters_.drop_arp_conflict++;
  Announcement& state = announcements_[port];
  state.claimed = sender_ip;
  state.claimant = sender;
  if (state.defended != Instant::min() && ctx.now - state.defended < kDefendInterval) return;
  state.defended = ctx.now;
  announce(ctx, port);
}

void Arp::on_request(Context& ctx, std::uint16_t port, const MacAddress& sender, std::uint32_t sender_ip,
                     std::uint32_t target_ip) {
  // A sender address of 0 is a probe (RFC 5227 §2.1.1): answered, nothing learned.
  if (routes_.interface(port).on_link(sender_ip) != nullptr) {
    std::uint16_t name = table_.find(port, sender_ip);
    if (name == 0) name = table_.add_learned(port, sender_ip);
    if (name != 0) resolved(ctx, name, sender);
  }
  if (send(ctx, port, {wire::kArpReply, target_ip, sender_ip, sender, sender})) counters_.arp_replies++;
}

// A host announces its address to everybody (after a fail-over, for example). A frame that was not addressed to us is
// never believed. If it contradicts the known MAC, the neighbour is asked again.
void Arp::doubt(Context& ctx, std::uint16_t port, const MacAddress& sender, std::uint32_t sender_ip) {
  counters_.drop_arp_ignored++;
  const std::uint16_t name = table_.find(port, sender_ip);
  if (name == 0) return;
  Neighbour& n = table_[name];
  if (n.state != NeighbourState::kReachable || n.mac == sender) return;
  n.state = NeighbourState::kProbe;
  n.attempts = 0;
  (void)send(ctx, port, {wire::kArpRequest, 0, sender_ip, {}, MacAddress::broadcast()});
  table_.set_deadline(name, ctx.now + retry_);
}

void Arp::resolved(Context& ctx, std::uint16_t name, const MacAddress& mac) {
  Neighbour& n = table_[name];
  if (n.has_mac() && n.used && n.mac != mac) {
    n.used = false;
    table_.bump_generation();
  }
  n.mac = mac;
  n.state = NeighbourState::kReachable;
  n.confirmed = ctx.now;
  table_.set_deadline(name, ctx.now + reachable_);
  send_waiting(ctx, name);
}

void Arp::send_waiting(Context& ctx, std::uint16_t name) {
  Neighbour& n = table_[name];
  while (Packet* frame = n.waiting.pop()) {
    table_.total_waiting--;
    wire::at<wire::Ethernet>(*frame, 0).destination = n.mac;
    send_one(ctx, n.port, frame);
  }
}

void Arp::send_one(Context& ctx, std::uint16_t port, Packet* frame) {
  PortQueue& queue = ctx.queue(port);
  if ((frame->flags & kInArena) != 0) {
    Packet* moved = std::exchange(frame, to_device_frame(queue, *frame));
    ctx.release(moved);
  }
  if (frame != nullptr && queue.transmit(frame)) {
    counters_.tx_frames++;
    return;
  }
  counters_.drop_arp_queue++;
  if (frame != nullptr) ctx.release(frame);
}

std::size_t Arp::move_waiting_to_arena(Context& ctx) {
  if (table_.total_waiting == 0) return 0;
  std::size_t stayed = 0;
  for (std::uint16_t name = 1; name <= NeighbourTable::kSize; name++)
    stayed += move_to_arena(ctx, table_[name].waiting);
  return stayed;
}

void Arp::confirm(Instant now, std::uint16_t name) {
  Neighbour& n = table_[name];
  n.confirmed = now;
  if (n.state != NeighbourState::kStale && n.state != NeighbourState::kProbe) return;
  n.state = NeighbourState::kReachable;
  table_.set_deadline(name, now + reachable_);
}

// --- Asking

std::uint16_t Arp::use(Context& ctx, std::uint16_t port, std::uint32_t address) {
  std::uint16_t name = table_.find(port, address);
  if (name == 0) name = table_.add_wanted(port, address);
  if (name == 0) return 0;
  Neighbour& n = table_[name];
  n.wanted = true;
  if (n.state == NeighbourState::kFailed) {
    n.state = NeighbourState::kIncomplete;
  } else if (n.state == NeighbourState::kStale) {
    n.state = NeighbourState::kProbe;
  } else {
    n.used |= n.has_mac();
    return name;
  }
  n.attempts = 0;
  n.used = n.has_mac();
  ask(ctx, name);
  return name;
}

void Arp::ask(Context& ctx, std::uint16_t name) {
  Neighbour& n = table_[name];
  n.attempts++;
  const bool probe = n.state == NeighbourState::kProbe;
  const MacAddress to = probe ? n.mac : MacAddress::broadcast();
  (void)send(ctx, n.port, {wire::kArpRequest, 0, n.address, {}, to});
  table_.set_deadline(name, ctx.now + retry_);
}

void Arp::ask_behind(Context& ctx) {
  for (std::uint16_t port = 0; port < ctx.ports; port++) {
    const Port& on = *ctx.queue(port).port();
    if (!on.caps().keeps_sent || on.link() == LinkState::kDown) continue;
    std::uint16_t latest = 0;
    for (std::uint16_t name = 1; name <= NeighbourTable::kSize; name++) {
      const Neighbour& n = table_[name];
      if (n.port == port && n.has_mac() && (latest == 0 || n.confirmed > table_[latest].confirmed)) latest = name;
    }
    if (latest == 0) continue;
    table_[latest].state = NeighbourState::kProbe;
    table_[latest].attempts = 0;
    ask(ctx, latest);
  }
}

std::size_t Arp::asked() const {
  std::size_t count = 0;
  for (std::uint16_t name = 1; name <= NeighbourTable::kSize; name++)
    count += table_[name].state == NeighbourState::kProbe ? 1 : 0;
  return count;
}

std::size_t Arp::unresolved() const {
  std::size_t count = 0;
  for (std::uint16_t name = 1; name <= NeighbourTable::kSize; name++)
    count += table_[name].state == NeighbourState::kIncomplete && table_[name].waiting.count() != 0 ? 1 : 0;
  return count;
}

void Arp::wait(Context& ctx, std::uint16_t name, Packet* frame) {
  Neighbour& n = table_[name];
  if (ctx.shared) frame = move_to_arena(ctx, frame);
  if (ctx.shared && (frame->flags & kInArena) == 0) {
    counters_.drop_arp_queue++;
    return ctx.release(frame);
  }
  if (n.waiting.count() >= max_queue_) {
    counters_.drop_arp_queue++;
    table_.total_waiting--;
    ctx.release(n.waiting.pop());
  }
  if (table_.total_waiting >= NeighbourTable::kMaxWaiting) {
    counters_.drop_arp_queue++;
    return ctx.release(frame);
  }
  n.waiting.push(frame);
  table_.total_waiting++;
}

PacketList Arp::take_failed() {
  const PacketList failed = failed_;
  failed_ = {};
  return failed;
}

PacketList Arp::take_stranded() {
  const PacketList stranded = stranded_;
  stranded_ = {};
  return stranded;
}

// --- Time

void Arp::on_timers(Context& ctx) {
  if (next_announcement_ <= ctx.now) announce_due(ctx);
  if (table_.next_deadline() > ctx.now) return;
  for (std::uint16_t name = 1; name <= NeighbourTable::kSize; name++)
    if (table_.deadline(name) <= ctx.now) expire(ctx, name);
  table_.refresh_next_deadline();
}

void Arp::on_link_up(Context& ctx, std::uint16_t port) {
  for (std::uint16_t name = 1; name <= NeighbourTable::kSize; name++) {
    Neighbour& n = table_[name];
    if (n.port != port) continue;
    if (n.state == NeighbourState::kReachable) grow_stale(ctx, name);
    if (n.state != NeighbourState::kIncomplete && n.state != NeighbourState::kProbe) continue;
    n.attempts = 0;
    ask(ctx, name);
  }
}

void Arp::grow_stale(const Context& ctx, std::uint16_t name) {
  Neighbour& n = table_[name];
  n.state = NeighbourState::kStale;
  if (n.used) table_.bump_generation();
  n.used = false;
  table_.set_deadline(name, ctx.now + reachable_ * kStaleLifetimes);
}

void Arp::expire(Context& ctx, std::uint16_t name) {
  Neighbour& n = table_[name];
  switch (n.state) {
    case NeighbourState::kIncomplete:
      return n.attempts < max_attempts_ ? ask(ctx, name) : fail(ctx, name);
    case NeighbourState::kReachable:
      if (n.confirmed + reachable_ > ctx.now) return table_.set_deadline(name, n.confirmed + reachable_);
      return grow_stale(ctx, name);
    case NeighbourState::kProbe:
      if (n.attempts < max_attempts_) return ask(ctx, name);
      // The neighbour's MAC may have changed: forget the old one and ask by broadcast.
      if (n.used) table_.bump_generation();
      n.used = false;
      n.state = NeighbourState::kIncomplete;
      n.attempts = 0;
      return ask(ctx, name);
    case NeighbourState::kStale:
    case NeighbourState::kFailed:
      return table_.remove(name);
    case NeighbourState::kFree:
      break;
  }
}

void Arp::fail(Context& ctx, std::uint16_t name) {
  Neighbour& n = table_[name];
  counters_.arp_failed++;
  counters_.drop_arp_queue += n.waiting.count();
  table_.total_waiting -= n.waiting.count();
  failed_.take_all(n.waiting);
  n.state = NeighbourState::kFailed;
  table_.set_deadline(name, ctx.now + reachable_);
}

// --- Telling others

void Arp::interface_changed(std::uint16_t port) {
  for (std::uint16_t name = 1; name <= NeighbourTable::kSize; name++) {
    Neighbour& n = table_[name];
    if (n.state == NeighbourState::kFree || n.port != port) continue;
    table_.total_waiting -= n.waiting.count();
    stranded_.take_all(n.waiting);
    table_.remove(name);
  }
  table_.bump_generation();
  announcements_[port] = {kAnnouncements, Instant{}, Instant::min(), 0, {}};
  next_announcement_ = Instant{};
}

void Arp::announce_due(Context& ctx) {
  next_announcement_ = kNever;
  for (std::uint16_t port = 0; port < announcements_.size(); port++) {
    Announcement& state = announcements_[port];
    if (state.at <= ctx.now) {
      announce(ctx, port);
      state.left--;
      state.at = state.left == 0 ? kNever : ctx.now + kAnnounceInterval;
    }
    next_announcement_ = std::min(next_announcement_, state.at);
  }
}

// RFC 5227 §2.3: a request whose sender and target are the announced address.
void Arp::announce(Context& ctx, std::uint16_t port) {
  for (const InterfaceAddress& own : routes_.interface(port).all())
    (void)send(ctx, port, {wire::kArpRequest, own.address, own.address, {}, MacAddress::broadcast()});
}

bool Arp::send(Context& ctx, std::uint16_t port, const Message& message) {
  if (port >= ctx.ports) return false;
  const Interface& interface = routes_.interface(port);
  std::uint32_t sender_ip = message.sender_ip;
  if (sender_ip == 0) {
    const InterfaceAddress* own = interface.on_link(message.target_ip);
    if (own == nullptr) return false;
    sender_ip = own->address;
  }
  PortQueue& queue = ctx.queue(port);
  Packet* frame = queue.alloc();
  if (frame == nullptr || !queue.can_transmit()) {
    counters_.drop_no_frame++;
    if (frame != nullptr) ctx.release(frame);
    return false;
  }
  frame->len = frame->frame_len = kMinFrame;
  std::fill_n(frame->data, kMinFrame, std::byte{0});
  auto& ethernet = wire::at<wire::Ethernet>(*frame, 0);
  ethernet.destination = message.to;
  ethernet.source = interface.mac;
  ethernet.type = wire::kEtherTypeArp;
  auto& arp = wire::at<wire::Arp>(*frame, sizeof(wire::Ethernet));
  arp.hardware = kHardwareEthernet;
  arp.protocol = wire::kEtherTypeIpv4;
  arp.hardware_len = 6;
  arp.protocol_len = 4;
  arp.operation = message.operation;
  arp.sender_mac = interface.mac;
  arp.sender_ip = sender_ip;
  arp.target_mac = message.target_mac;
  arp.target_ip = message.target_ip;
  (void)queue.transmit(frame);
  counters_.tx_frames++;
  if (message.operation == wire::kArpRequest) counters_.arp_requests++;
  return true;
}

std::uint32_t Arp::waiting_datagrams() const {
  std::uint32_t count = 0;
  for (std::uint16_t name = 1; name <= NeighbourTable::kSize; name++)
    for (const Packet* p = table_[name].waiting.front(); p != nullptr; p = p->queue_next)
      count += wire::at<wire::Ipv4>(*p, p->l2_len).protocol != wire::kProtocolTcp ? 1U : 0U;
  return count;
}

PacketList Arp::take_waiting() {
  PacketList waiting = take_failed();
  PacketList stranded = take_stranded();
  waiting.take_all(stranded);
  for (std::uint16_t name = 1; name <= NeighbourTable::kSize; name++) waiting.take_all(table_[name].waiting);
  table_.total_waiting = 0;
  return waiting;
}

void Arp::clear() {
  table_.clear();
  failed_ = {};
  stranded_ = {};
  heard_ = {};
  heard_due_ = 0;
}

}  // namespace bypass
