#include "backends/packet/flows/shared_interface.h"

#include <cerrno>
#include <cstring>

#include "backends/packet/flows/bpf.h"

namespace bypass::packet {

std::string sharing_problem(int error) {
  std::string why = std::strerror(error);
  if (error != EPERM && error != EACCES) return why;
  why += ": to share an interface with the kernel takes CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF";
  const std::string missing = missing_capabilities();
  return missing.empty() ? why : why + ", and this process lacks " + missing;
}

std::string ingress_problem(int error, const std::string& interface) {
  if (error != EINVAL) return sharing_problem(error);
  return "the kernel has no TCX (Linux 6.6 and later have it), which keeps steered flows from its own stack; use "
         "af_xdp:" +
         interface;
}

std::unique_ptr<SharedInterface> SharedInterface::create(const PortSpec& spec, const MacAddress& mac,
                                                         std::string& problem) {
  if (!spec.mac.is_zero() && spec.mac != mac) {
    problem = "an interface that is shared with the kernel keeps its MAC address; leave BYPASS_MAC out";
    return nullptr;
  }
  auto shared = std::make_unique<SharedInterface>();
  shared->name_ = spec.target;
  shared->mac_ = mac;
  if (shared->flows_.create(spec.target)) return shared;
  problem = sharing_problem(errno);
  return nullptr;
}

Descriptor SharedInterface::ring_program(std::uint32_t shortest, std::uint32_t longest) const {
  return load_program(kSocketFilter, ring_filter(point(), shortest, longest));
}

bool SharedInterface::keep_from_kernel(int interface, std::string& problem) {
  const Descriptor program = load_program(kIngress, ingress_filter(point()));
  if (program.is_open()) ingress_ = link_program(kIngress, program.get(), interface, 0);
  if (ingress_.is_open()) return true;
  problem = program.is_open() ? ingress_problem(errno, name_) : sharing_problem(errno);
  return false;
}

}  // namespace bypass::packet
