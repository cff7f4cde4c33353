// Handovers: one a port, which the processes of a family inherit from the one that forked first (backends/backend.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backends/backend.h"

namespace bypass::runtime {

class Handovers {
 public:
  /// For the ports that are `wanted`, by their places in the configuration, this process and what it forks from now on;
  /// `id` (not 0) is theirs. Where there are no descriptors for one, there is none for any: said in the log.
  void make(const std::vector<bool>& wanted, std::uint32_t id);
  /// 0: there are none.
  [[nodiscard]] std::uint32_t id() const { return id_; }
  /// Of a port by its place in the configuration.
  [[nodiscard]] Handover of(std::size_t port) const { return id_ == 0 ? Handover{} : each_[port]; }

  /// What lies in them goes, for all who have them.
  void empty() const;
  /// … in that port's.
  void empty(std::size_t port) const;
  /// This process has them no longer.
  void drop();

  /// Around the moment when a forked child closes all that is our own: that it does not close these.
  void hide_in_child() const { own(false); }
  void show_in_child() const { own(true); }

 private:
  void own(bool ours) const;

  std::vector<Handover> each_;
  std::uint32_t id_ = 0;
  bool told_ = false;  // that there were no descriptors
};

}  // namespace bypass::runtime
