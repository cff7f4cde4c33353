#include "backends/verbs/open_device.h"

#include <array>
#include <cerrno>
#include <charconv>

#include "backends/verbs/problem.h"

namespace bypass::verbs {
namespace {

std::string said_by(void (*problem)(char*, std::size_t)) {
  std::array<char, 1024> text{};
  problem(text.data(), text.size());
  return text.data();
}

// The library's own text about a software device's wire says more than the errno.
void say_refused(const Verbs& verbs, int error, std::string& problem) {
  const std::string cause = verbs.problem != nullptr ? said_by(verbs.problem) : "";
  if (!cause.empty()) {
    problem = "the device cannot be opened: " + cause;
    return;
  }
  say(problem, "the device cannot be opened", error);
  if (error == EACCES || error == EPERM) problem += "; this user must be able to write to /dev/infiniband/uverbs*";
}

void say_unknown(const std::string& name, const std::string& known, std::string& problem) {
  problem = "no RDMA device of that name; " + (known.empty() ? "this process sees none" : "there are: " + known);
  if (is_soft(name))
    problem += "; a software device is made by BYPASS_SOFT=WIRE";
  else if (known.empty())
    problem += " (is its driver's module loaded, mlx5_ib say?)";
}

}  // namespace

bool DeviceName::parse(const std::string& target, std::string& problem) {
  const auto colon = target.find(':');
  name = target.substr(0, colon);
  if (colon == std::string::npos) return true;
  const char* const end = target.data() + target.size();
  const auto read = std::from_chars(target.data() + colon + 1, end, port);
  if (read.ec == std::errc{} && read.ptr == end && port != 0) return true;
  problem = "'" + target.substr(colon + 1) + "' is no port of a device; accepted is a number from 1 on";
  return false;
}

ibv_context* open_device(const Verbs& verbs, const std::string& name, std::string& problem) {
  int count = 0;
  ibv_device** const devices = verbs.get_device_list(&count);
  if (devices == nullptr) {
    say(problem, "no RDMA devices at all", errno);
    problem += "; the kernel's ib_uverbs is not loaded, it seems (modprobe ib_uverbs)";
    return nullptr;
  }
  ibv_context* opened = nullptr;
  std::string known;
  bool found = false;
  int error = 0;
  for (int i = 0; i < count && opened == nullptr; i++) {
    const std::string each = verbs.get_device_name(devices[i]);
    known += (known.empty() ? "" : ", ") + each;
    if (each != name) continue;
    found = true;
    opened = verbs.open_device(devices[i]);
    error = errno;
  }
  verbs.free_device_list(devices);
  if (opened != nullptr) return opened;
  if (found)
    say_refused(verbs, error, problem);
  else
    say_unknown(name, known, problem);
  return nullptr;
}

}  // namespace bypass::verbs
