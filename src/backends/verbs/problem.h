// The text for a call to libibverbs that has failed.
#pragma once

#include <cstring>
#include <string>

namespace bypass::verbs {

/// The text for an errno, or for a number that a driver has made up.
inline std::string reason(int error) {
  const char* const known = strerrordesc_np(error);
  return known != nullptr ? known : "error " + std::to_string(error);
}

/// Fills `problem`. Returns false, for the caller to return.
inline bool say(std::string& problem, const std::string& what, int error) {
  problem = what + ": " + reason(error);
  return false;
}

}  // namespace bypass::verbs
