// Stack: one shard's protocols, whole: Ethernet, ARP, IPv4, ICMP, UDP, TCP.
//
// Pure: no system call, no clock, no global, no thread. It lies in the arena; what belongs to a process (ports, time)
// comes in with the Context. A loop over a simulated port, with a counter as the clock, is a complete environment:
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
  // bytes that fragments may hold while they wait for the others; 0: fragments are dropped
  std::uint32_t fragment_memory = 4U << 20;
  bool checksum_offload = true, tso = true;
};

class Stack {
 public:
  /// Places a Stack in memory's arena; null when the budget cannot hold the smallest one.
  static Stack* create(Memory& memory, const StackConfig& config);

  /// Binds addresses to the port with that index in the Context; announces them (gratuitous ARP, RFC 5227 §3)
  /// at the next poll. Called again with the same index when the port has been opened afresh.
  Result<bool> set_interface(std::uint16_t port, const InterfaceConfig& config);

  /// Changes addresses, routes or the MTU of a port that stays open. Connections from an address that is no longer ours
  /// stay, silent until the address is back. Connections with another path MTU change the size of their segments.
  /// Otherwise as set_interface().
  Result<bool> change_interface(Context& ctx, std::uint16_t port, const InterfaceConfig& config);

  /// Takes over one received burst of one port. ctx.now is the burst's arrival time.
  void on_frames(Context& ctx, std::uint16_t port, std::span<Packet* const> frames);
  void on_timers(Context& ctx);
  /// A port's link has come up again. What is unanswered is sent once more at once, without waiting for a timeout and
  /// without doubling it, because nothing shows that the path is congested.
  void on_link_up(Context& ctx, std::uint16_t port);
  [[nodiscard]] Instant next_timeout() const;
  /// Continues output that had to wait for room on a device. To be called once a poll.
  void resume_output(Context& ctx);
  [[nodiscard]] bool output_pending() const;
  /// How many packets were sent and have not left. They wait for a neighbour's address, for delivery to ourselves, or
  /// in this process's transmit batches. TCP's unsent bytes are not counted here (Engine::orphans).
  [[nodiscard]] std::size_t undelivered(const Context& ctx) const;
  /// To be called before the ports are closed: asks neighbours for an answer that follows everything that was sent
  /// (Arp::ask_behind).
  void ask_behind(Context& ctx);
  /// How many neighbours have not answered.
  [[nodiscard]] std::size_t asked() const;
  /// For how many neighbours with an unknown MAC packets wait. undelivered() counts only datagrams among them.
  [[nodiscard]] std::size_t unresolved() const;
  /// To be called after ctx.flush(): frames that referred to send buffers have left, so these buffers may move or be
  /// freed again.
  void on_flushed(Context& ctx);

  /// Notes all flows for a steered interface's device that was just opened. See FlowLog.
  void steer_all(Context& ctx);
  /// Calls `each` for every flow that the device was told of, or will be.
  void for_each_steered(void (*each)(void* argument, const FlowSpec&), void* argument) const;

  /// Makes readable by the whole family what the stack holds from call to call: frames received and not read, frames
  /// after a hole, frames that wait for a neighbour or for fragments. Each port's frame is copied to the arena and
  /// given back. To be called in the process that has the ports open. Returns how many frames still belong to a port:
  /// memory was used up, or a thread reads them without the lock (tcp::Engine::peek), which `being_read` reports for a
  /// connection's user pointer. A later call tries again. Frames in transmit batches do not count.
  std::size_t move_frames_to_arena(Context& ctx, bool (*being_read)(const void* user) = nullptr);

  Network& network();
  tcp::Engine& tcp();
  udp::Engine& udp();
  EventList& events();
  StackCounters& counters();
  Memory& memory();

  /// After a death inside the lock: rebuilds all indices, and gives up the object that was being changed. Marks the
  /// blocks of the whole stack as in use. The caller has begun Memory's rebuild, marks its own blocks, and finishes the
  /// rebuild.
  void rebuild(Context& ctx);

 private:
  Stack() = default;
  struct Impl;
  Impl* impl_ = nullptr;
};

}  // namespace bypass
