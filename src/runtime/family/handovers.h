// Handovers: one for each port. The processes of a family inherit them from the one that forked first
// (backends/backend.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "backends/backend.h"

namespace bypass::runtime {

class Handovers {
 public:
  /// Makes the handovers for the ports that are `wanted`, by their places in the configuration. This process and what
  /// it forks from now on have them. `id` (not 0) identifies them. If descriptors are lacking for one, none is made,
  /// which is logged.
  void make(const std::vector<bool>& wanted, std::uint32_t id);
  /// The handovers' id; 0: there are none.
  [[nodiscard]] std::uint32_t id() const { return id_; }
  /// The handover of a port, by its place in the configuration.
  [[nodiscard]] Handover of(std::size_t port) const { return id_ == 0 ? Handover{} : each_[port]; }

  /// What the process's next image needs of them (life/next_image.h): two for each port. Empty: there are none.
  [[nodiscard]] std::vector<int> descriptors() const;
  /// In that image.
  void take_up(std::uint32_t id, std::span<const int> descriptors);

  /// Removes what lies in the handovers, for all processes that have them.
  void empty() const;
  /// … in the handover of that port only.
  void empty(std::size_t port) const;
  /// From here on this process does not have them any more.
  void drop();

  /// Called around the moment when a forked child closes everything that is our own, so that it does not close these.
  void hide_in_child() const { own(false); }
  void show_in_child() const { own(true); }

 private:
  void own(bool ours) const;

  std::vector<Handover> each_;
  std::uint32_t id_ = 0;
  bool told_ = false;  // it was logged that there were no descriptors
};

}  // namespace bypass::runtime
