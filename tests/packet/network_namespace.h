// A network namespace of the test's own. It belongs to a thread and ends with it.
#pragma once

#include <sched.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <string>
#include <thread>

namespace bypass::packet {

/// Runs `test` in a new namespace. Returns why the namespace cannot be made, or what `test` returns: empty if it has
/// run.
inline std::string in_network_namespace(const std::function<std::string()>& test) {
  std::string lacks;
  std::thread([&] {
    lacks = unshare(CLONE_NEWNET) == 0 ? test() : std::string("no network namespace: ") + std::strerror(errno);
  }).join();
  return lacks;
}

}  // namespace bypass::packet
