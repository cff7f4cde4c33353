#include "fastpath/peer_world.h"

#include <algorithm>

namespace bypass::fastpath::test {
namespace {

std::uint64_t next_random = 1;
std::uint64_t numbered_random() {
  return next_random++ * 0x9e3779b97f4a7c15ULL >> 7;
}

std::byte pattern(std::uint64_t offset) {
  return static_cast<std::byte>((offset * 131) ^ (offset >> 9));
}

}  // namespace

// --- SimSetup, SimDevice

void SimSetup::say(RecordType type, Reason reason) {
  due_.emplace_back(type, LinkHead{id_, reason, yard_.mover});
}

void SimSetup::request(std::uint32_t id) {
  id_ = id;
  cable_ = std::make_shared<sim::Cable>(yard_.seed++, sim::LinkConfig{.memory_bytes = 0, .queue = yard_.queue});
  yard_.cables[id] = yard_.newest = cable_;
  cable_->end(end_).use_memory(memory_);
  say(RecordType::kLinkReq);
}

void SimSetup::answer(std::span<const std::byte> body) {
  LinkHead head;
  reason_ = decode(body, head);
  id_ = head.link;
  if (yard_.refuses) reason_ = Reason::kPolicy;
  if (reason_ != Reason::kNone) state_ = SetupState::kFailed;
  if (yard_.silent) return;
  if (reason_ == Reason::kNone) {
    cable_ = yard_.cables.at(id_);
    cable_->end(end_).use_memory(memory_);
  }
  say(RecordType::kLinkAcc, reason_);
}

void SimSetup::on_record(RecordType type, std::span<const std::byte> body) {
  LinkHead head;
  if (decode(body, head) != Reason::kNone || state_ != SetupState::kUnderWay) return;
  reason_ = head.reason;
  if (head.reason != Reason::kNone)
    state_ = SetupState::kFailed;
  else if (type == RecordType::kLinkAcc)
    granted_ = true;  // poll() follows
  else
    state_ = SetupState::kUp;
}

void SimSetup::on_lane_offered() {
  if (state_ == SetupState::kUnderWay && end_ == 1) state_ = SetupState::kUp;
}

void SimSetup::poll(Instant now) {
  if (std::exchange(granted_, false)) proven_ = now + yard_.proof;
  if (now < proven_) return;
  proven_ = kNever;
  state_ = SetupState::kUp;
  say(RecordType::kLinkReady);
}

bool SimSetup::next_record(Record& record, std::span<std::byte> body) {
  if (due_.empty()) return false;
  record = {.type = due_.front().first};
  record.length = static_cast<std::uint32_t>(encode(due_.front().second, body));
  due_.pop_front();
  return true;
}

LinkSetup* SimDevice::request(std::uint32_t id, std::span<std::byte> memory, const IpAddress&, Instant) {
  std::fill_n(memory.begin(), sizeof(LinkBlock), std::byte{});
  setups_.push_back(std::make_unique<SimSetup>(yard_, end_, memory));
  setups_.back()->request(id);
  return setups_.back().get();
}

LinkSetup* SimDevice::answer(std::span<const std::byte> body, Reason, std::span<std::byte> memory, const IpAddress&,
                             Instant) {
  std::fill_n(memory.begin(), sizeof(LinkBlock), std::byte{});
  setups_.push_back(std::make_unique<SimSetup>(yard_, end_, memory));
  setups_.back()->answer(body);
  return setups_.back().get();
}

// --- PeerWorld

PeerWorld::PeerWorld(std::uint64_t seed, std::uint32_t link_memory, std::array<std::uint32_t, 2> places,
                     std::array<std::uint8_t, 2> capabilities)
    : world_(seed) {
  yard.seed = seed * 1000;
  notes.clear();
  for (std::size_t i = 0; i < 2; i++) {
    HostConfig config;
    config.address = i == 0 ? "10.9.0.1" : "10.9.0.2";
    Host& host = world_.add_host(config);
    PeerLinks::Config links;
    links.link_memory = link_memory;
    links.random = numbered_random;
    links.note = [](const PeerLink& link) { notes.push_back({link.peer, link.mover, link.stage, link.reason}); };
    links.capabilities = capabilities[i];
    links.place = places[i];
    links_[i] = std::make_unique<PeerLinks>(host.tcp(), host.memory(), links);
    devices_[i] = std::make_unique<SimDevice>(yard, i);
    host.ctx().hooks = &links_[i]->hooks();
    begin_ownership(i);
  }
  auto made = host(1).tcp().listen({host(1).address(), 80}, 64, {}, &listener_user_);
  listener_ = made.ok() ? *made : nullptr;
}

void PeerWorld::turn() {
  yard.advance(world_.now());
  for (std::size_t i = 0; i < 2; i++) {
    if (stopped[i]) continue;
    host(i).ctx().now = world_.now();
    links_[i]->owner().poll(host(i).ctx());
    (void)links_[i]->owner().flush(host(i).ctx());
    host(i).ctx().flush();
  }
}

bool PeerWorld::run_until(const std::function<bool()>& done, Duration limit) {
  const Instant end = world_.now() + limit;
  bool finished = done();
  while (!finished && world_.now() < end) {
    Instant next = yard.next_event();
    for (const auto& links : links_) next = std::min(next, links->owner().next_timeout());
    const Duration step = std::max<Duration>(std::min(next, end) - world_.now(), Duration{1});
    finished = world_.run_until(
        [&] {
          turn();
          return done();
        },
        std::min<Duration>(step, 200us));
  }
  return finished;
}

PeerWorld::Connection& PeerWorld::connect() {
  Connection& c = *connections_.emplace_back(std::make_unique<Connection>());
  host(0).ctx().now = world_.now();
  auto made = host(0).tcp().connect(host(0).ctx(), {}, {host(1).address(), 80}, {}, &c.user[0]);
  if (made.ok()) c.tcb[0] = *made;
  host(0).ctx().flush();
  return c;
}

void PeerWorld::accept(Connection& c) {
  run_until([&] {
    auto accepted = host(1).tcp().accept(host(1).ctx(), *listener_, &c.user[1]);
    if (accepted.ok()) c.tcb[1] = *accepted;
    return c.tcb[1] != nullptr;
  });
}

namespace {

/// About every other call, at random.
bool is_turn(std::size_t& calls) {
  return (++calls * 2'654'435'761U >> 16 & 1) != 0;
}

}  // namespace

std::string PeerWorld::short_read(tcp::Tcb& tcb, std::size_t side, std::size_t most) {
  PeerLinks& links = *links_[side];
  const ShortPath path = links.short_calls().path_of(tcb);
  if (!path) return {};
  auto& ctx = host(side).ctx();
  auto there = ShortCalls::readable(path, most);
  if (there.has_value() && there->empty()) {
    const ShortCalls::Glance found = links.short_calls().glance(path);
    if (found == ShortCalls::Glance::kOther) links.short_calls().finish_glance(ctx, path);
    if (found != ShortCalls::Glance::kBytes) return {};
    there = ShortCalls::readable(path, most);
    if (!there.has_value() || there->empty()) return links.short_calls().take_turn(ctx, path), std::string();
  }
  if (!there.has_value()) return {};
  const std::string text(reinterpret_cast<const char*>(there->data()), there->size());
  if (!links.short_calls().consume(path, text.size())) links.short_calls().take_turn(ctx, path);
  short_reads++;
  return text;
}

bool PeerWorld::short_write(tcp::Tcb& tcb, std::size_t side, std::span<const std::byte> bytes) {
  PeerLinks& links = *links_[side];
  const ShortPath path = links.short_calls().path_of(tcb);
  if (!path || bytes.empty() || !links.short_calls().may_write(path, bytes.size())) return false;
  auto& ctx = host(side).ctx();
  const auto room = host(side).tcp().reserve(tcb, bytes.size());
  const bool fits = room.ok() && room->size() >= bytes.size();
  if (fits) {
    const std::size_t first = std::min(room->part[0].size(), bytes.size());
    std::copy_n(bytes.begin(), first, room->part[0].begin());
    std::copy(bytes.begin() + static_cast<std::ptrdiff_t>(first), bytes.end(), room->part[1].begin());
  }
  if (room.ok()) host(side).tcp().commit(ctx, tcb, fits ? bytes.size() : 0, false);
  if (!fits) return false;
  links.short_calls().write(path, bytes.size());
  short_writes++;
  return true;
}

std::string PeerWorld::read(Connection& c, std::size_t side) {
  tcp::Tcb& tcb = *c.tcb[side];
  FramedTcp& framed = links_[side]->framed();
  auto& ctx = host(side).ctx();
  ctx.now = world_.now();
  std::string text;
  if (makes_short_calls && is_turn(reads_) && FramedTcp::has(tcb)) {
    text = short_read(tcb, side, 1 + reads_ * 37 % 5000);
    if (!text.empty() && reads_ % 4 != 0) {
      (void)links_[side]->owner().flush(ctx);  // for what a turn has caused; the rest waits for the next call
      ctx.flush();
      return text;
    }
  }
  for (;;) {
    std::span<const std::byte> spans[4];
    const bool has = FramedTcp::has(tcb);
    const std::size_t n = has ? framed.peek(tcb, spans) : host(side).tcp().peek(tcb, spans);
    std::size_t taken = 0;
    for (std::size_t i = 0; i < n; i++) {
      text.append(reinterpret_cast<const char*>(spans[i].data()), spans[i].size());
      taken += spans[i].size();
    }
    if (taken == 0) break;
    has ? framed.consume(ctx, tcb, taken) : host(side).tcp().consume(ctx, tcb, taken);
  }
  (void)links_[side]->owner().flush(ctx);
  ctx.flush();
  return text;
}

std::size_t PeerWorld::write(Connection& c, std::size_t side, std::span<const std::byte> bytes) {
  tcp::Tcb& tcb = *c.tcb[side];
  FramedTcp& framed = links_[side]->framed();
  auto& ctx = host(side).ctx();
  ctx.now = world_.now();
  const bool has = FramedTcp::has(tcb);
  if (has && makes_short_calls && is_turn(writes_) && short_write(tcb, side, bytes)) return bytes.size();
  auto room = has ? framed.reserve(ctx, tcb, bytes.size()) : host(side).tcp().reserve(tcb, bytes.size());
  std::size_t written = 0;
  if (room.ok()) {
    for (auto& part : room->part) {
      const std::size_t n = std::min(part.size(), bytes.size() - written);
      std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(written), n, part.begin());
      written += n;
    }
    has ? framed.commit(ctx, tcb, written, false) : host(side).tcp().commit(ctx, tcb, written, false);
  }
  (void)links_[side]->owner().flush(ctx);
  ctx.flush();
  return written;
}

void PeerWorld::shutdown(Connection& c, std::size_t side) {
  auto& ctx = host(side).ctx();
  ctx.now = world_.now();
  FramedTcp::has(*c.tcb[side]) ? links_[side]->framed().shutdown_send(ctx, *c.tcb[side])
                               : host(side).tcp().shutdown_send(ctx, *c.tcb[side]);
  ctx.flush();
}

void PeerWorld::close(Connection& c, std::size_t side) {
  auto& ctx = host(side).ctx();
  ctx.now = world_.now();
  tcp::Tcb& tcb = *std::exchange(c.tcb[side], nullptr);
  FramedTcp::has(tcb) ? links_[side]->framed().close(ctx, tcb) : host(side).tcp().close(ctx, tcb);
  ctx.flush();
}

void PeerWorld::abort(Connection& c, std::size_t side) {
  auto& ctx = host(side).ctx();
  ctx.now = world_.now();
  tcp::Tcb& tcb = *std::exchange(c.tcb[side], nullptr);
  FramedTcp::has(tcb) ? links_[side]->framed().abort(ctx, tcb) : host(side).tcp().abort(ctx, tcb);
  ctx.flush();
}

bool PeerWorld::transfer(Connection& c, std::size_t from, std::size_t bytes, const std::function<void()>& meanwhile) {
  std::size_t sent = 0, arrived = 0;
  bool right = true;
  std::array<std::byte, 4000> storage;
  std::span<std::byte> piece;  // bytes of it that were not taken
  run_until([&] {
    if (meanwhile) meanwhile();
    if (piece.empty()) {
      piece = std::span(storage).first(std::min(storage.size(), bytes - sent));
      for (std::size_t i = 0; i < piece.size(); i++) piece[i] = pattern(sent + i);
    }
    if (!piece.empty()) {
      const std::size_t n = write(c, from, piece);
      piece = piece.subspan(n);
      sent += n;
    }
    for (const char byte : read(c, 1 - from)) right = right && static_cast<std::byte>(byte) == pattern(arrived++);
    return !right || arrived == bytes;
  });
  return right && arrived == bytes;
}

const PeerLink* PeerWorld::link(std::size_t i) {
  const PeerTable& table = links_[i]->table();
  for (std::size_t at = 0; at < PeerTable::kLinks; at++)
    if (table.links[at].is_current()) return &table.links[at];
  return nullptr;
}

}  // namespace bypass::fastpath::test
