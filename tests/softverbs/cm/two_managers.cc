#include "softverbs/cm/two_managers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

namespace bypass::cm::test {

IpAddress ip(int end, bool v6) {
  if (!v6) return IpAddress::from_v4(0x0a090001U + static_cast<std::uint32_t>(end));
  IpAddress address;
  address.bytes[0] = 0xfd;
  address.bytes[1] = 0x09;
  address.bytes[15] = static_cast<std::uint8_t>(1 + end);
  return address;
}

End::End(World& world, std::size_t number)
    : world_(world), number_(number), random_(static_cast<std::uint32_t>(number + 1) * 7919) {
  manager_.emplace(*this);
  DeviceInfo info;
  info.guid = number + 1;
  const int end = static_cast<int>(number);
  info.gids = {ip(end), ip(end, true)};
  info.addresses = {{ip(end), 24}, {ip(end, true), 64}};
  info.mtu = 3;
  manager_->set_device(0, info);
}

Happened End::expect(Event event) {
  if (events_.empty()) {
    ADD_FAILURE() << "no event " << static_cast<int>(event);
    return {};
  }
  const Happened what = events_.front();
  events_.pop_front();
  EXPECT_EQ(what.event, event);
  return what;
}

IdNumber End::make(std::uint16_t space) {
  IdNumber id = 0;
  EXPECT_EQ(manager_->create(space, space == kSpaceTcp ? 2 : 4, id), 0);
  return id;
}

IdNumber End::make_routed(std::uint16_t port, std::uint16_t space, bool v6) {
  const IdNumber id = make(space);
  const Endpoint peer{ip(number_ == 0 ? 1 : 0, v6), port};
  EXPECT_EQ(manager_->resolve_address(id, nullptr, peer, std::chrono::seconds(1), world_.now), 0);
  manager_->run(world_.now);
  expect(Event::kAddressResolved);
  EXPECT_EQ(manager_->resolve_route(id), 0);
  expect(Event::kRouteResolved);
  return id;
}

IdNumber End::make_listener(std::uint16_t port, std::uint16_t space, bool v6) {
  const IdNumber id = make(space);
  EXPECT_EQ(manager_->bind(id, {v6 ? IpAddress{} : IpAddress::from_v4(0), port}), 0);
  EXPECT_EQ(manager_->listen(id), 0);
  return id;
}

void End::send(std::size_t /*device*/, const IpAddress& from, const IpAddress& to, const Mad& mad) {
  world_.post(number_, from, to, mad);
}

Neighbour End::resolve(std::size_t /*device*/, const IpAddress& /*address*/) {
  return neighbour;
}

std::uint32_t End::random() {
  return random_ = random_ * 1664525 + 1013904223;
}

void End::happened(const Happened& what) {
  events_.push_back(what);
  if (what.event == Event::kConnectRequest) room--;
}

bool End::has_room(IdNumber /*listener*/) {
  return room > 0;
}

void World::post(std::size_t from, const IpAddress& source, const IpAddress& destination, const Mad& mad) {
  const auto head = read_head(mad);
  ASSERT_TRUE(head.has_value());
  sent.push_back(head->message);
  if (passes(head->message)) flying_.push_back({1 - from, source, destination, mad});
}

void World::run_for(Duration time) {
  const Instant end = now + time;
  for (;;) {
    while (!flying_.empty()) {
      const Flying message = flying_.front();
      flying_.pop_front();
      ends_[message.to].manager().on_mad(0, message.source, message.destination, message.mad, now);
    }
    const Instant next = std::min(a().manager().next_timeout(), b().manager().next_timeout());
    if (next > end) break;
    now = std::max(now, next);
    a().manager().run(now);
    b().manager().run(now);
  }
  now = end;
}

void World::connect(IdNumber& at_a, IdNumber& at_b, std::uint16_t port) {
  b().make_listener(port);
  at_a = a().make_routed(port);
  ASSERT_EQ(a().manager().connect(at_a, with_data(17), now), 0);
  run_for({});
  at_b = b().expect(Event::kConnectRequest).id;
  const Parameters answer = with_data(34);
  ASSERT_EQ(b().manager().accept(at_b, &answer, now), 0);
  run_for({});
  a().expect(Event::kConnectResponse);
  ASSERT_EQ(a().manager().accept(at_a, nullptr, now), 0);
  run_for({});
  b().expect(Event::kEstablished);
}

Parameters with_data(std::uint32_t qpn, const char* text) {
  Parameters parameters;
  parameters.qpn = qpn;
  parameters.responder_resources = 3;
  parameters.initiator_depth = 5;
  parameters.retry_count = parameters.rnr_retry_count = 7;
  parameters.data_bytes = std::strlen(text);
  std::memcpy(parameters.data.data(), text, parameters.data_bytes);
  return parameters;
}

bool begins_with(const Parameters& parameters, const char* text) {
  return parameters.data_bytes >= std::strlen(text) &&
         std::memcmp(parameters.data.data(), text, std::strlen(text)) == 0;
}

}  // namespace bypass::cm::test
