// Joint: the two ends of a link and what is between them, as Hosts needs it. The link is the simulated one or another
// mover's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "fastpath/link/link.h"
#include "fastpath/sim/sim_link.h"

namespace bypass::fastpath::test {

class Joint {
 public:
  Joint() = default;
  Joint(const Joint&) = delete;
  Joint& operator=(const Joint&) = delete;
  virtual ~Joint() = default;

  [[nodiscard]] virtual Link& end(std::size_t i) = 0;
  /// Makes everything happen that is due. `now` is the hosts' time, which only grows.
  virtual void advance(Instant now) = 0;
  /// The link dies when `writes` more have been posted, at either end, in the middle of a batch.
  virtual void kill_after(std::uint64_t writes) = 0;
  [[nodiscard]] virtual bool dead() const = 0;
};

class SimJoint final : public Joint {
 public:
  SimJoint(std::uint64_t seed, const sim::LinkConfig& config) : cable(seed, config) {}
  Link& end(std::size_t i) override { return cable.end(i); }
  void advance(Instant now) override { cable.advance(now); }
  void kill_after(std::uint64_t writes) override { cable.kill_after(writes); }
  [[nodiscard]] bool dead() const override { return cable.dead(); }

  sim::Cable cable;
};

}  // namespace bypass::fastpath::test
