#include "stack/world.h"

#include <arpa/inet.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "backends/sim/offload.h"
#include "stack/frame/checksum.h"
#include "stack/frame/wire.h"

namespace bypass::test {

IpAddress ip(const char* text) {
  in_addr v4{};
  inet_pton(AF_INET, text, &v4);
  return IpAddress::from_v4(be32_to_host(v4.s_addr));
}

MacAddress mac(unsigned last) {
  return {{0x02, 0, 0, 0, static_cast<std::uint8_t>(last >> 8), static_cast<std::uint8_t>(last)}};
}

PortCaps offloading_caps() {
  PortCaps caps;
  caps.rx_checksum = caps.tx_l4_checksum = caps.tso = caps.lro = caps.gather = true;
  caps.tso_max_bytes = 60'000;
  return caps;
}

// --- Host

namespace {

sim::PortConfig port_config(unsigned number, const HostConfig& config) {
  sim::PortConfig port;
  port.mac = mac(number + 1);
  port.caps = config.caps;
  port.caps.mtu = config.mtu;
  port.buffers = config.buffers;
  port.rx_segment = config.rx_segment;
  return port;
}

void* map_arena(std::size_t bytes) {
  return mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

}  // namespace

Host::Host(sim::Wire& wire, unsigned number, const HostConfig& config)
    : address_(ip(config.address)),
      port_(wire.add_port(port_config(number, config))),
      arena_bytes_(config.arena_bytes),
      arena_(map_arena(arena_bytes_)),
      memory_(Memory::create(arena_, config.arena_bytes, config.arena_bytes)),
      stack_(Stack::create(*memory_, config.stack)) {
  context_.queues[0] = PortQueue{&port_, 0, 0};
  context_.ports = 1;
  context_.memory = memory_;
  const Prefix prefix{address_, config.prefix};
  const InterfaceConfig interface {
    .mac = port_.mac(), .mtu = config.mtu, .addresses = {&prefix, 1},
    .gateway = config.gateway != nullptr ? ip(config.gateway) : IpAddress {}
  };
  if (!stack_->set_interface(0, interface)) std::abort();
}

Host::~Host() {
  context_.queue(0).drain();
  munmap(arena_, arena_bytes_);
}

std::size_t Host::poll(Instant now) {
  context_.now = now;
  std::array<Packet*, 64> frames;
  stack_->resume_output(context_);
  std::size_t total = 0;
  for (std::size_t n = 0; (n = port_.receive(0, frames)) != 0; total += n)
    stack_->on_frames(context_, 0, std::span{frames}.first(n));
  stack_->on_timers(context_);
  context_.flush();
  stack_->on_flushed(context_);
  while (EventNode* node = stack_->events().take()) {
    events_[node->user] |= node->events;
    node->events = 0;
  }
  return total;
}

std::uint16_t Host::take_events(void* user) {
  const std::uint16_t events = events_[user];
  events_[user] = 0;
  return events;
}

Instant Host::next_turn(Instant now) {
  // A full device does not report when it has room again. A real loop spins or sleeps a little.
  constexpr Duration kDeviceRetry = 5us;
  const bool blocked = stack_->output_pending() || context_.queue(0).pending() != 0;
  return std::min(stack_->next_timeout(), blocked ? now + kDeviceRetry : kNever);
}

// --- World

Host& World::add_host(const HostConfig& config) {
  hosts_.push_back(std::make_unique<Host>(wire_, static_cast<unsigned>(hosts_.size()), config));
  return *hosts_.back();
}

sim::SimPort& World::add_probe(unsigned mac_last) {
  sim::PortConfig config;
  config.mac = mac(mac_last);
  config.caps.lro = false;
  return wire_.add_port(config);
}

void World::turn() {
  wire_.set_now(now_);
  for (const auto& host : hosts_) host->poll(now_);
}

Instant World::next_moment() {
  Instant next = kNever;
  for (const auto& host : hosts_) next = std::min({next, host->next_turn(now_), host->port().next_arrival()});
  return std::max(next, now_);
}

bool World::run_until(const std::function<bool()>& done, Duration limit) {
  const Instant end = now_ + limit;
  Instant last = now_ - 1ns;
  for (bool finished = done(); !finished;) {
    turn();
    finished = done();  // may be a program, which gives the stacks more to do
    Instant next = next_moment();
    if (next == now_ && last == now_) next = now_ + 1us;  // something wants time to pass
    if (finished || now_ == end) return finished;
    last = now_;
    now_ = std::min(next, end);
  }
  return true;
}

std::vector<sim::Bytes> World::read(sim::SimPort& probe) {
  wire_.set_now(now_);
  std::vector<sim::Bytes> frames;
  std::array<Packet*, 16> packets;
  for (std::size_t n = 0; (n = probe.receive(0, packets)) != 0;) {
    for (std::size_t i = 0; i < n; i++) {
      sim::Bytes bytes;
      for (const Packet* p = packets[i]; p != nullptr; p = p->next_segment)
        bytes.insert(bytes.end(), p->data, p->data + p->len);
      frames.push_back(std::move(bytes));
    }
    probe.free(std::span{packets}.first(n));
  }
  return frames;
}

// --- Frames

namespace {

template <typename T>
T& header(sim::Bytes& bytes, std::size_t offset) {
  return *reinterpret_cast<T*>(bytes.data() + offset);
}

void append(sim::Bytes& to, std::span<const std::byte> from) {
  to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

void fix_ip_checksum(sim::Bytes& frame) {
  auto& ip = header<wire::Ipv4>(frame, 14);
  ip.checksum = 0;
  ip.checksum.set_raw(checksum_finish(checksum(&ip, ip.header_len())));
}

sim::Bytes ipv4_frame(const Ipv4Options& options, std::span<const std::byte> l4) {
  const std::size_t header_len = sizeof(wire::Ipv4) + options.option_words * 4;
  sim::Bytes frame(14 + header_len, std::byte{1});  // option 1: no operation
  auto& ethernet = header<wire::Ethernet>(frame, 0);
  ethernet.destination = options.to_mac;
  ethernet.source = options.from_mac;
  ethernet.type = wire::kEtherTypeIpv4;
  auto& ip_header = header<wire::Ipv4>(frame, 14);
  ip_header.version_ihl = static_cast<std::uint8_t>(0x40 | header_len / 4);
  ip_header.tos = options.tos;
  ip_header.total_len = static_cast<std::uint16_t>(header_len + l4.size());
  ip_header.id = options.id;
  ip_header.fragment = options.fragment;
  ip_header.ttl = options.ttl;
  ip_header.protocol = options.protocol;
  ip_header.source = ip(options.from).v4();
  ip_header.destination = ip(options.to).v4();
  fix_ip_checksum(frame);
  append(frame, l4);
  return frame;
}

sim::Bytes udp_frame(const Ipv4Options& options, std::uint16_t from_port, std::uint16_t to_port,
                     std::span<const std::byte> payload) {
  sim::Bytes l4(sizeof(wire::Udp));
  auto& udp = header<wire::Udp>(l4, 0);
  udp.source = from_port;
  udp.destination = to_port;
  udp.length = static_cast<std::uint16_t>(sizeof(wire::Udp) + payload.size());
  append(l4, payload);
  header<wire::Udp>(l4, 0).checksum.set_raw(checksum_finish(
      checksum(l4.data(), l4.size()) +
      checksum_pseudo(ip(options.from), ip(options.to), wire::kProtocolUdp, static_cast<std::uint32_t>(l4.size()))));
  return ipv4_frame(options, l4);
}

sim::Bytes arp_frame(const ArpOptions& options) {
  sim::Bytes frame(60);
  auto& ethernet = header<wire::Ethernet>(frame, 0);
  ethernet.destination = options.to_mac;
  ethernet.source = options.from_mac;
  ethernet.type = wire::kEtherTypeArp;
  auto& arp = header<wire::Arp>(frame, 14);
  arp.hardware = 1;
  arp.protocol = wire::kEtherTypeIpv4;
  arp.hardware_len = 6;
  arp.protocol_len = 4;
  arp.operation = options.operation;
  arp.sender_mac = options.sender_mac;
  arp.sender_ip = ip(options.sender_ip).v4();
  arp.target_mac = options.target_mac;
  arp.target_ip = ip(options.target_ip).v4();
  return frame;
}

sim::Bytes icmp_frame(const Ipv4Options& options, std::uint8_t type, std::uint8_t code, std::uint32_t rest,
                      std::span<const std::byte> body) {
  sim::Bytes l4(sizeof(wire::Icmp));
  auto& icmp = header<wire::Icmp>(l4, 0);
  icmp.type = type;
  icmp.code = code;
  icmp.id = static_cast<std::uint16_t>(rest >> 16);
  icmp.sequence = static_cast<std::uint16_t>(rest);
  append(l4, body);
  header<wire::Icmp>(l4, 0).checksum.set_raw(checksum_finish(checksum(l4.data(), l4.size())));
  Ipv4Options as_icmp = options;
  as_icmp.protocol = wire::kProtocolIcmp;
  return ipv4_frame(as_icmp, l4);
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span{text});
}

bool is_announcement(const sim::Bytes& frame) {
  if (frame.size() < 42) return false;
  const auto& ethernet = *reinterpret_cast<const wire::Ethernet*>(frame.data());
  const auto& arp = *reinterpret_cast<const wire::Arp*>(frame.data() + 14);
  return ethernet.type == wire::kEtherTypeArp && arp.sender_ip == arp.target_ip;
}

}  // namespace bypass::test
