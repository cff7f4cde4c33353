// RcJoint: a link between two RcDevices for fastpath's Hosts: another one on the same devices, in the same memory, each
// time. It dies as queue pairs do: one end goes to the error state; the other end learns of it from its own retries,
// from its device, or from the peer's records.
#pragma once

#include <memory>

#include "fastpath/joint.h"
#include "fixture.h"

namespace bypass::verbs {

class RcJoint final : public fastpath::test::Joint {
 public:
  struct Config {
    double loss = 0;
    fastpath::LinkDeviceSpec spec;
    Duration step = 40us;  // of the devices' time, at most, between two turns of the hosts
  };

  /// The world lives longer than its joints, of which there is one at a time.
  explicit RcJoint(RcWorld& world, sim::Random& random, Duration step) : world_(world), random_(random), step_(step) {
    // A lane's credit block is empty when the lane is offered. (Rings may have any contents.)
    for (std::size_t i = 0; i < 2; i++) std::fill(world.memory[i].begin(), world.memory[i].end(), std::byte{0});
    good_ = world.connect();
  }
  ~RcJoint() override {
    world_.verbs.break_after.reset();
    for (std::size_t i = 0; i < 2; i++) {
      if (world_.setups[i] != nullptr) world_.devices[i]->close(world_.setups[i]);
      world_.setups[i] = nullptr;
    }
  }

  fastpath::Link& end(std::size_t i) override { return world_.link(i); }
  void advance(Instant) override {
    for (std::size_t i = 0; i < 2; i++) world_.verbs.end(i).posted.clear();
    world_.verbs.run_for(Duration{static_cast<std::int64_t>(random_.below(static_cast<std::uint64_t>(step_.count())))});
    if (dead() && !told_ && random_.chance(0.01)) {
      told_ = true;
      for (std::size_t i = 0; i < 2; i++) world_.verbs.report(i, IBV_EVENT_PORT_ERR);
    }
    for (const auto& device : world_.devices) device->attend();
  }
  void kill_after(std::uint64_t writes) override {
    killed_ = true;
    world_.verbs.break_after = {writes, random_.below(2)};
  }
  [[nodiscard]] bool dead() const override { return killed_ && !world_.verbs.break_after; }
  /// Why the link was not made; null: it was made.
  [[nodiscard]] const char* problem() const {
    if (good_) return nullptr;
    const LinkSetup* const other = world_.setups[1];
    return to_string(world_.setups[0]->reason() != Reason::kNone || other == nullptr ? world_.setups[0]->reason()
                                                                                     : other->reason());
  }

 private:
  RcWorld& world_;
  sim::Random& random_;
  Duration step_;
  bool good_ = false, killed_ = false, told_ = false;
};

}  // namespace bypass::verbs
