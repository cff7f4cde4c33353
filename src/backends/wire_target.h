// What follows "vhost:" and "virtio:": PATH or PATH,peer=USER. Both ends of such a wire share the port's memory. So the
// other end has to be a process of one's own user, of root, or of the user who is named. Code that has to tell the
// parts apart asks here.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>

namespace bypass {

struct WireTarget {
  std::string_view path;
  bool has_peer = false;
  std::string_view peer;  // a user's name or number
};

inline WireTarget wire_target(std::string_view target) {
  constexpr std::string_view kPeer = ",peer=";
  const std::size_t at = target.rfind(kPeer);
  if (at == std::string_view::npos) return {target, false, {}};
  return {target.substr(0, at), true, target.substr(at + kPeer.size())};
}

/// The user of a name in /etc/passwd, or of a number.
std::optional<uid_t> user_number(std::string_view user);

/// Empty: the user behind peer= exists, and nobody but root, this process's user and the one behind peer= can put
/// another socket at the path. Otherwise what is wrong with which folder or user, and what is accepted.
std::string wire_problem(const WireTarget& target);

}  // namespace bypass
