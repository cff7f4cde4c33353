// FlowTable: flows as the programs of steering_program.h look them up, in a map of the kernel's (bpf(2)).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "backends/packet/descriptor.h"
#include "stack/frame/port.h"

namespace bypass::packet {

/// As it lies in the map: what a rule does not ask for is zero. Addresses are v4-mapped, so that no family is needed.
struct FlowKey {
  std::uint8_t protocol = 0;
  std::uint8_t padding = 0;
  std::uint16_t local_port = 0, remote_port = 0;  // network order
  std::uint16_t more_padding = 0;
  IpAddress local, remote;
  auto operator<=>(const FlowKey&) const = default;  // NOLINT(modernize-use-nullptr): its 0 is no pointer
};
static_assert(sizeof(FlowKey) == 40);

/// None: the map cannot express this flow. What it can: TCP or UDP with a local address and port, and a remote address
/// and port or neither; and the flow that is zero all over, for every frame to the interface's MAC address.
std::optional<FlowKey> key_of(const FlowSpec& flow);

class FlowTable {
 public:
  FlowTable() = default;
  /// One that there is, by a descriptor of its map.
  explicit FlowTable(Descriptor map) : map_(std::move(map)) {}
  /// False with errno.
  bool create();
  /// False with errno: there already, or one too many.
  bool add(const FlowKey& key);
  /// False: not there.
  bool remove(const FlowKey& key);
  /// What lies in it now, while nobody else changes it.
  [[nodiscard]] std::vector<FlowKey> keys() const;
  [[nodiscard]] int descriptor() const { return map_.get(); }

 private:
  Descriptor map_;
};

}  // namespace bypass::packet
