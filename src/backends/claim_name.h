// The abstract Unix socket by which a process shows that something of an interface's is its own (packet/flows/claim.h):
// the one that claims it and the one that only looks have to name it alike.
#pragma once

#include <string>
#include <string_view>

namespace bypass {

/// Behind a zero byte. `what`: an address as text, for one that has it.
inline std::string claim_name(std::string_view interface, std::string_view what) {
  return "libbypass/" + std::string(interface) + "/" + std::string(what);
}

}  // namespace bypass
