// ARP (RFC 826, with RFC 1122 §2.3.2 and RFC 5227): who has an address, and telling others that we have ours.
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

  /// A received ARP frame; takes it over. `broadcast`: it came to a group address.
  void on_packet(Context& ctx, std::uint16_t port, Packet* frame, bool broadcast);
  void on_timers(Context& ctx);
  /// What was asked on that port's dead link is asked once more, from the beginning; what was known is asked again by
  /// who uses it.
  void on_link_up(Context& ctx, std::uint16_t port);
  [[nodiscard]] Instant next_timeout() const { return std::min(table_.next_deadline(), next_announcement_); }

  /// The entry of a neighbour that somebody wants to send to: made and asked for where there is none, asked
  /// again where it is stale. 0 when the table is full of unanswered questions.
  [[nodiscard]] std::uint16_t use(Context& ctx, std::uint16_t port, std::uint32_t address);
  [[nodiscard]] const Neighbour& entry(std::uint16_t name) const { return table_[name]; }
  /// Keeps a whole frame (destination MAC still zero) until the neighbour answers. The oldest one gives way. One in
  /// the arena leaves as a frame of the port's.
  void wait(Context& ctx, std::uint16_t name, Packet* frame);
  /// The upper layer has heard from the neighbour (RFC 4861 §7.3.1).
  void confirm(Instant now, std::uint16_t name);
  /// On each port that keeps what was sent, the neighbour heard of last is asked once more: its answer comes behind
  /// what was sent before, which has been taken by then.
  void ask_behind(Context& ctx);
  /// Addresses on a link of ours that hosts have announced (RFC 5227 §2.3, or by an unasked reply) since the last call;
  /// how many were written. Such a host may have begun anew and know no connection. An address counts once a second,
  /// and kHeard addresses a second count: a storm beyond that is not heard. (Hosts announce twice, two seconds apart.)
  static constexpr std::size_t kHeard = 64;
  using Announced = std::array<IpAddress, kHeard>;
  [[nodiscard]] std::size_t take_announced(Announced& addresses);

  /// The address of ours that another host has claimed at that port last, and that host; 0: none has.
  [[nodiscard]] std::uint32_t claimed(std::uint16_t port) const { return announcements_[port].claimed; }
  [[nodiscard]] const MacAddress& claimant(std::uint16_t port) const { return announcements_[port].claimant; }

  /// Neighbours with a known MAC that have not answered yet.
  [[nodiscard]] std::size_t asked() const;
  /// Moves the frames that wait to the arena. Returns how many of them are still a port's.
  std::size_t move_waiting_to_arena(Context& ctx);
  /// Frames whose neighbour did not answer; they become the caller's.
  [[nodiscard]] PacketList take_failed();

  /// The port's addresses are new or its device has been opened afresh: what was known may be wrong, and others
  /// are told (at the next on_timers). Frames that waited are handed out by take_stranded().
  void interface_changed(std::uint16_t port);
  [[nodiscard]] PacketList take_stranded();

  [[nodiscard]] std::uint32_t generation() const { return table_.generation(); }
  void bump_generation() { table_.bump_generation(); }
  /// After a death: frames that wait become the caller's (who can see them only where their port is open) …
  [[nodiscard]] PacketList take_waiting();
  /// … and everything is forgotten.
  void clear();
  /// Packets that wait for an answer, without TCP's: its connections know what is not delivered, and what one that has
  /// been closed has asked for is nobody's.
  [[nodiscard]] std::uint32_t waiting_datagrams() const;

 private:
  struct Announcement {
    std::uint8_t left = 0;
    Instant at = kNever;
    Instant defended = Instant::min();
    std::uint32_t claimed = 0;  // an address of ours, by another host, last
    MacAddress claimant;
  };

  struct Heard {
    std::uint32_t address = 0;
    bool due = false;  // to be taken
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
    MacAddress target_mac;                    // in the ARP body
    MacAddress to = MacAddress::broadcast();  // of the frame
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
