// A network namespace of a test's own, which is a thread's and ends with it.
#pragma once

#include <sched.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <string>
#include <thread>

namespace bypass::packet {

/// Runs `test` in one. What it returns says why it cannot be made, or what `test` returns: empty, when it has run.
inline std::string in_network_namespace(const std::function<std::string()>& test) {
  std::string lacks;
  std::thread([&] {
    lacks = unshare(CLONE_NEWNET) == 0 ? test() : std::string("no network namespace: ") + std::strerror(errno);
  }).join();
  return lacks;
}

}  // namespace bypass::packet
