#include "runtime/progress/publish.h"

#include <time.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "observe/layout.h"
#include "os/log/log.h"
#include "os/net/address_text.h"
#include "runtime/life/before_start.h"
#include "runtime/process_graph.h"
#include "socket/at_once.h"
#include "socket/shared/local.h"
#include "stack/counters.h"
#include "stack/ip/network.h"

namespace bypass::runtime {

namespace {

std::uint64_t wall_clock_ns() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
}

observe::PortRecord port_record(const PortConfig& config, const PortSet::Entry* entry) {
  observe::PortRecord record{};
  observe::set_text(record.kind, config.kind.c_str());
  observe::set_text(record.target, config.target.c_str());
  record.mtu = config.mtu;
  for (const Prefix& prefix : config.addresses) {
    if (prefix.address.is_v4() && record.v4.is_any()) {
      record.v4 = prefix.address;
      record.v4_length = prefix.length;
    } else if (!prefix.address.is_v4() && record.v6.is_any()) {
      record.v6 = prefix.address;
      record.v6_length = prefix.length;
    }
  }
  if (entry == nullptr || entry->port == nullptr || entry->backend == nullptr) return record;  // a relay is no port
  const PortStats stats = entry->port->stats();
  record.open = stats.gone ? observe::kPortGone : stats.looked_at ? observe::kPortLookedAt : observe::kPortOpen;
  record.link_up = entry->port->link() == LinkState::kUp ? 1 : 0;
  record.mtu =
      config.shared && config.mtu != 0 ? std::min(config.mtu, entry->port->caps().mtu) : entry->port->caps().mtu;
  record.mac = entry->port->mac().bytes;
  record.rx_frames = stats.rx_frames, record.rx_bytes = stats.rx_bytes;
  record.rx_dropped = stats.rx_dropped, record.rx_no_buffer = stats.rx_no_buffer;
  record.tx_frames = stats.tx_frames, record.tx_bytes = stats.tx_bytes, record.tx_full = stats.tx_full;
  record.tx_dropped = stats.tx_dropped;
  record.link_ups = stats.link_up, record.link_downs = stats.link_down, record.reopened = stats.reopened;
  record.buffers_total = stats.buffers_total, record.buffers_free = stats.buffers_free;
  return record;
}

/// The pid of the process that has the family's ports; 0: no process has them.
pid_t port_owner(Process& p) {
  const std::uint32_t slot = p.shard.wires().owner_slot();
  return slot == socket::kNoSlot ? 0 : static_cast<pid_t>(p.shard.family().table().slots[slot].pid.load());
}

/// Does what `bypass set` asked for.
void do_drill(Process& p) {
  if (p.region.wanted_drill() == observe::Drill::kNone) [[likely]]
    return;
  std::size_t failed = 0;
  if (p.links != nullptr && p.links->valid()) {
    socket::Guard guard(p.shard);
    failed = p.links->fail_all();
  }
  p.region.finish_drill(static_cast<std::uint32_t>(failed));
}

/// Tells that the family's memory ran short. Only the process with the family's ports tells it.
void report_shortage(Process& p) {
  const StackCounters& counters = p.shard.stack().counters();
  const std::uint64_t shortages = counters.tcp_memory_waits + counters.drop_tcp_memory + counters.drop_no_memory;
  if (shortages == std::exchange(p.shortages_told, shortages)) [[likely]]
    return;
  const std::string text = "of " + std::to_string(p.config.memory >> 20) +
                           " MiB too little was left for new connections, for bytes to send or for bytes that arrived";
  p.region.why(observe::Reason::kNoMemory, -1, 0, {}, text.c_str());
}

/// Tells that a listener's SYN queue has been full since the last look.
void report_flood(Process& p) {
  const StackCounters& counters = p.shard.stack().counters();
  const std::uint64_t cookies = counters.tcp_cookies_out + counters.drop_tcp_syn_queue;
  if (cookies == std::exchange(p.cookies_told, cookies)) [[likely]]
    return;
  const std::string text = "the SYN queue of a listener is full (" + std::to_string(p.config.tcp.syn_queue) +
                           " connections): beyond them, " +
                           (p.config.tcp.syn_cookies ? "nothing is kept" : "SYNs are dropped");
  p.region.why(observe::Reason::kSynFlood, -1, 0, {}, text.c_str());
}

/// Tells, once for each port, which other host has our address. Its user has to give one of the two another address.
void report_conflict(Process& p, std::size_t port) {
  AddressConflict conflict;
  {
    socket::Guard guard(p.shard);
    conflict = p.shard.stack().network().address_conflict(p.ports.entries()[port].index);
  }
  if (conflict.address.is_any()) return;
  p.conflicts_told[port] = true;
  const std::string text = port_text(p.config.ports[port]) + ": another host, " +
                           std::string(to_text(conflict.mac).view()) + ", has the address " +
                           std::string(to_text(conflict.address).view());
  BYPASS_LOG_WARN("%s, too; peers reach the one or the other", text.c_str());
  p.region.why(observe::Reason::kAddressConflict, -1, 0, {conflict.address, 0}, text.c_str());
}

void report_conflicts(Process& p) {
  const std::uint64_t conflicts = p.shard.stack().counters().drop_arp_conflict;
  if (conflicts == std::exchange(p.conflicts_seen, conflicts)) [[likely]]
    return;
  for (std::size_t port = 0; port < p.ports.entries().size(); port++)
    if (p.ports.entries()[port].port != nullptr && !p.conflicts_told[port]) report_conflict(p, port);
}

}  // namespace

Duration publish(void* process_pointer) {
  constexpr Duration kNothingLeft = kNever - Instant{};
  Process& p = *static_cast<Process*>(process_pointer);
  if (p.region_is_parents.exchange(false)) renew_region();
  if (!p.region.active()) return kNothingLeft;
  do_drill(p);
  const bool following = p.ports.following();
  p.region.set_port_owner(port_owner(p));
  if (!following) report_shortage(p), report_conflicts(p), report_flood(p);
  // Counters are read without the lock: each is one aligned word, and a torn sum does no harm here. They belong to the
  // family, so only one process shows them.
  const StackCounters& counters = p.shard.stack().counters();
  static_assert(sizeof(StackCounters) % sizeof(std::uint64_t) == 0);
  constexpr std::size_t kOfStack = sizeof(StackCounters) / sizeof(std::uint64_t);
  std::uint64_t values[kOfStack + 12]{};
  std::memcpy(values, &counters, sizeof counters);
  values[kOfStack] = socket::local_counts.shared;
  values[kOfStack + 1] = socket::local_counts.refused;
  values[kOfStack + 2] = socket::at_once_counts.local;
  values[kOfStack + 3] = socket::at_once_counts.stream;
  if (p.links != nullptr && p.links->valid()) {
    std::uint64_t* at = values + kOfStack + 4;
    for (const fastpath::Mover mover : {fastpath::Mover::kRc, fastpath::Mover::kShm}) {
      const fastpath::PeerTable::Counts& counts = p.links->table().count(mover);
      for (const std::uint64_t count : {counts.links_made, counts.links_failed, counts.lanes, counts.returns})
        *at++ = count;
    }
  }
  p.region.publish_counters(following ? std::span<const std::uint64_t>{} : values, wall_clock_ns());
  const LiveNetwork::Reading network(p.ports.network());
  for (std::size_t i = 0; i < network->ports.size(); i++)
    p.region.set_port(i,
                      port_record(network->ports[i], i < p.ports.entries().size() ? &p.ports.entries()[i] : nullptr));
  // Every socket is looked at with the lock held: a few times a second at most.
  constexpr Duration kSocketsEvery = std::chrono::milliseconds(200);
  const Instant now = p.clock.now();
  if (const Duration since = now - p.sockets_published; since < kSocketsEvery) return kSocketsEvery - since;
  if (!publish_sockets(p, p.socket_slots)) return kSocketsEvery;
  p.sockets_published = now;
  return kNothingLeft;
}

void publish_a_last_time(Process& p) {
  p.sockets_published = {};
  publish(&p);
}

}  // namespace bypass::runtime
