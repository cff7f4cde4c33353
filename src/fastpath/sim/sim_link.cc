#include "fastpath/sim/sim_link.h"

#include <algorithm>
#include <cstring>

#include "fastpath/lane/message.h"
#include "fastpath/lane/ring.h"

namespace bypass::fastpath::sim {
namespace {

Duration upto(bypass::sim::Random& random, Duration most) {
  return Duration{static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(most.count()) + 1))};
}

}  // namespace

Cable::Cable(std::uint64_t seed, const LinkConfig& config) : config_(config), random_(seed) {
  for (std::size_t i = 0; i < 2; i++) ends_[i] = std::make_unique<SimLink>(*this, i);
}

Cable::~Cable() = default;

void Cable::advance(Instant now) {
  now_ = now;
  for (std::size_t to = 0; to < 2; to++) {
    while (!flights_[to].empty() && flights_[to].front().at <= now) {
      const Flight flight = std::move(flights_[to].front());
      flights_[to].pop_front();
      deliver(to, flight, true);  // may end the link, and drop what is under way
    }
  }
}

Instant Cable::next_event() const {
  Instant next = kNever;
  for (std::size_t i = 0; i < 2; i++) {
    if (!flights_[i].empty()) next = std::min(next, flights_[i].front().at);
    for (const Instant at : {ends_[i]->fails_at_, ends_[i]->drained_at_})
      if (at > now_) next = std::min(next, at);
  }
  return next;
}

void Cable::kill() {
  if (dead_) return;
  dead_ = true;
  for (std::size_t to = 0; to < 2; to++) {
    lose(to);
    SimLink& end = *ends_[to];
    end.fails_at_ = std::min(end.fails_at_, now_ + upto(random_, config_.notice));
    if (end.drained_at_ == kNever) end.drained_at_ = end.fails_at_ + upto(random_, config_.drain);
  }
}

/// Of the writes under way to `to`, the first ones arrive, the next only change memory, and the rest is lost.
void Cable::lose(std::size_t to) {
  auto& flights = flights_[to];
  const std::uint64_t arrive = random_.below(flights.size() + 1);
  const std::uint64_t change = random_.below(flights.size() - arrive + 1);
  for (std::uint64_t i = 0; i < arrive + change; i++) deliver(to, flights[i], i < arrive);
  flights.clear();
}

void Cable::take(std::size_t from, const Write& write) {
  posted_++;
  if (dead_) return;
  const std::size_t to = 1 - from;
  Flight flight{.at = now_ + config_.delay + upto(random_, config_.jitter),
                .to = write.to,
                .bytes = {},
                .notify = write.notify,
                .immediate = write.immediate,
                .last_of = write.last_of};
  for (const auto& part : write.from) flight.bytes.insert(flight.bytes.end(), part.begin(), part.end());
  flight.bytes.insert(flight.bytes.end(), write.small.begin(), write.small.begin() + write.small_length);
  if (!flights_[to].empty()) flight.at = std::max(flight.at, flights_[to].back().at);
  flights_[to].push_back(std::move(flight));
  if (writes_left_ != UINT64_MAX && writes_left_-- == 0) kill();
}

// A device checks keys and bounds; a write outside them is an error of the queue pair.
void Cable::deliver(std::size_t to, const Flight& flight, bool with_message) {
  SimLink& end = *ends_[to];
  if (flight.to > end.memory_.size() || flight.bytes.size() > end.memory_.size() - flight.to) {
    end.fail();
    return;
  }
  if (!flight.bytes.empty()) std::memcpy(end.memory_.data() + flight.to, flight.bytes.data(), flight.bytes.size());
  if (flight.notify && with_message)
    end.add_arrival({flight.immediate, static_cast<std::uint32_t>(flight.bytes.size())});
  if (flight.last_of != kNoLane && with_message) ends_[1 - to]->complete(flight.last_of);
}

LinkState SimLink::state() const {
  if (cable_.now_ < fails_at_) return LinkState::kUp;
  return cable_.now_ >= drained_at_ && arrivals_.empty() ? LinkState::kDrained : LinkState::kFailed;
}

std::size_t SimLink::room() const {
  if (state() != LinkState::kUp) return 0;
  const std::size_t under_way = cable_.flights_[1 - index_].size();
  return under_way < cable_.config_.queue ? cable_.config_.queue - under_way : 0;
}

void SimLink::post(std::span<const Write> batch) {
  for (const Write& write : batch) cable_.take(index_, write);
}

std::size_t SimLink::poll(std::span<Arrival> out) {
  const std::size_t n = std::min(out.size(), arrivals_.size());
  std::copy_n(arrivals_.begin(), n, out.begin());
  arrivals_.erase(arrivals_.begin(), arrivals_.begin() + static_cast<std::ptrdiff_t>(n));
  return n;
}

void SimLink::fail() {
  fails_at_ = std::min(fails_at_, cable_.now_);
  cable_.kill();
}

void SimLink::complete(std::uint16_t lane) {
  (holds_ ? held_ : arrivals_).push_back({.done_of = lane});
}

void SimLink::hold_completions(bool on) {
  holds_ = on;
  if (holds_) return;
  arrivals_.insert(arrivals_.end(), held_.begin(), held_.end());
  held_.clear();
}

/// An arrival may overtake messages of other lanes, if that is allowed, but never one of its own lane.
void SimLink::add_arrival(const Arrival& arrival) {
  auto at = arrivals_.end();
  if (cable_.config_.reorder_lanes && !is_of_link(to_message(arrival.immediate).op)) {
    const std::uint16_t lane = to_message(arrival.immediate).lane;
    while (at != arrivals_.begin() && to_message((at - 1)->immediate).lane != lane && cable_.random_.chance(0.5)) --at;
  }
  arrivals_.insert(at, arrival);
}

}  // namespace bypass::fastpath::sim
