#include "backends/packet/frame_port.h"

#include <cerrno>
#include <cstring>

#include "backends/packet/libc.h"

namespace bypass::packet {
namespace {

constexpr std::size_t kDefaultBuffers = 64u << 20;

}  // namespace

bool FramePort::prepare(const PortSpec& spec, const FrameLayout& layout, Hugepages automatic, std::string& problem) {
  if (!wakeup_.is_open()) {
    problem = "no descriptor for the port's wake-up: " + std::string(std::strerror(errno));
    return false;
  }
  caps_.buffer_bytes = layout.buffer;
  const std::size_t bytes = spec.buffer_memory != 0 ? spec.buffer_memory : kDefaultBuffers;
  const Hugepages pages = spec.hugepages == Hugepages::kAuto ? automatic : spec.hugepages;
  return pool_.create(layout, bytes, spec.index, pages, problem);
}

bool FramePort::prepare_virtio(const PortSpec& spec, std::string& problem) {
  caps_.rx_checksum = caps_.tx_l4_checksum = caps_.tso = caps_.lro = caps_.gather = true;
  caps_.tso_max_bytes = kLargestTsoPayload;
  return prepare(spec, FramePool::kLarge, Hugepages::kOff, problem);
}

bool FramePort::choose_mtu(const PortSpec& spec, std::uint32_t of_interface, std::string& problem) {
  caps_.mtu = spec.mtu != 0 ? spec.mtu : of_interface;
  if (caps_.mtu <= of_interface) return true;
  problem = "an MTU of " + std::to_string(spec.mtu) + " is more than the interface's " + std::to_string(of_interface) +
            "; raise that first (" +
            (spec.kind == "tap" ? "ip tuntap add " + spec.target + " mode tap; " : std::string()) + "ip link set " +
            spec.target + " mtu " + std::to_string(spec.mtu) + ")";
  return false;
}

bool FramePort::choose_mac(const PortSpec& spec, const MacAddress& of_interface, std::string& problem) {
  if (!spec.share_interface) {
    mac_ = spec.mac.is_zero() ? derive_mac(spec, of_interface) : spec.mac;
    return true;
  }
  mac_ = of_interface;
  caps_.steering = true;
  shared_ = SharedInterface::create(spec, mac_, problem);
  return shared_ != nullptr;
}

void FramePort::set_link(bool up) {
  if (link_.exchange(up, std::memory_order_acq_rel) == up) return;
  if (up)
    count_link_up();
  else
    link_downs_.fetch_add(1, std::memory_order_relaxed);
  wakeup_.ring();
}

void FramePort::say_of_link(const std::string& interface, const std::string& problem) {
  if (problem == said_of_link_) return;
  said_of_link_ = problem;
  if (!problem.empty()) host->log(LogLevel::kWarn, (interface + " " + problem).c_str());
}

std::size_t FramePort::drop(std::span<Packet* const> frames) {
  free(frames);
  tx_dropped_.add(frames.size());
  return frames.size();
}

std::size_t FramePort::alloc(std::uint16_t, std::span<Packet*> out) {
  return pool_.alloc(out);
}

void FramePort::free(std::span<Packet* const> frames) {
  for (Packet* p : frames) pool_.free_frame(p);
}

bool FramePort::arm(std::uint16_t) {
  wakeup_.fetch();
  const bool up = is_up();
  if (up == armed_link_) return true;
  armed_link_ = up;  // its event has just been fetched: the caller has to look
  return false;
}

void FramePort::disarm(std::uint16_t) {
  wakeup_.fetch();
}

PortStats FramePort::stats() const {
  PortStats s = counted();
  s.rx_dropped += lost_by_kernel();
  s.rx_no_buffer = pool_.ran_dry();
  s.link_up = link_ups();
  s.buffers_total = pool_.total();
  s.buffers_free = pool_.free_count();
  return s;
}

}  // namespace bypass::packet
