// PortSet: the process's ports, opened late and together.
//
// The first call that needs the wire opens them (accept, a wait, connect, send). A listen alone leaves it to the
// progress thread some tens of milliseconds later, if the process is still alive then (a daemon's parent is not).
// Opening takes milliseconds and happens outside the shard's lock.
//
// In a family one process owns the ports; the shard's Wires name it. The others follow: relays take the ports' places.
// When the owner has gone, the first process that notices opens the ports. It uses a new copy of the plugin if it has
// inherited one that was in use.
//
// For ports that share their interface with the kernel, it follows the kernel's changes of the interface.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "config/config.h"
#include "fastpath/link/link_device.h"
#include "fastpath/shm/device.h"
#include "observe/reasons.h"
#include "runtime/family/handovers.h"
#include "runtime/ports/plugin.h"
#include "runtime/routing/kernel_watch.h"
#include "runtime/routing/live_network.h"
#include "socket/shard.h"

namespace bypass::runtime {

class PortSet {
 public:
  explicit PortSet(const Config& config) : config_(config), network_(config) {}

  /// The ports' addresses and routes, as far as the kernel has reported changes.
  [[nodiscard]] const LiveNetwork& network() const { return network_; }
  /// Reads the kernel's notifications about shared interfaces, and reads everything again if it may have changed.
  /// Called by a thread of the program if no other thread does so.
  void hear_kernel();
  /// The same, and also updates the stack and the devices if this process has the ports. For the progress thread: at
  /// its start, and when kernel_descriptor() is readable.
  void follow_kernel(socket::Shard& shard);
  /// Readable if the kernel has notifications; -1: the kernel is not asked.
  [[nodiscard]] int kernel_descriptor() const { return watch_.descriptor(); }
  /// For how long the kernel should not be asked again: with many routes, asking takes long.
  [[nodiscard]] Duration kernel_pause() const;

  struct Problem {
    observe::Reason reason;
    std::string text;  // a complete text
  };
  /// The cheap check at the first internet socket: interface exists, socket folder is writable, plugin exists, device
  /// arguments are understood. Opens nothing; loads a plugin only for arguments that no other code can read.
  bool check(std::vector<Problem>& problems);

  /// `call` is called once, by the thread that opened, when every port was tried and before other threads see them
  /// open.
  void on_tried(void (*call)(const PortSet&)) { tried_ = call; }

  /// Opens the ports and gives them to the shard, or follows the process of the family that has them. The first caller
  /// does the work, and others wait. True if there is at least one port. A port that fails is reported once and not
  /// tried again.
  bool open(socket::Shard& shard);
  [[nodiscard]] bool opened() const { return state_.load(std::memory_order_acquire) == State::kOpen; }
  /// True if they are open in another process.
  [[nodiscard]] bool following() const { return following_.load(std::memory_order_acquire); }
  /// For an owner: leaves a wire that does not admit this process to another process of the family, if one may be
  /// admitted.
  void leave_forbidden(socket::Shard& shard);
  /// For a follower: the owner may be gone. If it is, and the wire is needed, takes its place. If the wire is not
  /// needed, it has no owner from then on, and references of dead processes are released.
  void look_after_owner(socket::Shard& shard);
  /// For a follower, at its last look: the wire is needed, and no process could take it. To be tried again.
  [[nodiscard]] bool missed() const { return missed_; }
  /// At the process's end: keeps the ports open until close(), whatever the progress thread is asked for, so that the
  /// caller may use them without a lock. False: this process does not own open ports.
  bool keep_to_the_end();
  [[nodiscard]] bool any_link_is_up() const;
  /// For an owner's ports: whether a wire does not admit this process.
  [[nodiscard]] bool any_is_forbidden() const;
  /// Whether a link that is down has its other end: see Port::expects_link(). So does one that has just been taken
  /// over.
  [[nodiscard]] bool any_link_is_expected(Instant now) const;
  [[nodiscard]] static bool owner_lives(socket::Shard& shard);
  [[nodiscard]] bool failed() const { return state_.load(std::memory_order_acquire) == State::kFailed; }
  /// Whether ports[index] works (or was not tried yet).
  [[nodiscard]] bool usable(std::size_t index) const;

  /// To be called before the process leaves its family: the family keeps the wire, and this process opens it no more.
  /// `why`: the text for sockets to its addresses from then on.
  void give_up(socket::Shard& shard, const std::string& why);
  /// To be called before the process leaves its family for another arena, whose ports it will follow: closes what is
  /// open.
  void leave(socket::Shard& shard);
  /// Whether the ports are lent to a family of fewer rights (Wires::lent), so that nobody here opens them.
  [[nodiscard]] static bool lent(socket::Shard& shard);
  /// For the progress thread, while the ports are lent: closes what this process has open. When the others have ended,
  /// the ports are this family's again.
  void lend(socket::Shard& shard);
  /// For a driver (driver.h), before it has an arena: opens the ports. False: none could be opened.
  bool open_apart();
  /// For a driver: whether the other end is there.
  [[nodiscard]] bool is_linked_apart();
  /// For a driver, after that: serves the family of the arena with the ports. False: a process of that family has
  /// ports.
  bool serve_apart(socket::Shard& shard);

  /// Around an exec in which the process hands its sockets on (life/next_image.h): no thread opens the ports, or takes
  /// them over, from hold_for_exec() to go_on_after_exec(). close_for_exec() closes what is open; another process may
  /// go on with the wire.
  void hold_for_exec(socket::Shard& shard);
  void close_for_exec(socket::Shard& shard) { shut(shard); }
  void go_on_after_exec();
  /// The flows of ports that share their interface lie in handovers meanwhile, which the next image has, too.
  [[nodiscard]] const Handovers& handovers() const { return handovers_; }
  void take_handovers(std::uint32_t id, std::span<const int> descriptors) { handovers_.take_up(id, descriptors); }

  /// At the process's end: closes what is open, with the shard's lock free; another process may go on with the wire.
  void close(socket::Shard& shard);
  /// Around a fork: no thread opens or takes over meanwhile. The first fork makes the handovers.
  void hold_for_fork(socket::Shard& shard);
  void let_go_after_fork();
  /// To be called first in a forked child: async-signal-safe, closes the inherited wire descriptors. It may open or
  /// follow again.
  void drop_in_child();
  /// After leave(), in a process that has closed its ports and closes its own descriptors next: forgets those, and
  /// keeps the plugins. A plugin's threads go on, and its descriptors stay open until protect_plugins().
  void keep_plugins_alone();
  void protect_plugins() { plugins_.protect_descriptors(true); }
  /// Around closing everything that was the parent's, in a child.
  void hide_handovers() const { handovers_.hide_in_child(); }
  void show_handovers() const { handovers_.show_in_child(); }
  /// For a child that does not use the wire: it must not keep the flows of others.
  void drop_handovers() { handovers_.drop(); }
  /// For a follower, when another process has become the owner: handovers that the owner does not have keep no flows.
  void look_at_handovers(socket::Shard& shard);

  struct Entry {
    Backend* backend = nullptr;
    Port* port = nullptr;
    Backend* link_backend = nullptr;
    fastpath::LinkDevice* links = nullptr;  // RDMA links beside it
    std::string links_problem;              // why there are no links, if they were asked for
    std::string problem;
    bool tried = false;
    bool taken = false;       // another process has it, and only one can
    std::uint16_t index = 0;  // in the shard's context
  };
  [[nodiscard]] const std::vector<Entry>& entries() const { return entries_; }

 private:
  enum class State : std::uint8_t { kClosed, kOpening, kOpen, kFailed };
  void open_or_follow(socket::Shard& shard);
  bool call_driver(socket::Shard& shard);
  void report_loss() const;
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
  void make_handovers(socket::Shard& shard);
  void keep_flows(socket::Shard& shard);
  /// Once in a process.
  void record_unguarded(const std::string& interface, const std::string& why);
  void look_whether_guarded(const socket::Wires& wires);
  Backend* backend_for(std::size_t index, std::string& problem);
  Problem check_one(std::size_t index);

  const Config& config_;
  std::atomic<State> state_{State::kClosed};
  void (*tried_)(const PortSet&) = nullptr;
  std::vector<Entry> entries_;
  std::vector<Entry> apart_;  // opened, and not given to a shard yet
  /// Links within the host, of all ports.
  std::unique_ptr<fastpath::shm::ShmDevice> shm_links_;
  bool loss_told_ = false, unguarded_told_ = false;
  bool missed_ = false;   // used by the progress thread
  Instant taken_over_{};  // when this process opened ports that the family had before
  bool kept_ = false;     // until the process ends; changed and read with the ports' lock held
  Handovers handovers_;
  std::string refused_;  // why the ports did not open here, if they were left to another process
  PluginSet plugins_;
  LiveNetwork network_;
  KernelWatch watch_;
  bool watch_failed_ = false;
  std::atomic<Duration> next_look_{};  // when to read the kernel's network next, by CLOCK_MONOTONIC
  std::vector<PortConfig> applied_;    // what the stack was told
  std::atomic<bool> following_{false};
  std::vector<std::unique_ptr<socket::RelayPort>> relays_;
};

}  // namespace bypass::runtime
