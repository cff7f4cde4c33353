#include "backends/sim/sim_wire.h"

#include <algorithm>

#include "backends/sim/offload.h"
#include "stack/frame/wire.h"

namespace bypass::sim {

std::uint64_t Random::next() {
  std::uint64_t z = state_ += 0x9e3779b97f4a7c15U;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31);
}

bool Random::chance(double probability) {
  if (probability <= 0) return false;
  return static_cast<double>(next() >> 11) * 0x1p-53 < probability;
}

SimPort& Wire::add_port(const PortConfig& config) {
  lanes_.emplace_back();
  ports_.push_back(std::make_unique<SimPort>(*this, ports_.size(), config));
  return *ports_.back();
}

Instant Wire::next_arrival() const {
  Instant earliest = kNever;
  for (const auto& port : ports_) earliest = std::min(earliest, port->next_arrival());
  return earliest;
}

void Wire::set_impairment(std::size_t from, const Impairment& impairment) {
  lanes_[from].impairment = impairment;
}

void Wire::set_impairment(const Impairment& impairment) {
  for (Lane& lane : lanes_) lane.impairment = impairment;
}

void Wire::inject(std::size_t to, std::span<const std::byte> frame, Duration delay) {
  ports_[to]->arrive({now_ + delay, order_++, Bytes(frame.begin(), frame.end()), 0});
}

bool Wire::receivers_take_large(std::size_t from) const {
  for (const auto& port : ports_)
    if (port->index() != from && !port->caps().lro) return false;
  return true;
}

bool Wire::has_room(std::size_t from) {
  Lane& lane = lanes_[from];
  while (!lane.departures.empty() && lane.departures.front() <= now_) lane.departures.pop_front();
  return lane.impairment.queue_frames != 0 || lane.departures.size() < ports_[from]->config_.tx_ring;
}

void Wire::transmit(std::size_t from, Bytes frame, std::uint16_t tso_mss) {
  if (capture_ != nullptr) capture_->write(now_, frame);
  if (rewrite_) rewrite_(from, frame);
  const Fate fate = filter_ ? filter_(from, frame) : Fate{};
  const Impairment& impairment = lanes_[from].impairment;
  unsigned copies = fate.copies;
  if (copies != 0 && random_.chance(impairment.loss)) copies = 0;
  if (copies != 0 && random_.chance(impairment.duplicate)) copies++;
  for (unsigned i = 0; i < copies; i++) {
    Bytes copy = frame;
    if (random_.chance(impairment.corrupt)) {
      const std::uint64_t bit = random_.below(copy.size() * 8);
      copy[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    }
    carry(from, std::move(copy), tso_mss, fate.delay);
  }
}

Instant Wire::depart(Lane& lane, std::size_t bytes) {
  const Impairment& impairment = lane.impairment;
  if (impairment.bits_per_second == 0) return now_;
  if (impairment.queue_frames != 0 && lane.departures.size() >= impairment.queue_frames) return kNever;
  const Instant start = lane.departures.empty() ? now_ : std::max(now_, lane.departures.back());
  const Instant end =
      start + Duration{static_cast<std::int64_t>(bytes * 8 * 1'000'000'000 / impairment.bits_per_second)};
  lane.departures.push_back(end);
  return end;
}

void Wire::carry(std::size_t from, Bytes frame, std::uint16_t tso_mss, Duration more_delay) {
  Lane& lane = lanes_[from];
  const Impairment& impairment = lane.impairment;
  Instant at = depart(lane, frame.size());
  if (at == kNever) return;
  at += impairment.delay;
  if (impairment.jitter.count() > 0)
    at += Duration{static_cast<std::int64_t>(random_.below(static_cast<std::uint64_t>(impairment.jitter.count())))};
  const bool overtaken = random_.chance(impairment.reorder) || more_delay.count() > 0;
  if (overtaken) {
    at += more_delay.count() > 0 ? more_delay : impairment.reorder_delay;
  } else {
    at = std::max(at, lane.last_arrival);
    lane.last_arrival = at;
  }
  deliver(from, std::move(frame), tso_mss, at);
}

// Acts as a switch that knows every port's address: a unicast frame goes to its port, everything else to all ports.
void Wire::deliver(std::size_t from, Bytes frame, std::uint16_t tso_mss, Instant at) {
  MacAddress to = MacAddress::broadcast();
  if (frame.size() >= sizeof(wire::Ethernet)) to = reinterpret_cast<const wire::Ethernet*>(frame.data())->destination;
  for (const auto& port : ports_) {
    if (port->index() == from || port->mac() != to) continue;
    port->arrive({at, order_++, std::move(frame), tso_mss});
    return;
  }
  for (const auto& port : ports_)
    if (port->index() != from) port->arrive({at, order_++, frame, tso_mss});
}

}  // namespace bypass::sim
