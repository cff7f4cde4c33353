// FlowMap: the flows that are steered to this process at a shared interface, where the programs of steering_program.h
// look them up.
//
// Each process has its own. Two that would take the same flow would both answer its peers, so what is waited for at an
// address of ours (a rule without a remote end, or the one for every frame) is one process's, by a Claim. A rule of one
// connection rests on whoever chose its local port: a claim would cost a descriptor a connection.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "backends/packet/claim.h"
#include "backends/packet/descriptor.h"
#include "stack/port.h"

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

class FlowMap {
 public:
  /// For the interface of that name. False with errno.
  bool create(const std::string& interface);
  /// False: not to be expressed, steered already, another process's (said in the log), or one too many.
  bool steer(const FlowSpec& flow, bool add);
  [[nodiscard]] int descriptor() const { return map_.get(); }

 private:
  bool add(const FlowKey& key, const FlowSpec& flow);
  bool remove(const FlowKey& key);

  std::string interface_;
  Descriptor map_;
  std::map<FlowKey, Claim> claims_;
};

}  // namespace bypass::packet
