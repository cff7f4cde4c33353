// What follows "vhost:" and "virtio:": PATH or PATH,peer=USER. Both ends of such a wire share the port's memory. So the
// other end must be a process of the same user, of root, or of the user named by peer=. Code that needs the parts asks
// here.
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

/// The number of a user whose name is in /etc/passwd, or who is given as a number.
std::optional<uid_t> user_number(std::string_view user);

/// Empty: the user in peer= exists, and only root, this process's user and the one in peer= can put another socket at
/// the path. Otherwise: which folder or user is wrong, and what is accepted.
std::string wire_problem(const WireTarget& target);

}  // namespace bypass
