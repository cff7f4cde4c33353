#include "stack/ip/network.h"

#include <algorithm>
#include <new>
#include <span>

#include "stack/frame/wire.h"
#include "stack/ip/ipv4.h"
#include "stack/ip/network_impl.h"
#include "stack/memory/arena_packet.h"
#include "stack/stack.h"

namespace bypass {
namespace {

constexpr std::uint32_t kLimitedBroadcast = 0xffffffffU;
// How many frames a host may have under way to itself before its senders have to wait.
constexpr std::uint32_t kMaxLoopedFrames = 256;
constexpr std::size_t kMaxLoopedBytes = std::size_t{4} << 20;

constexpr std::uint32_t kLoopedTso = 60'000;  // with all headers below IPv4's 65,535

constexpr std::uint32_t kEchoRepliesPerSecond = 10'000, kEchoBurst = 1'000;
constexpr std::uint32_t kErrorsPerSecond = 1'000, kErrorBurst = 50;  // RFC 1812 §4.3.2.8

// RFC 1112 §6.4: the low 23 bits of the group.
MacAddress group_mac(std::uint32_t address) {
  if (address >> 28 != 0xe) return MacAddress::broadcast();
  return {{0x01, 0x00, 0x5e, static_cast<std::uint8_t>(address >> 16 & 0x7f), static_cast<std::uint8_t>(address >> 8),
           static_cast<std::uint8_t>(address)}};
}

bool is_group(std::uint32_t address) {
  return address == kLimitedBroadcast || address >> 28 == 0xe;
}

}  // namespace

Network::Impl::Impl(Memory& memory_in, StackCounters& counters_in, const StackConfig& config)
    : memory(memory_in),
      counters(counters_in),
      flows(memory_in, counters_in),
      arp(config, routes, counters_in),
      fragments(memory_in, counters_in, {config.tcp.secret[0], config.tcp.secret[1]}, config.fragment_memory),
      fragment_secret{config.tcp.secret[0], config.tcp.secret[1]},
      echo_limit(kEchoRepliesPerSecond, kEchoBurst),
      error_limit(kErrorsPerSecond, kErrorBurst),
      checksum_offload(config.checksum_offload),
      tso(config.tso) {}

Network::Network(Memory& memory, StackCounters& counters, const StackConfig& config) : impl_(nullptr) {
  static_assert(sizeof(Impl) <= std::size_t{64} << 10, "fits one block of the arena");
  void* block = memory.allocate(sizeof(Impl));
  if (block != nullptr) impl_ = new (block) Impl(memory, counters, config);
}

// --- Interfaces and routes

Result<bool> Network::set_interface(std::uint16_t port, const InterfaceConfig& config) {
  const Result<bool> set = impl_->routes.set(port, config);
  if (!set) return set;
  impl_->arp.interface_changed(port);
  impl_->flows.set_active(impl_->routes.any_steered());
  return set;
}

Result<bool> Network::change_interface(std::uint16_t port, const InterfaceConfig& config) {
  const Result<bool> set = impl_->routes.set(port, config);
  if (set) impl_->arp.bump_generation();
  return set;
}

bool Network::is_steered(std::uint16_t port) const {
  return impl_->routes.interface(port).steered;
}

std::span<const InterfaceAddress> Network::addresses(std::uint16_t port) const {
  return impl_->routes.interface(port).all();
}

std::uint32_t Network::mtu(std::uint16_t port) const {
  return impl_->routes.interface(port).mtu;
}

FlowLog& Network::flows() {
  return impl_->flows;
}

std::uint32_t Network::kernel_index(const IpAddress& own) const {
  const std::uint16_t port = own.is_v4() ? impl_->routes.owner(own.v4()) : RouteTable::kNone;
  return port == RouteTable::kNone ? 0 : impl_->routes.interface(port).kernel_index;
}

bool Network::is_local(const IpAddress& address) const {
  if (!address.is_v4()) return false;
  return impl_->routes.owner(address.v4()) != RouteTable::kNone || impl_->routes.is_broadcast(address.v4());
}

bool Network::routes(const IpAddress& remote, std::uint16_t* port) const {
  if (!remote.is_v4() || is_group(remote.v4())) return false;
  const Route* route = impl_->routes.lookup(remote.v4());
  if (route == nullptr || remote.is_any()) return false;
  if (port != nullptr) *port = route->port;
  return true;
}

AddressConflict Network::address_conflict(std::uint16_t port) const {
  const std::uint32_t claimed = impl_->arp.claimed(port);
  return claimed == 0 ? AddressConflict{} : AddressConflict{IpAddress::from_v4(claimed), impl_->arp.claimant(port)};
}

std::uint32_t Network::generation() const {
  return impl_->arp.generation();
}

Result<bool> Network::resolve(const IpAddress& local, const IpAddress& remote, Path& path) const {
  return impl_->resolve(local, remote, path);
}

Result<bool> Network::Impl::resolve(const IpAddress& local, const IpAddress& remote, Path& path) const {
  if (!remote.is_v4() || !(local.is_v4() || local.is_any())) return Error::kNoRoute;
  const std::uint32_t to = remote.v4();
  const std::uint32_t from = local.is_any() ? 0 : local.v4();
  const std::uint16_t from_port = from == 0 ? RouteTable::kNone : routes.owner(from);
  // An address that is no longer ours leads nowhere, as in Linux.
  if (to == 0 || (from != 0 && from_port == RouteTable::kNone)) return Error::kNoRoute;

  const std::uint16_t own_port = routes.owner(to);
  const Route* route = nullptr;
  if (own_port != RouteTable::kNone) {
    path.port = own_port;
    path.neighbour = Path::kLooped;
  } else if (is_group(to) && from_port != RouteTable::kNone) {
    path.port = from_port;
    path.neighbour = Path::kGroup;
  } else {
    route = routes.lookup(to);
    if (route == nullptr) return Error::kNoRoute;
    path.port = route->port;
    path.neighbour = is_group(to) || routes.interface(route->port).is_broadcast(to) ? Path::kGroup : std::uint16_t{0};
  }
  if (from != 0)
    path.local = local;
  else
    path.local = IpAddress::from_v4(route != nullptr ? route->source : to);
  path.remote = remote;
  path.next_hop = route != nullptr && route->gateway != 0 ? IpAddress::from_v4(route->gateway) : remote;
  const std::uint32_t mtu = routes.interface(path.port).mtu;
  path.mtu = static_cast<std::uint16_t>(std::min(mtu, 0xffffU));  // IPv4 has no larger packet
  path.generation = arp.generation();
  path.header_len = 0;
  return true;
}

// --- Sending

Packet* Network::alloc(Context& ctx, const Path& path) {
  Packet* packet = nullptr;
  if (path.neighbour == Path::kLooped)
    packet = allocate_arena_packet(impl_->memory, kTxHeadroom, path.mtu);
  else if (path.port < ctx.ports)
    packet = ctx.queue(path.port).alloc();
  if (packet == nullptr) impl_->counters.drop_no_frame++;
  return packet;
}

Network::Offloads Network::offloads(Context& ctx, const Path& path) const {
  if (path.neighbour == Path::kLooped) return {true, true, impl_->tso ? kLoopedTso : 0};
  if (path.port >= ctx.ports) return {};
  const PortCaps& caps = ctx.queue(path.port).caps();
  const bool l4_checksum = caps.tx_l4_checksum && impl_->checksum_offload;
  return {l4_checksum, caps.gather, l4_checksum && caps.tso && impl_->tso ? caps.tso_max_bytes : 0};
}

Result<bool> Network::send(Context& ctx, Path& path, Packet* packet, std::uint8_t protocol) {
  // RFC 6864 §4.1: in a datagram that must not be fragmented, the identification has no meaning. 0 reveals nothing to a
  // peer.
  const bool whole = path.fragment == wire::kDontFragment;
  return impl_->send(ctx, path, packet, protocol, whole ? std::uint16_t{0} : impl_->identification(path, protocol));
}

inline Result<bool> Network::Impl::send(Context& ctx, Path& path, Packet* packet, std::uint8_t protocol,
                                        std::uint16_t id) {
  if (path.generation != arp.generation() || path.header_len == 0) [[unlikely]]
    return send_slow(ctx, path, packet, protocol, id);
  PortQueue& queue = ctx.queue(path.port);
  if (!queue.can_transmit()) return Error::kWouldBlock;
  prepend_prefix(*packet, path, protocol, id);
  leave_ip_checksum(*packet, queue.caps());
  (void)queue.transmit(packet);
  counters.tx_frames++;
  return true;
}

Result<bool> Network::send_fragments(Context& ctx, Path& path, PacketList& fragments, std::uint8_t protocol) {
  return impl_->send_fragments(ctx, path, fragments, protocol);
}

Result<bool> Network::Impl::send_fragments(Context& ctx, Path& path, PacketList& list, std::uint8_t protocol) {
  const std::size_t burst = std::min<std::size_t>(list.count(), PortQueue::kBatch);
  if (path.port < ctx.ports && !ctx.queue(path.port).can_transmit(burst)) return Error::kWouldBlock;
  const std::uint16_t id = identification(path, protocol);
  std::uint32_t offset = 0;
  Result<bool> sent = true;
  counters.ip_fragmented++;
  while (Packet* fragment = list.pop()) {
    const std::uint32_t len = fragment->frame_len;
    const unsigned more = list.empty() ? 0U : wire::kMoreFragments;
    set_fragment(path, static_cast<std::uint16_t>(offset / 8 | more));
    if (sent) sent = send(ctx, path, fragment, protocol, id);
    if (sent) {
      counters.ip_fragments_out++;
    } else if (sent.error() == Error::kWouldBlock) {
      counters.drop_ip_fragment_device++;
      ctx.release(fragment);
    } else {
      while (Packet* rest = list.pop()) ctx.release(rest);
    }
    offset += len;
  }
  set_fragment(path, wire::kDontFragment);
  return sent.ok() || sent.error() == Error::kWouldBlock ? Result<bool>(true) : sent;
}

// RFC 7739 §5.3: without the secret nobody can predict the identification of the next datagram to another host. Each
// pair of hosts sees its own count rise.
std::uint16_t Network::Impl::identification(const Path& path, std::uint8_t protocol) {
  const std::uint32_t pair[3] = {path.local.v4(), path.remote.v4(), protocol};
  const std::uint64_t hash = tcp::siphash24(fragment_secret, std::as_bytes(std::span{pair}));
  return static_cast<std::uint16_t>(hash + identifications[(hash >> 16) % identifications.size()]++);
}

// The path is stale or not resolved yet.
[[gnu::noinline]] Result<bool> Network::Impl::send_slow(Context& ctx, Path& path, Packet* packet, std::uint8_t protocol,
                                                        std::uint16_t id) {
  if (path.generation != arp.generation()) {
    Result<bool> found = resolve(path.local, path.remote, path);
    // A frame of one port (or of the arena) cannot leave by another port; the packet is sent again there.
    const bool arenas = (packet->flags & kInArena) != 0;
    const bool from_port = arenas == ctx.queue(path.port).caps().arena_frames && packet->port == path.port;
    const bool fits = path.neighbour == Path::kLooped || from_port;
    if (found && !fits) found = Error::kNoRoute;
    if (!found) {
      counters.drop_no_route++;
      ctx.release(packet);
      return found;
    }
  }
  if (path.neighbour == Path::kLooped) return loop(ctx, path, packet, protocol, id);
  const Interface& interface = routes.interface(path.port);
  if (path.neighbour == Path::kGroup) {
    build_prefix(path, interface.mac, group_mac(path.remote.v4()));
    return send(ctx, path, packet, protocol, id);
  }
  if (!ctx.queue(path.port).can_transmit()) return Error::kWouldBlock;
  const std::uint16_t name = arp.use(ctx, path.port, path.next_hop.v4());
  if (name == 0 || !arp.entry(name).has_mac()) return send_unresolved(ctx, path, packet, protocol, id, name);
  path.neighbour = name;
  path.generation = arp.generation();
  build_prefix(path, interface.mac, arp.entry(name).mac);
  return send(ctx, path, packet, protocol, id);
}

Result<bool> Network::Impl::send_unresolved(Context& ctx, Path& path, Packet* packet, std::uint8_t protocol,
                                            std::uint16_t id, std::uint16_t name) {
  if (name == 0 || packet->external_len[0] != 0) {
    counters.drop_arp_queue++;
    ctx.release(packet);
    return true;
  }
  build_prefix(path, routes.interface(path.port).mac, {});
  prepend_prefix(*packet, path, protocol, id);
  leave_ip_checksum(*packet, ctx.queue(path.port).caps());
  path.header_len = 0;
  arp.wait(ctx, name, packet);
  return true;
}

// When memory is used up, its holder may wait for this very segment. A large segment is lost and comes again in small
// ones.
Packet* Network::Impl::copy_in_need(const Packet& packet) {
  const bool small = (packet.flags & kTxTso) == 0;
  return small && memory.has_kept(arena_packet_size(packet.frame_len)) ? copy_to_kept_back(memory, packet) : nullptr;
}

// Turns a packet to an address of ours into a received frame whose checksums count as verified.
Result<bool> Network::Impl::loop(Context& ctx, const Path& path, Packet* packet, std::uint8_t protocol,
                                 std::uint16_t id) {
  if (looped.count() >= kMaxLoopedFrames || looped_bytes >= kMaxLoopedBytes) return Error::kWouldBlock;
  Path own = path;
  build_prefix(own, routes.interface(path.port).mac, routes.interface(path.port).mac);
  Packet* frame = packet;
  const bool plain = (packet->flags & kInArena) != 0 && packet->next_segment == nullptr && packet->external_len[0] == 0;
  prepend_prefix(*packet, own, protocol, id);
  if (!plain) {
    frame = copy_to_arena(memory, *packet);
    if (frame == nullptr) frame = copy_in_need(*packet);
    ctx.release(packet);
    if (frame == nullptr) {
      counters.drop_no_memory++;
      return true;
    }
  }
  const bool large = (frame->flags & kTxTso) != 0;
  frame->flags = kInArena | kRxIpChecksumGood | kRxL4ChecksumGood | (frame->flags & kInReserve);
  if (large) frame->flags |= kRxLro;
  frame->port = path.port;
  if (looped.empty()) looped_since = ctx.now;
  looped.push(frame);
  looped_bytes += frame->frame_len;
  counters.tx_frames++;
  return true;
}

void Network::confirm(Context& ctx, const Path& path) {
  if (path.generation != impl_->arp.generation() || path.header_len == 0) return;
  if (path.neighbour < Path::kGroup) impl_->arp.confirm(ctx.now, path.neighbour);
}

// --- Input

bool Network::Impl::receive(Context& ctx, std::uint16_t port, Packet* frame, L4Input& input) {
  frame->port = port;
  if (!wire::fits<wire::Ethernet>(*frame, 0)) {
    counters.drop_eth_short++;
    ctx.release(frame);
    return false;
  }
  const auto& ethernet = wire::at<wire::Ethernet>(*frame, 0);
  const bool group = ethernet.destination.is_multicast();
  if (!group && ethernet.destination != routes.interface(port).mac) {
    counters.drop_eth_not_ours++;
    ctx.release(frame);
    return false;
  }
  const std::uint16_t type = ethernet.type;
  if (type == wire::kEtherTypeIpv4) [[likely]]
    return receive_ipv4(ctx, port, frame, group, input);
  if (type == wire::kEtherTypeArp) {
    arp.on_packet(ctx, port, frame, group);
    return false;
  }
  counters.drop_eth_type++;
  ctx.release(frame);
  return false;
}

bool Network::Impl::receive_ipv4(Context& ctx, std::uint16_t port, Packet* frame, bool group, L4Input& input) {
  const Ipv4Check check = parse_ipv4(*frame, input);
  std::uint64_t* drop = nullptr;
  if (check != Ipv4Check::kMalformed) [[likely]] {
    const std::uint32_t from = input.source.v4(), to = input.destination.v4();
    const bool to_broadcast = to == kLimitedBroadcast || routes.interface(port).is_broadcast(to);
    // RFC 1122 §3.2.1.3: no host has such a source address. If it is our own address, a stranger could have us answer
    // ourselves.
    const bool nobody =
        from == 0 || from >> 24 == 127 || from >> 28 >= 0xe || routes.interface(port).is_broadcast(from);
    if (nobody || routes.owner(from) != RouteTable::kNone)
      drop = &counters.drop_ip_source;
    else if (!to_broadcast && (group || routes.owner(to) == RouteTable::kNone))
      drop = &counters.drop_ip_not_ours;  // RFC 1122 §3.3.6: this includes a unicast packet in a broadcast frame
    input.broadcast = to_broadcast;
  } else {
    drop = &counters.drop_ip_malformed;
  }
  if (drop != nullptr) [[unlikely]] {
    (*drop)++;
    ctx.release(frame);
    return false;
  }
  input.port = port;
  input.checksum_good = (frame->flags & kRxL4ChecksumGood) != 0;
  if (check == Ipv4Check::kFragment) [[unlikely]]
    return fragments.take(ctx, input);
  return true;
}

bool Network::Impl::receive_looped(Context& ctx, Packet* frame, L4Input& input) {
  looped_bytes -= frame->frame_len;
  if (parse_ipv4(*frame, input) != Ipv4Check::kGood) {
    counters.drop_ip_malformed++;
    ctx.release(frame);
    return false;
  }
  input.port = frame->port;
  input.checksum_good = true;
  input.broadcast = false;
  return true;
}

void Network::Impl::on_timers(Context& ctx) {
  arp.on_timers(ctx);
  release_stranded(ctx);
  fragments.on_timers(ctx);
}

void Network::Impl::release_stranded(Context& ctx) {
  PacketList stranded = arp.take_stranded();
  while (Packet* frame = stranded.pop()) ctx.release(frame);
}

std::size_t Network::Impl::move_frames_to_arena(Context& ctx) {
  release_stranded(ctx);
  return arp.move_waiting_to_arena(ctx) + fragments.move_frames_to_arena(ctx);
}

Instant Network::Impl::next_timeout() const {
  const Instant next = std::min(arp.next_timeout(), fragments.next_timeout());
  return looped.empty() ? next : std::min(looped_since, next);
}

void Network::Impl::rebuild(Context& ctx) {
  (void)memory.mark_in_use(this);
  if (ctx.sees_frames()) {
    PacketList waiting = arp.take_waiting();
    while (Packet* frame = waiting.pop()) ctx.release(frame);
  }
  arp.clear();
  fragments.rebuild(ctx);
  flows.rebuild();
  looped = {};
  looped_bytes = 0;
}

}  // namespace bypass
