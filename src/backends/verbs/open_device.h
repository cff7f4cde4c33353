// An RDMA device by the name that a setting gives it: for a port of frames and for links alike.
#pragma once

#include <cstdint>
#include <string>

#include "backends/verbs/verbs.h"

namespace bypass::verbs {

/// NAME[:PORT]
struct DeviceName {
  std::string name;
  std::uint8_t port = 1;
  /// False: `problem` says what is accepted.
  bool parse(const std::string& target, std::string& problem);
};

/// Null: `problem` says why, and what to change: of a name that no device has, which devices there are. Of what is
/// opened, the library's own descriptors are the caller's to look after.
ibv_context* open_device(const Verbs& verbs, const std::string& name, std::string& problem);

}  // namespace bypass::verbs
