// Stack: one shard's protocols, whole: Ethernet, ARP, IPv4, ICMP, UDP, TCP.
//
// Pure: no system call, no clock, no global, no thread. Lies in the arena; everything that a process brings
// (ports, time) comes in with the Context. A loop over a simulated port and a counter for a clock is a
// complete environment:
//
//   ctx.now = t; n = port.receive(0, frames); stack.on_frames(ctx, 0, {frames, n}); stack.on_timers(ctx);
//   ctx.flush(); stack.on_flushed(ctx); while (EventNode* e = stack.events().take()) …;
//   sleep until stack.next_timeout()
#pragma once

#include <cstdint>
#include <span>

#include "stack/context.h"
#include "stack/counters.h"
#include "stack/events.h"
#include "stack/ip/network.h"
#include "stack/memory/memory.h"
#include "stack/result.h"
#include "stack/tcp/engine.h"
#include "stack/time.h"
#include "stack/udp/udp.h"

namespace bypass {

struct StackConfig {
  tcp::EngineConfig tcp;
  Duration arp_reachable = std::chrono::seconds(60);  // then refreshed by use
  Duration arp_retry = std::chrono::seconds(1);
  unsigned arp_attempts = 3;
  unsigned arp_queue = 64;  // packets waiting for one neighbour: one datagram of 64 KiB in fragments, and some
  std::uint32_t fragment_memory = 4U << 20;  // bytes that fragments may hold while they wait for the others; 0: none
  bool checksum_offload = true, tso = true;
};

class Stack {
 public:
  /// Places a Stack in memory's arena; null when the budget cannot hold the smallest one.
  static Stack* create(Memory& memory, const StackConfig& config);

  /// Binds addresses to the port with that index in the Context; announces them (gratuitous ARP, RFC 5227 §3)
  /// at the next poll. Called again with the same index when the port has been opened afresh.
  Result<bool> set_interface(std::uint16_t port, const InterfaceConfig& config);

  /// Other addresses, routes or another MTU for a port that goes on as it is. Connections from an address that is no
  /// longer ours stay, silent until it is back; those whose way has another MTU cut their segments by it. As
  /// set_interface() otherwise.
  Result<bool> change_interface(Context& ctx, std::uint16_t port, const InterfaceConfig& config);

  /// One received burst of one port. Takes the frames over. ctx.now is its arrival time.
  void on_frames(Context& ctx, std::uint16_t port, std::span<Packet* const> frames);
  void on_timers(Context& ctx);
  /// A port's link has come up again: what is unanswered is sent once more at once, without the patience and the
  /// doubling of a timeout, for nothing says that the path is congested.
  void on_link_up(Context& ctx, std::uint16_t port);
  [[nodiscard]] Instant next_timeout() const;
  /// Output that had to wait for room on a device; call once a poll.
  void resume_output(Context& ctx);
  [[nodiscard]] bool output_pending() const;
  /// Packets that were sent and have not left: they wait for a neighbour's address, for ourselves to take them, or in
  /// this process's transmit batches. What TCP has to send is its own to say (Engine::orphans).
  [[nodiscard]] std::size_t undelivered(const Context& ctx) const;
  /// Before the ports are closed: asks neighbours for an answer that comes behind all that was sent (Arp::ask_behind).
  void ask_behind(Context& ctx);
  /// How many have not answered.
  [[nodiscard]] std::size_t asked() const;
  /// After ctx.flush(): frames that referred to send buffers have left, those may move and go again.
  void on_flushed(Context& ctx);

  /// What a steered interface's device has to be told, from the beginning: after it was opened. See FlowLog.
  void steer_all(Context& ctx);
  /// What it has been told, or is to be.
  void for_each_steered(void (*each)(void* argument, const FlowSpec&), void* argument) const;

  /// What every process of a family must be able to read: exchanges each port's frame that the stack holds from call
  /// to call (received and not read, behind a hole, waiting for a neighbour or for other fragments) for a copy in the
  /// arena and gives it back. To be called where the ports are open. Returns how many frames are still a port's: memory
  /// was used up, or a thread reads them without the lock (tcp::Engine::peek), which `being_read` says of a
  /// connection's user pointer; a later call tries again. Frames in transmit batches are not held by the stack.
  std::size_t move_frames_to_arena(Context& ctx, bool (*being_read)(const void* user) = nullptr);

  Network& network();
  tcp::Engine& tcp();
  udp::Engine& udp();
  EventList& events();
  StackCounters& counters();
  Memory& memory();

  /// After a death inside the lock: all indices anew; the object that was being changed is given up. Marks the
  /// blocks of the whole stack as in use: the caller has begun Memory's rebuild, marks what is its own, and
  /// finishes it.
  void rebuild(Context& ctx);

 private:
  Stack() = default;
  struct Impl;
  Impl* impl_ = nullptr;
};

}  // namespace bypass
