// The name of the abstract Unix socket by which a process shows that something at an interface is its own
// (packet/flows/claim.h). The process that claims it and a process that only looks must use the same name.
#pragma once

#include <string>
#include <string_view>

namespace bypass {

/// The name without the zero byte in front. `what`: an address as text, for a process that has that address.
inline std::string claim_name(std::string_view interface, std::string_view what) {
  return "libbypass/" + std::string(interface) + "/" + std::string(what);
}

}  // namespace bypass
