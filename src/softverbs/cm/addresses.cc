// Ids, their addresses and ports.
#include <algorithm>
#include <cerrno>

#include "softverbs/cm/manager.h"

namespace bypass::cm {
namespace {

/// Ports for whom no port was chosen: Linux's default range.
constexpr std::uint16_t kFirstFreePort = 32'768, kFreePorts = 28'232;

/// The pause between two looks whether a neighbour has answered; the first is shorter.
constexpr Duration kFirstLook = std::chrono::milliseconds(1), kLongestLook = std::chrono::milliseconds(50);

/// An id that is bound to a loopback address belongs to every device, as on Linux (cma_any_addr() in
/// drivers/infiniband/core/cma.c). libfabric's servers bind to "localhost".
bool is_everywhere(const IpAddress& address) {
  return address.is_any() || address.is_loopback();
}

bool meets(const IpAddress& a, const IpAddress& b) {
  return is_everywhere(a) || is_everywhere(b) || a == b;
}

}  // namespace

Manager::Manager(Surroundings& surroundings) : surroundings_(surroundings), mask_(surroundings.random()) {}

void Manager::set_device(std::size_t index, const DeviceInfo& info) {
  if (devices_.size() <= index) devices_.resize(index + 1);
  devices_[index] = info;
}

// --- Ids

const Id* Manager::find(IdNumber number) const {
  const auto at = ids_.find(number);
  return at == ids_.end() ? nullptr : at->second.get();
}

Id* Manager::get(IdNumber number) {
  return const_cast<Id*>(find(number));
}

Id& Manager::add(std::uint16_t space, std::uint8_t qp_type) {
  while (ids_.contains(next_)) next_ = (next_ + 1) % kMostIds;
  auto made = std::make_unique<Id>();
  Id& id = *made;
  id.number = next_;
  id.local = mask_ ^ (++generation_ << 16 | next_);
  id.space = space;
  id.qp_type = qp_type;
  id.own_psn = surroundings_.random() & 0xffffff;
  id.transaction = std::uint64_t{surroundings_.random()} << 32 | id.local;
  ids_[next_] = std::move(made);
  next_ = (next_ + 1) % kMostIds;
  return id;
}

void Manager::remove(Id& id) {
  schedule(id, kNever);
  if (id.passive) passive_.erase({id.destination.address, id.remote});
  ids_.erase(id.number);
}

int Manager::create(std::uint16_t space, std::uint8_t qp_type, IdNumber& number) {
  if (space != kSpaceTcp && space != kSpaceUdp && space != kSpaceIb && space != kSpaceIpoib) return EPROTONOSUPPORT;
  if (ids_.size() >= kMostIds) return ENOMEM;
  number = add(space, qp_type).number;
  return 0;
}

int Manager::set_reuse_address(IdNumber number, bool on) {
  Id* const id = get(number);
  if (id == nullptr) return ENOENT;
  if (on && id->state != State::kIdle) return EINVAL;
  id->reuse_address = on;
  return 0;
}

int Manager::set_v6_only(IdNumber number, bool on) {
  Id* const id = get(number);
  if (id == nullptr) return ENOENT;
  if (id->state != State::kIdle && id->state != State::kBound) return EINVAL;
  id->v6_only = on;
  return 0;
}

int Manager::set_ack_timeout(IdNumber number, std::uint8_t timeout) {
  Id* const id = get(number);
  if (id == nullptr) return ENOENT;
  if (timeout > 31 || id->is_datagram()) return EINVAL;
  id->ack_timeout = timeout;
  return 0;
}

int Manager::set_type_of_service(IdNumber number, std::uint8_t value) {
  Id* const id = get(number);
  if (id == nullptr) return ENOENT;
  id->type_of_service = value;
  return 0;
}

// --- Binding

bool Manager::bind_device(Id& id, const IpAddress& address) {
  for (std::size_t i = 0; i < devices_.size(); i++) {
    const auto& gids = devices_[i].gids;
    if (std::find(gids.begin(), gids.end(), address) == gids.end()) continue;
    id.device = i;
    id.has_device = id.bound_address = true;
    return true;
  }
  return false;
}

bool Manager::conflicts(const Id& id, std::uint16_t port) const {
  return std::any_of(ids_.begin(), ids_.end(), [&](const auto& entry) {
    const Id& other = *entry.second;
    // A request's id shares its listener's port.
    if (&other == &id || other.passive || other.space != id.space || other.source.port != port) return false;
    if (!meets(other.source.address, id.source.address)) return false;
    return !(id.reuse_address && other.reuse_address && other.state != State::kListening);
  });
}

int Manager::take_port(Id& id, std::uint16_t port) {
  if (port != 0) {
    if (conflicts(id, port)) return EADDRINUSE;
    id.source.port = port;
    return 0;
  }
  const std::uint32_t first = surroundings_.random() % kFreePorts;
  for (std::uint32_t i = 0; i < kFreePorts; i++) {
    const auto free = static_cast<std::uint16_t>(kFirstFreePort + (first + i) % kFreePorts);
    if (conflicts(id, free)) continue;
    id.source.port = free;
    return 0;
  }
  return EADDRNOTAVAIL;
}

int Manager::bind(IdNumber number, const Endpoint& source) {
  Id* const id = get(number);
  if (id == nullptr) return ENOENT;
  if (id->state != State::kIdle) return EINVAL;
  if (!is_everywhere(source.address) && !bind_device(*id, source.address)) return EADDRNOTAVAIL;
  id->source.address = source.address;
  if (const int error = take_port(*id, source.port); error != 0) {
    id->has_device = id->bound_address = false;
    id->source = {};
    return error;
  }
  id->state = State::kBound;
  return 0;
}

int Manager::listen(IdNumber number) {
  Id* const id = get(number);
  if (id == nullptr) return ENOENT;
  if (id->state == State::kIdle) {
    if (const int error = bind(number, {IpAddress::from_v4(0), 0})) return error;
  }
  if (id->state != State::kBound) return EINVAL;
  // A port that is shared by SO_REUSEADDR may have one listener.
  id->reuse_address = false;
  if (conflicts(*id, id->source.port)) return EADDRINUSE;
  id->state = State::kListening;
  id->service = service_of(id->space, id->source.port);
  return 0;
}

Id* Manager::find_listener(std::size_t device, std::uint64_t service, const IpAddress& to) {
  Id* any = nullptr;
  for (auto& [number, entry] : ids_) {
    Id& id = *entry;
    if (id.state != State::kListening || id.service != service) continue;
    if (id.source.address == to && id.device == device) return &id;
    if (!is_everywhere(id.source.address)) continue;
    const bool v4 = id.source.address.is_v4();
    if (v4 == to.is_v4() || (!v4 && !id.v6_only)) any = &id;
  }
  return any;
}

// --- Resolving

// The device from whose link the destination is reached, and its address there.
int Manager::choose_device(Id& id, const IpAddress& destination) {
  const bool chosen = id.has_device;
  for (const bool by_gateway : {false, true}) {
    for (std::size_t i = 0; i < devices_.size(); i++) {
      if (chosen && i != id.device) continue;
      const DeviceInfo& info = devices_[i];
      const auto serves = [&](const Prefix& prefix) {
        if (prefix.address.is_v4() != destination.is_v4()) return false;
        if (destination.is_multicast()) return true;
        return by_gateway ? !info.gateway.is_any() && destination.is_v4() : prefix.contains(destination);
      };
      const auto at = std::find_if(info.addresses.begin(), info.addresses.end(), serves);
      if (at == info.addresses.end()) continue;
      id.device = i;
      id.has_device = true;
      if (is_everywhere(id.source.address)) id.source.address = at->address;
      return 0;
    }
  }
  if (!destination.is_link_local()) return ENODEV;
  for (std::size_t i = 0; i < devices_.size(); i++) {
    if ((chosen && i != id.device) || devices_[i].gids.empty()) continue;
    id.device = i;
    id.has_device = true;
    if (is_everywhere(id.source.address)) id.source.address = devices_[i].gids.front();
    return 0;
  }
  return ENODEV;
}

int Manager::resolve_address(IdNumber number, const Endpoint* source, const Endpoint& destination, Duration patience,
                             Instant now) {
  Id* const id = get(number);
  if (id == nullptr) return ENOENT;
  if (id->state == State::kIdle) {
    const IpAddress any = destination.address.is_v4() ? IpAddress::from_v4(0) : IpAddress{};
    if (const int error = bind(number, source != nullptr ? *source : Endpoint{any, 0})) return error;
  }
  if (id->state != State::kBound) return EINVAL;
  id->destination = destination;
  id->state = State::kAddressQuery;
  id->deadline = now + patience;
  id->interval = kFirstLook;
  schedule(*id, now);
  return 0;
}

void Manager::look_for_neighbour(Id& id, Instant now) {
  const auto fail = [&](int error) {
    id.state = State::kBound;
    schedule(id, kNever);
    if (!id.bound_address) {
      id.has_device = false;
      id.source.address = id.source.address.is_v4() ? IpAddress::from_v4(0) : IpAddress{};
    }
    report(id, Event::kAddressError, -error);
  };
  if (const int error = choose_device(id, id.destination.address)) return fail(error);
  if (id.destination.address.is_multicast() ||
      surroundings_.resolve(id.device, id.destination.address) == Neighbour::kKnown) {
    id.state = State::kAddressResolved;
    schedule(id, kNever);
    return report(id, Event::kAddressResolved);
  }
  if (now >= id.deadline) return fail(ETIMEDOUT);
  schedule(id, std::min(now + id.interval, id.deadline));
  id.interval = std::min(id.interval * 2, kLongestLook);
}

int Manager::resolve_route(IdNumber number) {
  constexpr std::uint8_t kAckTimeout = 17;  // what Linux makes of its packet life time on RoCE
  Id* const id = get(number);
  if (id == nullptr) return ENOENT;
  if (id->state != State::kAddressResolved) return EINVAL;
  id->state = State::kRouteResolved;
  id->has_route = true;
  id->mtu = devices_[id->device].mtu;
  if (id->ack_timeout == 0) id->ack_timeout = kAckTimeout;
  report(*id, Event::kRouteResolved);
  return 0;
}

}  // namespace bypass::cm
