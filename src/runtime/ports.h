// PortSet: the process's ports, opened late and together.
//
// The first call that needs the wire opens them (accept, a wait, connect, send); a bare listen leaves it to
// the progress thread some tens of milliseconds later, in a process that is still alive then (a daemon's
// parent is not). Opening takes milliseconds and happens outside of the shard's lock.
//
// In a family one process owns the ports, by its name in the shard's Wires. The others follow: relays stand in the
// ports' places. When the owner has gone, the one that notices first opens the ports afresh, in a fresh copy of the
// plugin if this process has inherited one that was in use.
//
// Of ports that share their interface with the kernel, it follows what the kernel changes there.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "config/config.h"
#include "fastpath/link/link_device.h"
#include "fastpath/shm/device.h"
#include "observe/reasons.h"
#include "runtime/family/handovers.h"
#include "runtime/plugin.h"
#include "runtime/routing/kernel_watch.h"
#include "runtime/routing/live_network.h"
#include "socket/shard.h"

namespace bypass::runtime {

class PortSet {
 public:
  explicit PortSet(const Config& config) : config_(config), network_(config) {}

  /// The ports' addresses and routes, as far as the kernel has told of changes.
  [[nodiscard]] const LiveNetwork& network() const { return network_; }
  /// Hears what the kernel tells of interfaces that are shared with it, and asks for all of it if it may have changed.
  /// From a thread of the program's, where nobody else does so.
  void hear_kernel();
  /// The same, and the stack and the devices follow where the ports are this process's. The progress thread's, at its
  /// start and when kernel_descriptor() says so.
  void follow_kernel(socket::Shard& shard);
  /// Readable when the kernel has told something; -1: it is not asked.
  [[nodiscard]] int kernel_descriptor() const { return watch_.descriptor(); }
  /// For how long that is to be left alone: where there are many routes, asking takes its time.
  [[nodiscard]] Duration kernel_pause() const;

  struct Problem {
    observe::Reason reason;
    std::string text;  // complete
  };
  /// The cheap check at the first internet socket: interface there, socket folder writable, plugin there, device
  /// arguments understood. Opens nothing; loads a plugin only for the arguments that nobody else can read.
  bool check(std::vector<Problem>& problems);

  /// Called once, by the one that opened, when every port has been tried and before others see them open.
  void on_tried(void (*call)(const PortSet&)) { tried_ = call; }

  /// Opens the ports and gives them to the shard, or follows the process of the family that has; the first caller
  /// does the work, others wait for it. True when at least one port is there. A port that fails is reported once and
  /// not tried again.
  bool open(socket::Shard& shard);
  [[nodiscard]] bool opened() const { return state_.load(std::memory_order_acquire) == State::kOpen; }
  /// Opened, and another process's.
  [[nodiscard]] bool following() const { return following_.load(std::memory_order_acquire); }
  /// An owner's: a wire that does not let this process in is left to another one of the family, if there is one that
  /// may do better.
  void leave_forbidden(socket::Shard& shard);
  /// A follower's: the owner may be gone. Takes its place if it is and the wire is needed; else it is nobody's from
  /// then on, and what the dead referred to is swept.
  void look_after_owner(socket::Shard& shard);
  /// A follower's, as it has seen last: the wire is needed, and nobody could take it. To be tried again.
  [[nodiscard]] bool missed() const { return missed_; }
  [[nodiscard]] bool any_link_is_up() const;
  /// Of an owner's ports: the wire does not let this process in.
  [[nodiscard]] bool any_is_forbidden() const;
  /// Of a link that is down the other end is there: see Port::expects_link().
  [[nodiscard]] bool any_link_is_expected() const;
  [[nodiscard]] static bool owner_lives(socket::Shard& shard);
  [[nodiscard]] bool failed() const { return state_.load(std::memory_order_acquire) == State::kFailed; }
  /// Whether ports[index] serves (or has not been tried yet).
  [[nodiscard]] bool usable(std::size_t index) const;

  /// Before the process leaves its family: the wire is that one's, and this process opens it no more. `why` is what is
  /// said of sockets to its addresses from then on.
  void give_up(socket::Shard& shard, const std::string& why);
  /// Before the process leaves its family for another arena, whose ports are to be followed there: closes what is open.
  void leave(socket::Shard& shard);
  /// The ports are lent to a family of fewer rights (Wires::lent), and nobody here opens them.
  [[nodiscard]] static bool lent(socket::Shard& shard);
  /// The progress thread's, while they are: closes what this process has of them. When the others have ended they are
  /// this family's again.
  void lend(socket::Shard& shard);
  /// A driver's (driver.h), before it has an arena: opens the ports. False: none of them.
  bool open_apart();
  /// … whose other end is there.
  [[nodiscard]] bool is_linked_apart();
  /// … and then serves the family of the arena with them. False: a process of it has ports.
  bool serve_apart(socket::Shard& shard);

  /// At the process's end: closes what is open, with the shard's lock free; another process may go on with it.
  void close(socket::Shard& shard);
  /// Around a fork: nobody is opening or taking over meanwhile. The first fork makes the handovers.
  void hold_for_fork(socket::Shard& shard);
  void let_go_after_fork();
  /// A forked child's first act: async-signal-safe, drops the inherited wire descriptors. It may open or follow anew.
  void drop_in_child();
  /// Around the closing of all that was the parent's own, in a child.
  void hide_handovers() const { handovers_.hide_in_child(); }
  void show_handovers() const { handovers_.show_in_child(); }
  /// A child that has nothing to do with the wire: the flows of others are not its to keep.
  void drop_handovers() { handovers_.drop(); }
  /// A follower's, when another process has become the owner: handovers that it does not have keep nobody's flows.
  void look_at_handovers(socket::Shard& shard);

  struct Entry {
    Backend* backend = nullptr;
    Port* port = nullptr;
    Backend* link_backend = nullptr;
    fastpath::LinkDevice* links = nullptr;  // over RDMA beside it
    std::string links_problem;              // why there are none, where they were asked for
    std::string problem;
    bool tried = false;
    bool taken = false;       // another process has what only one can have
    std::uint16_t index = 0;  // in the shard's context
  };
  [[nodiscard]] const std::vector<Entry>& entries() const { return entries_; }

 private:
  enum class State : std::uint8_t { kClosed, kOpening, kOpen, kFailed };
  void open_or_follow(socket::Shard& shard);
  bool call_driver(socket::Shard& shard);
  void tell_loss() const;
  static bool is_refused(socket::Shard& shard);
  static bool somebody_may_open(socket::Shard& shard);
  static bool is_missed(socket::Shard& shard);
  void take_over(socket::Shard& shard);
  bool claim(socket::Shard& shard);
  bool follow(socket::Shard& shard);
  void attach_relays(socket::Shard& shard);
  void open_one(std::size_t index, std::uint16_t place, Entry& entry);
  void open_links(std::size_t index, Entry& entry);
  void open_shm_links();
  void add_link_devices(socket::Shard& shard);
  std::uint16_t try_all(std::vector<Entry>& made);
  bool open_all(socket::Shard& shard);
  void shut(socket::Shard& shard);
  void install(socket::Shard& shard, const std::vector<Entry>& made);
  void look_at_kernel(bool anew);
  [[nodiscard]] static InterfaceConfig interface_of(const Entry& entry, const PortConfig& port);
  bool set_interface(socket::Shard& shard, const Entry& entry, const PortConfig& port, bool known);
  void apply_changes(socket::Shard& shard);
  void close_ports(socket::Shard& shard);
  void give_up_claim(socket::Shard& shard);
  void keep_flows(socket::Shard& shard);
  /// Once a process.
  void record_unguarded(const std::string& interface, const std::string& why);
  void look_whether_guarded(const socket::Wires& wires);
  Backend* backend_for(std::size_t index, std::string& problem);
  Problem check_one(std::size_t index);

  const Config& config_;
  std::atomic<State> state_{State::kClosed};
  void (*tried_)(const PortSet&) = nullptr;
  std::vector<Entry> entries_;
  std::vector<Entry> apart_;  // opened, and nobody's yet
  /// Links within the host, of all ports.
  std::unique_ptr<fastpath::shm::ShmDevice> shm_links_;
  bool loss_told_ = false, unguarded_told_ = false;
  bool missed_ = false;  // the progress thread's
  Handovers handovers_;
  std::string refused_;  // why the ports did not open here, when they were left to another process
  PluginSet plugins_;
  LiveNetwork network_;
  KernelWatch watch_;
  bool watch_failed_ = false;
  std::atomic<Duration> next_look_{};  // at the kernel's network, by CLOCK_MONOTONIC
  std::vector<PortConfig> applied_;    // what the stack has been told of
  std::atomic<bool> following_{false};
  std::vector<std::unique_ptr<socket::RelayPort>> relays_;
};

}  // namespace bypass::runtime
