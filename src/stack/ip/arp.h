// ARP (RFC 826, with RFC 1122 §2.3.2 and RFC 5227): finds the owners of addresses, and tells other hosts which
// addresses are ours.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include "stack/context.h"
#include "stack/counters.h"
#include "stack/frame/packet_list.h"
#include "stack/ip/neighbour.h"
#include "stack/ip/route.h"
#include "stack/time.h"

namespace bypass {

struct StackConfig;

class Arp {
 public:
  Arp(const StackConfig& config, const RouteTable& routes, StackCounters& counters);

  /// Takes over a received ARP frame. `broadcast`: it came to a group address.
  void on_packet(Context& ctx, std::uint16_t port, Packet* frame, bool broadcast);
  void on_timers(Context& ctx);
  /// The port's link has come up. Requests that were sent on the dead link are repeated from the beginning. Known
  /// neighbours are asked again at their next use.
  void on_link_up(Context& ctx, std::uint16_t port);
  [[nodiscard]] Instant next_timeout() const { return std::min(table_.next_deadline(), next_announcement_); }

  /// Returns the entry of a neighbour that packets are to be sent to. If there is no entry, one is made and the
  /// neighbour is asked; a stale one is asked again. 0: the table is full of unanswered requests.
  [[nodiscard]] std::uint16_t use(Context& ctx, std::uint16_t port, std::uint32_t address);
  [[nodiscard]] const Neighbour& entry(std::uint16_t name) const { return table_[name]; }
  /// Keeps a whole frame (destination MAC still zero) until the neighbour answers. The oldest frame gives way to a new
  /// one. A frame in the arena later leaves as a frame of the port.
  void wait(Context& ctx, std::uint16_t name, Packet* frame);
  /// The upper layer has received something from the neighbour (RFC 4861 §7.3.1).
  void confirm(Instant now, std::uint16_t name);
  /// On each port that keeps sent frames, asks the neighbour that was last heard once more. Its answer shows that what
  /// was sent before has been taken.
  void ask_behind(Context& ctx);
  /// Writes the addresses on our links that hosts have announced since the last call (RFC 5227 §2.3, or by an unasked
  /// reply); returns how many. Such a host may have restarted and know no connection. Each address counts once a
  /// second, and at most kHeard addresses a second; beyond that a storm is ignored. (Hosts announce twice, two seconds
  /// apart.)
  static constexpr std::size_t kHeard = 64;
  using Announced = std::array<IpAddress, kHeard>;
  [[nodiscard]] std::size_t take_announced(Announced& addresses);

  /// The last of our addresses that another host has claimed at that port, and that host; 0: no address was claimed.
  [[nodiscard]] std::uint32_t claimed(std::uint16_t port) const { return announcements_[port].claimed; }
  [[nodiscard]] const MacAddress& claimant(std::uint16_t port) const { return announcements_[port].claimant; }

  /// How many neighbours with a known MAC were asked and have not answered yet.
  [[nodiscard]] std::size_t asked() const;
  /// For how many neighbours with an unknown MAC packets wait.
  [[nodiscard]] std::size_t unresolved() const;
  /// Moves the waiting frames to the arena. Returns how many of them still belong to a port.
  std::size_t move_waiting_to_arena(Context& ctx);
  /// Frames whose neighbour did not answer. The caller takes them over.
  [[nodiscard]] PacketList take_failed();

  /// The port's addresses are new, or its device was opened again. Known neighbours may be wrong and are forgotten, and
  /// our addresses are announced at the next on_timers(). take_stranded() returns the frames that waited.
  void interface_changed(std::uint16_t port);
  [[nodiscard]] PacketList take_stranded();

  [[nodiscard]] std::uint32_t generation() const { return table_.generation(); }
  void bump_generation() { table_.bump_generation(); }
  /// After a death: the caller takes over the waiting frames (which can be read only where their port is open) …
  [[nodiscard]] PacketList take_waiting();
  /// … and everything is forgotten.
  void clear();
  /// How many packets wait for a neighbour's answer, not counting TCP's. TCP's connections know what is not delivered,
  /// and nobody needs the packets of closed ones.
  [[nodiscard]] std::uint32_t waiting_datagrams() const;

 private:
  struct Announcement {
    std::uint8_t left = 0;
    Instant at = kNever;
    Instant defended = Instant::min();
    std::uint32_t claimed = 0;  // the last of our addresses that another host has claimed
    MacAddress claimant;
  };

  struct Heard {
    std::uint32_t address = 0;
    bool due = false;  // take_announced() has not returned it yet
    Instant at = Instant::min();
  };

  void hear(Instant now, std::uint32_t address);
  void on_conflict(Context& ctx, std::uint16_t port, const MacAddress& sender, std::uint32_t sender_ip);
  void on_request(Context& ctx, std::uint16_t port, const MacAddress& sender, std::uint32_t sender_ip,
                  std::uint32_t target_ip);
  void doubt(Context& ctx, std::uint16_t port, const MacAddress& sender, std::uint32_t sender_ip);
  void resolved(Context& ctx, std::uint16_t name, const MacAddress& mac);
  void send_waiting(Context& ctx, std::uint16_t name);
  void send_one(Context& ctx, std::uint16_t port, Packet* frame);
  void ask(Context& ctx, std::uint16_t name);
  void grow_stale(const Context& ctx, std::uint16_t name);
  void expire(Context& ctx, std::uint16_t name);
  void fail(Context& ctx, std::uint16_t name);
  void announce_due(Context& ctx);
  void announce(Context& ctx, std::uint16_t port);

  struct Message {
    std::uint16_t operation = 0;
    std::uint32_t sender_ip = 0, target_ip = 0;
    MacAddress target_mac;                    // the target MAC in the ARP body
    MacAddress to = MacAddress::broadcast();  // the destination MAC of the frame
  };
  bool send(Context& ctx, std::uint16_t port, const Message& message);

  const RouteTable& routes_;
  StackCounters& counters_;
  Duration reachable_, retry_;
  std::uint8_t max_attempts_;
  std::uint32_t max_queue_;
  NeighbourTable table_;
  PacketList failed_, stranded_;
  std::array<Announcement, Context::kMaxPorts> announcements_{};
  Instant next_announcement_ = kNever;
  std::array<Heard, kHeard> heard_{};
  std::uint32_t heard_due_ = 0;
};

}  // namespace bypass
