// A world of hosts on one simulated wire, in virtual time: the harness of tests above single functions.
//
//   World world{seed};
//   Host& a = world.add_host({.address = "10.9.0.1"});  …  world.run_for(1ms);
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backends/sim/sim_wire.h"
#include "stack/memory/memory.h"
#include "stack/stack.h"

namespace bypass::test {

using namespace std::chrono_literals;

/// "10.9.0.1"
IpAddress ip(const char* text);
/// 02:00:00:00:00:last
MacAddress mac(unsigned last);
/// Everything that a card can do, as virtio does it.
PortCaps offloading_caps();

struct HostConfig {
  const char* address = "10.9.0.1";
  std::uint8_t prefix = 24;
  const char* gateway = nullptr;
  std::uint32_t mtu = 1500;
  PortCaps caps{};
  StackConfig stack{};
  std::size_t buffers = 1024;
  std::size_t rx_segment = 0;
  std::size_t arena_bytes = std::size_t{64} << 20;
};

class Host {
 public:
  Host(sim::Wire& wire, unsigned number, const HostConfig& config);
  ~Host();
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  Stack& stack() { return *stack_; }
  Network& network() { return stack_->network(); }
  udp::Engine& udp() { return stack_->udp(); }
  tcp::Engine& tcp() { return stack_->tcp(); }
  StackCounters& counters() { return stack_->counters(); }
  Memory& memory() { return *memory_; }
  Context& ctx() { return context_; }
  sim::SimPort& port() { return port_; }
  [[nodiscard]] IpAddress address() const { return address_; }
  [[nodiscard]] MacAddress mac_address() const { return port_.mac(); }

  /// One turn of the loop that stack.h describes. Returns the frames received.
  std::size_t poll(Instant now);
  /// Events posted for that user pointer since the last call.
  std::uint16_t take_events(void* user);
  /// When the host next needs a turn: for its timers, or for output that waits for the device.
  [[nodiscard]] Instant next_turn(Instant now);

 private:
  IpAddress address_;
  sim::SimPort& port_;
  std::size_t arena_bytes_;
  void* arena_;
  Memory* memory_;
  Stack* stack_;
  Context context_;
  std::map<void*, std::uint16_t> events_;
};

class World {
 public:
  explicit World(std::uint64_t seed = 1) : wire_(seed) {}

  /// Hosts get the wire's ports in order: host 0 is port 0.
  Host& add_host(const HostConfig& config);
  /// A bare port: a test sends and reads each of its frames. Add it after the hosts.
  sim::SimPort& add_probe(unsigned mac_last = 99);
  Host& host(std::size_t index) { return *hosts_[index]; }
  sim::Wire& wire() { return wire_; }
  [[nodiscard]] Instant now() const { return now_; }

  void run_for(Duration duration) {
    run_until([] { return false; }, duration);
  }
  /// Runs until `done` holds; false when `limit` passed first. It is asked after every turn and may use the stacks.
  bool run_until(const std::function<bool()>& done, Duration limit = 10s);
  /// All frames that lie at a bare port.
  std::vector<sim::Bytes> read(sim::SimPort& probe);

 private:
  void turn();
  [[nodiscard]] Instant next_moment();

  sim::Wire wire_;
  std::vector<std::unique_ptr<Host>> hosts_;
  Instant now_{};
};

/// Frames made by hand. Checksums are right; a test breaks what it wants to break.
struct Ipv4Options {
  const char* from = "10.9.0.2";
  const char* to = "10.9.0.1";
  MacAddress from_mac = mac(2), to_mac = mac(1);
  std::uint8_t protocol = 17, ttl = 64, tos = 0;
  std::uint16_t fragment = 0x4000, id = 7;
  std::size_t option_words = 0;  // NOP options behind the header
};
sim::Bytes ipv4_frame(const Ipv4Options& options, std::span<const std::byte> l4);
sim::Bytes udp_frame(const Ipv4Options& options, std::uint16_t from_port, std::uint16_t to_port,
                     std::span<const std::byte> payload);
struct ArpOptions {
  std::uint16_t operation = 1;
  MacAddress to_mac = MacAddress::broadcast(), from_mac = mac(2);
  MacAddress sender_mac = mac(2);
  const char* sender_ip = "10.9.0.2";
  MacAddress target_mac{};
  const char* target_ip = "10.9.0.1";
};
sim::Bytes arp_frame(const ArpOptions& options);
sim::Bytes icmp_frame(const Ipv4Options& options, std::uint8_t type, std::uint8_t code, std::uint32_t rest,
                      std::span<const std::byte> body);
/// Fills the IPv4 header checksum after a test has changed the header.
void fix_ip_checksum(sim::Bytes& frame);
std::span<const std::byte> bytes_of(const std::string& text);
/// Whether an ARP frame is the announcement of an address.
bool is_announcement(const sim::Bytes& frame);

}  // namespace bypass::test
