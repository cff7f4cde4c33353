// The plugin's entry: a Backend for frames that go through the kernel's own interfaces.
#include "backends/backend.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "backends/packet/descriptor.h"
#include "backends/packet/flows/claim.h"
#include "backends/packet/libc.h"
#include "backends/packet/link_watch.h"
#include "backends/packet/packet_port.h"
#include "backends/packet/tap_port.h"
#include "backends/packet/xdp/xdp_port.h"

namespace bypass::packet {
namespace {

class PacketBackend final : public Backend {
 public:
  bool check(const PortSpec& spec, std::string& problem) override;
  Port* open(const PortSpec& spec, std::string& problem) override;
  void close(Port* port) override;
  void drop_in_child() override { drop_descriptors(); }
  void protect_descriptors(bool on) override { packet::protect_descriptors(on); }

 private:
  std::mutex mutex_;
  LinkWatch links_;
  struct Opened {
    std::unique_ptr<FramePort> port;
    std::vector<Claim> claims;
  };
  std::vector<Opened> ports_;
};

// Claims the addresses of the port. Where the stack answers for addresses on an interface, only one process may.
// Addresses of a shared interface are the kernel's, and the flows at them are claimed one by one (FlowMap).
bool claim_addresses(const PortSpec& spec, std::vector<Claim>& claims, std::string& problem) {
  if (spec.share_interface) return true;
  for (const IpAddress& address : spec.addresses) {
    Claim& claim = claims.emplace_back();
    if (claim.take(spec.target, text_of(address))) continue;
    problem = "another process" + claim.holder() + " has the address " + text_of(address) +
              " on this interface; give this one an address of its own (BYPASS_ADDR)";
    return false;
  }
  return true;
}

std::unique_ptr<FramePort> open_kind(const PortSpec& spec, std::string& problem) {
  if (spec.kind == "af_packet" || spec.kind == "netdev") return PacketPort::open(spec, problem);
  if (spec.kind == "tap") return TapPort::open(spec, problem);
  if (spec.kind == "af_xdp") return XdpPort::open(spec, problem);
  problem = "not a wire of this plugin; accepted are af_packet, af_xdp, netdev and tap";
  return nullptr;
}

// The process itself checks what can be known without opening anything (config/port_check).
bool PacketBackend::check(const PortSpec&, std::string&) {
  return true;
}

Port* PacketBackend::open(const PortSpec& spec, std::string& problem) {
  std::vector<Claim> claims;
  if (!claim_addresses(spec, claims, problem)) {
    problem = spec.kind + ":" + spec.target + ": " + problem;
    errno = EADDRINUSE;
    return nullptr;
  }
  auto port = open_kind(spec, problem);
  const int error = port == nullptr ? 0 : links_.watch(port.get());
  if (error != 0) problem = "no netlink socket: " + std::string(std::strerror(error));
  if (port == nullptr || error != 0) {
    problem = spec.kind + ":" + spec.target + ": " + problem;
    errno = 0;
    return nullptr;
  }
  const std::lock_guard lock(mutex_);
  ports_.push_back({std::move(port), std::move(claims)});
  return ports_.back().port.get();
}

void PacketBackend::close(Port* port) {
  const std::lock_guard lock(mutex_);
  const auto found =
      std::find_if(ports_.begin(), ports_.end(), [&](const Opened& each) { return each.port.get() == port; });
  if (found == ports_.end()) return;
  links_.forget(found->port.get());
  ports_.erase(found);
}

}  // namespace
}  // namespace bypass::packet

extern "C" [[gnu::visibility("default")]] bypass::Backend* bypass_backend(const bypass::Host* host) {
  if (!bypass::accept_host(host, bypass::packet::bind_libc)) return nullptr;
  // Never destroyed: its thread outlives the program's static destructors.
  static auto* backend = new bypass::packet::PacketBackend;
  return backend;
}
