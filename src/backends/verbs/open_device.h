// Opens an RDMA device by the name in a setting, for a port of frames and for links alike.
#pragma once

#include <cstdint>
#include <string>

#include "backends/verbs/verbs.h"

namespace bypass::verbs {

/// The parts of NAME[:PORT].
struct DeviceName {
  std::string name;
  std::uint8_t port = 1;
  /// False: `problem` says what is accepted.
  bool parse(const std::string& target, std::string& problem);
};

/// Opens the device. Null: `problem` says why and what to change; for an unknown name it lists the devices. The caller
/// has to look after the library's own descriptors in the context.
ibv_context* open_device(const Verbs& verbs, const std::string& name, std::string& problem);

}  // namespace bypass::verbs
