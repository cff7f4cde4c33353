// FlowTable: a map of the kernel's (bpf(2)) with flows. The programs of steering_program.h look them up there.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "backends/packet/descriptor.h"
#include "stack/frame/port.h"

namespace bypass::packet {

/// A flow in the map's form: zero for what a rule does not ask for. Addresses are v4-mapped, so no family is needed.
struct FlowKey {
  std::uint8_t protocol = 0;
  std::uint8_t padding = 0;
  std::uint16_t local_port = 0, remote_port = 0;  // network order
  std::uint16_t more_padding = 0;
  IpAddress local, remote;
  auto operator<=>(const FlowKey&) const = default;  // NOLINT(modernize-use-nullptr): its 0 is no pointer
};
static_assert(sizeof(FlowKey) == 40);

/// The key of a flow. None: the map cannot express the flow. It can express TCP or UDP with a local address and port,
/// and with both or neither of remote address and port. It can also express the all-zero flow, which stands for every
/// frame to the interface's MAC address.
std::optional<FlowKey> key_of(const FlowSpec& flow);

class FlowTable {
 public:
  FlowTable() = default;
  /// A table that exists already, by a descriptor of its map.
  explicit FlowTable(Descriptor map) : map_(std::move(map)) {}
  /// False with errno.
  bool create();
  /// False with errno: the key is there already, or the table is full.
  bool add(const FlowKey& key);
  /// False: the key is not there.
  bool remove(const FlowKey& key);
  /// What the table holds now. Nobody else may change it meanwhile.
  [[nodiscard]] std::vector<FlowKey> keys() const;
  [[nodiscard]] int descriptor() const { return map_.get(); }

 private:
  Descriptor map_;
};

}  // namespace bypass::packet
