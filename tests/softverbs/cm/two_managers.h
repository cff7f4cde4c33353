// Two connection managers on a wire of their own, in virtual time. Each has one device: 10.9.0.1 and fd09::1, 10.9.0.2
// and fd09::2.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "softverbs/cm/manager.h"

namespace bypass::cm::test {

IpAddress ip(int end, bool v6 = false);

class World;

class End final : public Surroundings {
 public:
  End(World& world, std::size_t number);

  /// The next event, which must be this one.
  Happened expect(Event event);
  [[nodiscard]] bool is_quiet() const { return events_.empty(); }
  Manager& manager() { return *manager_; }
  /// A new id, or one with a route to the other end's port.
  IdNumber make(std::uint16_t space = kSpaceTcp);
  IdNumber make_routed(std::uint16_t port, std::uint16_t space = kSpaceTcp, bool v6 = false);
  IdNumber make_listener(std::uint16_t port, std::uint16_t space = kSpaceTcp, bool v6 = false);

  std::uint32_t room = 16;  // further requests that are taken
  Neighbour neighbour = Neighbour::kKnown;

 private:
  void send(std::size_t device, const IpAddress& from, const IpAddress& to, const Mad& mad) override;
  Neighbour resolve(std::size_t device, const IpAddress& address) override;
  std::uint32_t random() override;
  void happened(const Happened& what) override;
  bool has_room(IdNumber listener) override;

  World& world_;
  const std::size_t number_;
  std::uint32_t random_;
  std::deque<Happened> events_;
  std::optional<Manager> manager_;
};

class World {
 public:
  World() : ends_{End(*this, 0), End(*this, 1)} {}
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  End& a() { return ends_[0]; }
  End& b() { return ends_[1]; }

  /// Delivers what is under way, and lets this time pass.
  void run_for(Duration time);
  /// Connects an id of a's to a listener of b's: both ends established. The queue pairs are 17 and 34.
  void connect(IdNumber& at_a, IdNumber& at_b, std::uint16_t port = 7);
  void post(std::size_t from, const IpAddress& source, const IpAddress& destination, const Mad& mad);

  Instant now{std::chrono::seconds(1)};
  /// False: the message is lost.
  std::function<bool(Message)> passes = [](Message) { return true; };
  std::vector<Message> sent;  // in order, lost ones as well

 private:
  struct Flying {
    std::size_t to;
    IpAddress source, destination;
    Mad mad;
  };
  std::deque<Flying> flying_;
  End ends_[2];
};

Parameters with_data(std::uint32_t qpn, const char* text = "");
bool begins_with(const Parameters& parameters, const char* text);

}  // namespace bypass::cm::test
