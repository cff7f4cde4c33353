#include "softverbs/engine/device.h"

#include <algorithm>
#include <array>
#include <cerrno>

#include "softverbs/engine/engine.h"

namespace bypass::rdma {
namespace {

constexpr Duration kPortRetry{5'000};  // a full port does not report when it has room again
constexpr unsigned kTurnPackets = 16;  // packets in a queue pair's turn
constexpr unsigned kRunPackets = 256;
constexpr std::size_t kBurst = 32, kBursts = 4;
/// A burst of so many bytes ends a turn: with more, the placed bytes would leave the nearer caches before the program
/// sees them.
constexpr std::size_t kEnoughBytes = std::size_t{64} << 10;
constexpr std::size_t kFew = 4;  // frames of a dialogue; more are a stream, whose sender waits for room

std::size_t bytes_of(std::span<Packet* const> frames) {
  std::size_t bytes = 0;
  for (const Packet* frame : frames) bytes += frame->frame_len;
  return bytes;
}

ibv_gid gid_of(const IpAddress& address) {
  ibv_gid gid;
  std::ranges::copy(address.bytes, gid.raw);
  return gid;
}

// RFC 4291 appendix A: fe80:: and the modified EUI-64 of the MAC.
IpAddress link_local(const MacAddress& mac) {
  const auto& m = mac.bytes;
  return {
      {0xfe, 0x80, 0, 0, 0, 0, 0, 0, static_cast<std::uint8_t>(m[0] ^ 2), m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]}};
}

std::vector<ibv_gid> make_gids(const DeviceConfig& config, const MacAddress& mac) {
  std::vector<ibv_gid> gids = {gid_of(config.link_local.is_any() ? link_local(mac) : config.link_local)};
  for (const bool v4 : {true, false})
    for (const Prefix& prefix : config.addresses)
      if (prefix.address.is_v4() == v4) gids.push_back(gid_of(prefix.address));
  return gids;
}

ibv_mtu largest_mtu(std::uint32_t wire_mtu) {
  unsigned mtu = IBV_MTU_4096;
  while (mtu > IBV_MTU_256 && (128U << mtu) + kMaxOverhead > wire_mtu) mtu--;
  return static_cast<ibv_mtu>(mtu);
}

DeviceConfig completed(DeviceConfig config, const Port& port) {
  if (config.mac.is_zero()) config.mac = port.mac();
  if (config.mtu == 0 || config.mtu > port.caps().mtu) config.mtu = port.caps().mtu;
  config.window = std::clamp(config.window, 2U, 1U << 16);
  return config;
}

// Packets that wait for their turn keep buffers of the wire.
std::uint32_t most_to_hold(const Port& port) {
  const std::uint64_t buffers = port.stats().buffers_total;
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(buffers / 8, 64, 1024));
}

// --- A turn at sending

Step send_next(Engine& e, Qp& qp) {
  switch (qp.type) {
    case IBV_QPT_UD:
      return send_datagram(e, qp);
    case IBV_QPT_RAW_PACKET:
      return send_raw(e, qp);
    default:
      break;
  }
  const Step answer = qp.is_reliable() ? send_response(e, qp) : Step::kIdle;
  if (answer == Step::kBlocked) return answer;
  const Step request = send_request(e, qp);
  return answer == Step::kSent && request == Step::kIdle ? Step::kSent : request;
}

// Sends up to one turn's packets; the rest waits for the next turn. Returns the packets sent.
unsigned take_turn(Engine& e, Qp& qp) {
  if (qp.doomed) {
    qp.doomed = false;
    // a completion that goes to a full completion queue dooms the queue pair once more
    const bool told = qp.state() == IBV_QPS_ERR;
    to_error(e, qp);
    if (!told) e.post_event(qp, IBV_EVENT_QP_FATAL);
    return 0;
  }
  unsigned sent = 0;
  for (; sent < kTurnPackets; sent++) {
    const Step step = send_next(e, qp);
    if (step == Step::kIdle) return sent;
    if (step != Step::kBlocked) continue;
    e.blocked = true;
    break;
  }
  wake(e, qp);
  return sent;
}

void send_due(Engine& e) {
  e.blocked = false;
  if (e.ready.empty() && e.tx.is_empty()) return;
  for (unsigned sent = 0; sent < kRunPackets && !e.blocked;) {
    if (Packet* frame = e.tx.take_looped()) {
      if (!on_frame(e, *frame)) e.tx.free(frame);
      sent++;
      continue;
    }
    Qp* qp = e.ready.pop();
    if (qp == nullptr) break;
    sent += std::max(take_turn(e, *qp), 1U);
    if (e.tx.pending() >= kTurnPackets) e.tx.flush();  // the peer may begin with these
  }
  e.tx.flush();
}

void take_left(Engine& e) {
  while (Qp* qp = e.left.pop()) wake(e, *qp);
}

// Fetches a frame's headers into the cache, for the next look.
void fetch(const Packet& frame) {
  constexpr std::size_t kCacheLine = 64;
  __builtin_prefetch(frame.data);
  __builtin_prefetch(frame.data + kCacheLine);
}

void watch_link(Engine& e) {
  const LinkState link = e.tx.port().link();
  if (link == e.link) return;
  e.link = link;
  e.post_event(e.port_events, link == LinkState::kUp ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR);
}

void fire(Engine& e, Qp& qp) {
  if (qp.deadline == kNever) return;
  if (qp.deadline > e.now) {
    e.timers.schedule(qp, qp.deadline);
  } else {
    on_deadline(e, qp);
  }
}

}  // namespace

void send_left(Engine& e, Qp& qp) {
  if (!qp.left_link.queued) return;
  e.left.remove(qp);
  wake(e, qp);
  send_due(e);
}

Engine::Engine(const DeviceConfig& device_config, Port& port, std::uint16_t queue)
    : config(completed(device_config, port)),
      mac(config.mac),
      active_mtu(largest_mtu(config.mtu)),
      gids(make_gids(config, mac)),
      tx(port, queue),
      memory(config.limits.max_mr, config.secret),
      port_steering(port),
      link(port.link()),
      ip_id(static_cast<std::uint16_t>(tcp::siphash24(config.secret, {}))),
      most_held(most_to_hold(port)) {}

Engine::~Engine() {
  while (!raw_waiting.empty()) tx.free(raw_waiting.pop());
  for (const std::unique_ptr<Qp>& qp : qps) {
    if (qp == nullptr) continue;
    drop_held(*this, qp->resp.held);
    drop_held(*this, qp->req.answers);
  }
}

bool Engine::owns(const IpAddress& address) const {
  return std::ranges::any_of(gids, [&](const ibv_gid& gid) { return std::ranges::equal(address.bytes, gid.raw); });
}

Device::Device(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}
Device::~Device() = default;

std::unique_ptr<Device> Device::create(const DeviceConfig& config, Port& port, std::uint16_t queue) {
  return std::unique_ptr<Device>(new Device(std::make_unique<Engine>(config, port, queue)));
}

// --- The wire

void Device::on_frames(std::span<Packet* const> frames, Instant now) {
  engine_->now = now;
  std::array<Packet*, kBurst> done;
  std::size_t n = 0;
  for (std::size_t i = 0; i < frames.size(); i++) {
    Packet* const frame = frames[i];
    if (i + 1 < frames.size()) fetch(*frames[i + 1]);
    if (on_frame(*engine_, *frame)) continue;
    done[n++] = frame;
    if (n < done.size()) continue;
    engine_->tx.free(done);
    n = 0;
  }
  engine_->tx.free(std::span{done}.first(n));
}

void Device::run(Instant now, Acks acks) {
  Engine& e = *engine_;
  e.now = now;
  if (acks == Acks::kSend) take_left(e);
  hand_on_waiting(e);
  watch_link(e);
  e.timers.expire(now, [&](Qp& qp) { fire(e, qp); });
  ask_neighbours(e);
  send_due(e);
  ask_neighbours(e);  // asks for neighbours that were found missing while sending
  e.tx.flush();
}

std::size_t Device::poll(Instant now, Acks acks) {
  Engine& e = *engine_;
  std::array<Packet*, kBurst> frames;
  e.now = now;
  std::size_t total = hand_on_waiting(e);
  take_left(e);
  for (std::size_t burst = 0; burst < kBursts; burst++) {
    const std::size_t n = holds_wire() ? 0 : e.tx.receive(frames);
    const std::size_t bytes = bytes_of(std::span{frames}.first(n));
    e.leaves = acks == Acks::kLeave && n <= kFew;
    if (n != 0) on_frames(std::span{frames}.first(n), now);
    e.leaves = false;
    run(now, Acks::kLeave);
    total += n;
    if (n < frames.size() || bytes >= kEnoughBytes) break;
  }
  return total;
}

Instant Device::next_timeout() const {
  const Engine& e = *engine_;
  if (output_pending()) return e.now + kPortRetry;
  const Instant waits = holds_wire() ? e.raw_deadline : kNever;
  return std::max(std::min({e.timers.next_deadline(), e.neighbours.next(), waits}), e.now);
}

bool Device::holds_wire() const {
  return !engine_->raw_waiting.empty();
}

bool Device::waits_for_room() const {
  return engine_->blocked || engine_->tx.pending() != 0;
}

bool Device::output_pending() const {
  return engine_->blocked || !engine_->ready.empty() || !engine_->left.empty() || engine_->tx.pending() != 0;
}

Resolution Device::resolve(const ibv_gid& gid, Instant now) {
  Engine& e = *engine_;
  e.now = now;
  ibv_ah_attr attr{};
  attr.is_global = 1;
  attr.grh.dgid = gid;
  const IpAddress address = address_of(gid);
  const auto same_family = [&](const ibv_gid& own) { return address_of(own).is_v4() == address.is_v4(); };
  attr.grh.sgid_index = static_cast<std::uint8_t>(std::ranges::find_if(e.gids, same_family) - e.gids.begin());
  Path path;
  if (make_path(e, attr, 0, path) != 0) return Resolution::kUnreachable;
  const bool asked_in_vain = !path.local && !path.known_mac &&
                             e.neighbours[path.neighbour].state == NeighbourEntry::State::kFailed &&
                             e.neighbours[path.neighbour].due > now;
  const bool known = reachable(e, path);
  release_path(e, path);
  if (known) return Resolution::kKnown;
  return asked_in_vain ? Resolution::kUnreachable : Resolution::kAsked;
}

bool Device::neighbour(const ibv_gid& gid, MacAddress& mac) const {
  const IpAddress address = address_of(gid);
  if (engine_->owns(address)) {
    mac = engine_->mac;
    return true;
  }
  const NeighbourEntry* entry = engine_->neighbours.find(next_hop(*engine_, address));
  if (entry == nullptr || entry->state != NeighbourEntry::State::kKnown) return false;
  mac = entry->mac;
  return true;
}

void Device::set_neighbour(const IpAddress& address, const MacAddress& mac) {
  Engine& e = *engine_;
  NeighbourEntry* entry = e.neighbours.find_or_add(address);
  if (entry == nullptr) return;
  entry->fixed = false;
  learn(e, address, mac, true);
  entry->fixed = true;
}

std::size_t Device::farewell(Instant now) {
  run(now);
  const std::size_t silent = ask_for_farewell(*engine_);
  engine_->tx.flush();
  return silent;
}

void Device::let_go_of_memory() {
  engine_->memory_gone = true;
}

// --- The device and its port

const Limits& Device::limits() const {
  return engine_->config.limits;
}
const Counters& Device::counters() const {
  return engine_->counters;
}
MacAddress Device::mac() const {
  return engine_->mac;
}
LinkState Device::link() const {
  return engine_->tx.port().link();
}
ibv_mtu Device::max_mtu() const {
  return IBV_MTU_4096;
}
ibv_mtu Device::active_mtu() const {
  return engine_->active_mtu;
}
std::uint32_t Device::wire_mtu() const {
  return engine_->config.mtu;
}
std::span<const ibv_gid> Device::gids() const {
  return engine_->gids;
}
std::uint32_t Device::qp_count() const {
  return engine_->qp_count;
}
std::uint32_t Device::max_tso() const {
  const PortCaps& caps = engine_->tx.port().caps();
  return caps.tso && caps.tx_l4_checksum ? caps.tso_max_bytes : 0;
}

// --- Events

bool Device::has_events() const {
  return !engine_->notifications.empty() || !engine_->events.empty();
}

bool Device::take_completion_event(void*& user) {
  Cq* cq = engine_->notifications.pop();
  if (cq != nullptr) user = cq->user;
  return cq != nullptr;
}

bool Device::take_async_event(AsyncEvent& event) {
  EventSource* source = engine_->events.pop();
  if (source == nullptr) return false;
  const int type = std::countr_zero(source->events);
  source->events &= source->events - 1;
  event = {static_cast<ibv_event_type>(type), source->user};
  if (source->events != 0) engine_->events.push(*source);
  return true;
}

}  // namespace bypass::rdma
