#include "fastpath/framed_world.h"

#include <algorithm>

namespace bypass::fastpath::test {
namespace {

constexpr std::uint8_t kRingLog2 = 13;
constexpr std::uint64_t kRings = 1U << 14;

}  // namespace

// --- TestLinks

Lane* TestLinks::Table::find(std::uint16_t number) {
  if (number >= kLanes || !links.places_[number].listed) return nullptr;
  Place& place = links.places_[number];
  return place.ghost != nullptr ? place.ghost.get() : &FramedTcp::of(*place.tcb).lane;
}

ByteSource TestLinks::Table::source(std::uint16_t number) {
  const Place& place = links.places_[number];
  return place.tcb != nullptr ? FramedTcp::source(*place.tcb) : ByteSource{nullptr, 0, 1};
}

std::uint16_t TestLinks::number_of(tcp::Tcb& tcb) {
  for (std::uint16_t i = 0; i < kLanes; i++)
    if (places_[i].tcb == &tcb) return i;
  for (std::uint16_t i = 0; i < kLanes; i++) {
    if (places_[i].tcb != nullptr || places_[i].listed) continue;
    places_[i].tcb = &tcb;
    return i;
  }
  std::abort();
}

LaneAddress TestLinks::address(std::uint16_t number) const {
  LaneAddress at;
  at.lane = number;
  at.ring_log2 = kRingLog2;
  at.ring = kRings + (std::uint64_t{number} << kRingLog2);
  at.credit = sizeof(LinkBlock) + number * sizeof(CreditBlock);
  return at;
}

void TestLinks::connect(std::uint32_t id, const std::shared_ptr<sim::Cable>& cable) {
  for (Place& place : places_) {
    if (place.ghost != nullptr) place = {};
    if (place.tcb != nullptr) FramedTcp::of(*place.tcb).lane.queued = 0;
    place.listed = false;
  }
  id_ = id;
  cables_[id] = cable_ = cable;
  link_end_ = LinkEnd(64);
  for (Place& place : places_)
    if (place.tcb != nullptr) framed_.run(host_.ctx(), *place.tcb);  // may offer a lane
}

std::span<const std::byte> TestLinks::memory(std::uint32_t link) {
  const auto found = cables_.find(link);
  return found == cables_.end() ? std::span<const std::byte>{} : found->second->end(end_).memory();
}

void TestLinks::on_change(Context&, tcp::Tcb& tcb, Framed& framed) {
  const std::uint16_t number = number_of(tcb);
  Place& place = places_[number];
  Lane& lane = framed.lane;
  Table table{*this};
  const std::uint64_t peer_memory = cable_ != nullptr ? cable_->end(1 - end_).memory().size() : 0;
  if (lane.offered()) {
    const bool good = up() && lane.link() == id_;
    place.listed = place.listed || good;
    good ? lane.accept(address(number), peer_memory) : lane.decline(Reason::kLinkError);
  }
  const bool may_offer = config_.offers_lanes && lane.opens() && framed.both_framed() && lane.detached() && up();
  if (may_offer && !lane.aborted() && !framed.shut && place.tried != id_) {
    place.tried = id_;
    place.listed = true;
    lane.offer(id_, address(number), peer_memory);
  }
  if (place.listed && lane.can_cut() && random_.chance(cut_chance)) framed_.cut(tcb), cuts++;
  if (random_.chance(leave_chance)) lane.leave();
  if (lane.link_suspect() && lane.link() == id_ && cable_ != nullptr) {
    link_end_.fail(Reason::kPeerLinkDown, table);
    cable_->end(end_).fail();
  }
  if (place.listed && lane.detached() && place.tried != id_) {
    link_end_.dequeue(number, table);
    place.listed = false;
  }
  if (place.listed) link_end_.enqueue(number, table);
}

bool TestLinks::on_gone(Context&, tcp::Tcb& tcb, Framed& framed) {
  for (std::uint16_t i = 0; i < kLanes; i++) {
    Place& place = places_[i];
    if (place.tcb != &tcb) continue;
    Table table{*this};
    if (place.listed && !(framed.lane.detached() || framed.lane.released())) {
      place.ghost = std::make_unique<Lane>(framed.lane);
      place.tcb = nullptr;
      link_end_.enqueue(i, table);
    } else {
      if (place.listed) link_end_.dequeue(i, table);
      place = {};
    }
  }
  return false;  // this link has copied what was posted
}

void TestLinks::turn(Instant now) {
  if (cable_ == nullptr) return;
  cable_->advance(now);
  host_.ctx().now = now;
  Table table{*this};
  link_end_.poll(cable_->end(end_), table);
  for (std::uint16_t i = 0; i < kLanes; i++) {
    Place& place = places_[i];
    if (place.tcb != nullptr && place.listed) framed_.run(host_.ctx(), *place.tcb);
    if (place.ghost != nullptr && place.ghost->released()) {
      link_end_.dequeue(i, table);
      place = {};
    }
  }
  link_end_.flush(cable_->end(end_), table);
  host_.ctx().flush();
}

bool TestLinks::idle() const {
  if (link_end_.state() != LinkState::kDrained) return false;
  return std::all_of(std::begin(places_), std::end(places_), [](const Place& place) {
    return !place.listed || place.ghost != nullptr || place.tcb == nullptr ||
           FramedTcp::of(*place.tcb).lane.detached() || FramedTcp::of(*place.tcb).lane.aborted();
  });
}

// --- Calls

std::size_t Calls::readable(tcp::Tcb& tcb) {
  return FramedTcp::has(tcb) ? framed_.readable(tcb) : host_.tcp().readable(tcb);
}

std::string Calls::read(tcp::Tcb& tcb, std::size_t most) {
  std::string text;
  while (text.size() < most) {
    std::span<const std::byte> spans[4];
    const bool framed = FramedTcp::has(tcb);
    const std::size_t n = framed ? framed_.peek(tcb, spans) : host_.tcp().peek(tcb, spans);
    std::size_t taken = 0;
    for (std::size_t i = 0; i < n; i++) {
      const std::size_t part = std::min(spans[i].size(), most - text.size());
      text.append(reinterpret_cast<const char*>(spans[i].data()), part);
      taken += part;
    }
    if (taken == 0) break;
    framed ? framed_.consume(host_.ctx(), tcb, taken) : host_.tcp().consume(host_.ctx(), tcb, taken);
  }
  host_.ctx().flush();
  return text;
}

std::size_t Calls::write(tcp::Tcb& tcb, std::span<const std::byte> bytes, bool more, bool urgent) {
  auto& ctx = host_.ctx();
  auto room = FramedTcp::has(tcb) ? framed_.reserve(ctx, tcb, bytes.size()) : host_.tcp().reserve(tcb, bytes.size());
  if (!room.ok()) return 0;
  std::size_t written = 0;
  for (auto& part : room->part) {
    const std::size_t n = std::min(part.size(), bytes.size() - written);
    std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(written), n, part.begin());
    written += n;
  }
  // Other calls may have come in between.
  FramedTcp::has(tcb) ? framed_.commit(ctx, tcb, written, more, urgent) : host_.tcp().commit(ctx, tcb, written, more);
  ctx.flush();
  return written;
}

bool Calls::at_eof(tcp::Tcb& tcb) {
  return FramedTcp::has(tcb) ? framed_.at_eof(tcb) : host_.tcp().at_eof(tcb);
}

void Calls::shutdown_send(tcp::Tcb& tcb) {
  FramedTcp::has(tcb) ? framed_.shutdown_send(host_.ctx(), tcb) : host_.tcp().shutdown_send(host_.ctx(), tcb);
}

void Calls::close(tcp::Tcb& tcb) {
  FramedTcp::has(tcb) ? framed_.close(host_.ctx(), tcb) : host_.tcp().close(host_.ctx(), tcb);
}

void Calls::abort(tcp::Tcb& tcb) {
  FramedTcp::has(tcb) ? framed_.abort(host_.ctx(), tcb) : host_.tcp().abort(host_.ctx(), tcb);
}

// --- FramedWorld

FramedWorld::FramedWorld(const FramedWorldConfig& config)
    : config_(config), world_(config.seed), random_(config.seed * 77 + 5) {
  config_.side[1].host.address = "10.9.0.2";
  for (std::size_t i = 0; i < 2; i++) {
    Host& h = world_.add_host(config_.side[i].host);
    links_[i] = std::make_unique<TestLinks>(h, config_.side[i], i, config.seed * 2 + i, config.tcp_window);
    links_[i]->cut_chance = config.cut_chance;
    links_[i]->leave_chance = config.leave_chance;
    if (config_.side[i].capable) h.ctx().hooks = &links_[i]->framed().hooks();
  }
  world_.wire().set_impairment(config.wire);
}

void FramedWorld::listen() {
  auto made = host(1).tcp().listen({host(1).address(), 80}, 4, config_.side[1].options, &user[1]);
  listener = made.ok() ? *made : nullptr;
}

void FramedWorld::connect() {
  host(0).ctx().now = world_.now();
  auto made = host(0).tcp().connect(host(0).ctx(), {}, {host(1).address(), 80}, config_.side[0].options, &user[0]);
  tcb[0] = made.ok() ? *made : nullptr;
}

bool FramedWorld::accept() {
  auto made = host(1).tcp().accept(host(1).ctx(), *listener, &user[1]);
  if (made.ok()) tcb[1] = *made;
  return made.ok();
}

bool FramedWorld::open() {
  listen();
  connect();
  return run_until([&] { return tcb[1] != nullptr || accept(); });
}

void FramedWorld::turn() {
  const Instant now = world_.now();
  if (config_.cable && (cable_ == nullptr || (cable_->dead() && links_[0]->idle() && links_[1]->idle()))) {
    cable_ = std::make_shared<sim::Cable>(random_.next(), sim::LinkConfig{.memory_bytes = kRings + (8U << kRingLog2)});
    cable_->advance(now);
    link_id_++;
    for (auto& links : links_) links->connect(link_id_, cable_);
  }
  for (auto& links : links_) links->turn(now);
  if (kills_ < config_.kills && cable_ != nullptr && !cable_->dead() && random_.chance(0.02)) {
    kills_++;
    cable_->kill_after(random_.below(20));
  }
  for (std::size_t i = 0; i < 2; i++)
    if (const char* rule = host(i).tcp().violated()) problem_ = std::string("broken rule: ") + rule;
}

bool FramedWorld::run_until(const std::function<bool()>& done, Duration limit) {
  const Instant end = world_.now() + limit;
  bool finished = false;
  while (!finished && world_.now() < end && problem_.empty()) {
    Duration step = end - world_.now();
    if (cable_ != nullptr && cable_->next_event() != kNever)  // the stacks' clock does not count this time
      step = std::min(step, std::max<Duration>(cable_->next_event() - world_.now(), 1us));
    world_.run_until([&] { return turn(), finished = done(), finished || !problem_.empty(); }, step);
  }
  return finished;
}

std::string FramedWorld::leftovers() {
  run_for(10min);
  for (std::size_t i = 0; i < 2; i++) {
    if (host(i).tcp().impl().tcbs.size() != 0)
      return "a connection is left at " + std::to_string(i) + problem_ + describe();
    if (host(i).tcp().next_timeout() != kNever) return "a timer is left at " + std::to_string(i);
    host(i).ctx().queue(0).drain();
    if (host(i).port().buffers_out() != 0) return std::to_string(host(i).port().buffers_out()) + " buffers leaked";
  }
  return problem_;
}

void FramedWorld::write(std::size_t side, const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  for (std::size_t done = 0, waits = 0; done < text.size() && waits < 10'000; waits++) {
    host(side).ctx().now = world_.now();
    const std::size_t n = calls(side).write(*tcb[side], bytes.subspan(done));
    done += n;
    if (n == 0) run_for(1ms);
  }
}

std::string FramedWorld::describe() {
  std::string text = problem_;
  for (std::size_t i = 0; i < 2; i++) {
    const Framed* f = framed(i);
    if (f == nullptr) {
      text += " side " + std::to_string(i) + " plain;";
      continue;
    }
    const auto n = [](auto v) { return std::to_string(static_cast<long>(v)) + " "; };
    text += "\n side " + n(i) + "state " + n(tcb[i]->state) + "error " + n(tcb[i]->error) +
            to_string(f->lane.reason()) + " sends " + n(f->sending) + "reads " + n(f->receiving) + "tx path " +
            n(f->lane.tx_path()) + "rx path " + n(f->lane.rx_path()) + "next " + n(f->lane.next_offset()) + "end " +
            n(f->lane.end()) + "una " + n(f->lane.una()) + "consumed " + n(f->lane.consumed()) + "parts " +
            n(f->lane.parts().tcp) + n(f->lane.parts().ring) + n(f->lane.parts().tcp_behind) + "mapped " +
            n(tcb[i]->overlay->map.end()) + "snd_nxt " + n(tcb[i]->snd_nxt) + "snd_una " + n(tcb[i]->snd_una) +
            "snd_wnd " + n(tcb[i]->snd_wnd) + "closed " + n(f->closed) + "shut " + n(f->shut) + "rx_bytes " +
            n(tcb[i]->rx_bytes);
  }
  return text;
}

std::string FramedWorld::receive(std::size_t side, std::size_t bytes) {
  std::string text;
  run_until([&] { return text += read(side, bytes - text.size()), text.size() == bytes; }, 10s);
  return text;
}

}  // namespace bypass::fastpath::test
