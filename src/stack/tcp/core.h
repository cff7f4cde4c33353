// Core: what the engine's parts share, and Env, which each of their functions gets.
//
// Lies in the arena with the Engine. The parts are free functions by RFC-sized idea: input*.cc takes
// segments, output.cc sends, timers.cc fires, listener.cc and time_wait.cc hold what is not a whole
// connection. The caller holds the shard's lock.
#pragma once

#include <array>
#include <cstdint>

#include "stack/context.h"
#include "stack/counters.h"
#include "stack/events.h"
#include "stack/ip/network.h"
#include "stack/memory/memory.h"
#include "stack/memory/slab.h"
#include "stack/tcp/engine.h"
#include "stack/tcp/flow_table.h"
#include "stack/tcp/open/isn.h"
#include "stack/tcp/open/listener.h"
#include "stack/tcp/open/time_wait.h"
#include "stack/tcp/recent_resets.h"
#include "stack/tcp/rtt.h"
#include "stack/tcp/tcb.h"
#include "stack/timer_wheel.h"

namespace bypass::tcp {

/// A singly linked list of Tcbs, first in, first out. It is an index.
struct TcbList {
  Tcb* head = nullptr;
  Tcb* tail = nullptr;

  template <Tcb* Tcb::*next>
  void push(Tcb& tcb) {
    tcb.*next = nullptr;
    (tail != nullptr ? tail->*next : head) = &tcb;
    tail = &tcb;
  }
};

struct Core {
  Core(Memory& m, Network& n, EventList& e, StackCounters& c, const EngineConfig& k)
      : memory(m), network(n), events(e), counters(c), config(k) {}

  Memory& memory;
  Network& network;
  EventList& events;
  StackCounters& counters;
  EngineConfig config;
  Secret secret;
  RtoBounds rto_bounds;

  Slab<Tcb> tcbs{memory};
  Slab<Listener> listeners{memory};
  TimeWaits time_waits{memory};
  FlowTable flows;
  ListenerTable ports;
  TimerWheel<Tcb, &Tcb::wheel> wheel;
  RecentResets recent_resets;

  TcbList burst;                                    // touched by this burst, through burst_next
  std::array<TcbList, Context::kMaxPorts> blocked;  // output waits for room on that port, through blocked_next
  std::uint32_t blocked_ports = 0;                  // bit n: blocked[n] is not empty
  Tcb* pinned = nullptr;                            // through pinned_next
  TcbList starved;                                  // writers that found no memory, through accept_next
  void* current = nullptr;                          // the object that is being changed
  std::uint32_t next_ephemeral = 0;
  std::uint32_t orphans = 0;  // closed connections that have not ended: Tcb::counted

  /// Received frames that readers have not taken yet, and how many of them the ports can spare.
  std::uint32_t held_frames = 0;
  std::uint32_t frame_budget = 1024;
  Instant budget_checked{};
};

struct Engine::Impl : Core {
  using Core::Core;
};

/// One entry into the engine: the shard's half and the process's half.
struct Env {
  Core& core;
  Context& ctx;

  [[nodiscard]] Instant now() const { return ctx.now; }
  [[nodiscard]] StackCounters& count() const { return core.counters; }
  void post(Tcb& tcb, std::uint16_t events) {
    if (tcb.overlay != nullptr) [[unlikely]]
      return post_overlaid(tcb, events);
    core.events.post(tcb.event, events);
  }
  /// Under an overlay, the overlay decides which events the program gets. It is called at the end of the burst.
  void post_overlaid(Tcb& tcb, std::uint16_t events);
};

}  // namespace bypass::tcp
