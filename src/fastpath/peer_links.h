// PeerLinks: who of a family's connections goes over which link, and the links' own life: asked for, set up, used,
// lost.
//
//   a framed connection to a peer without a link ──► LINK_REQ … on that connection, in the background
//   link up ──► each framed connection to that peer is offered a lane, and cuts to it
//   link fails ──► its connections go on over TCP; after a pause the next one asks again
//
// A peer is an address and the tag of its stack, so that two stacks behind one address are two peers. A link's number
// is chosen at random by who asks for it and told to nobody else: to know it is the right to open lanes on it.
//
// A port may have several devices, in their order: when the first makes no link to a peer, the next is tried at once.
// Shared memory is asked for only where both tags name the same place, and a connection that no device of both ends can
// carry is plain TCP from its first byte.
//
// What all processes of a family need lies in the arena (PeerTable); queue pairs and devices are the owner's of the
// ports, who takes messages and writes. Another process leaves its lane in the link's queue and has the owner called.
//
// Everything is called with the shard's lock held.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "fastpath/framed.h"
#include "fastpath/link_device.h"
#include "fastpath/peer_link.h"
#include "fastpath/reported_once.h"
#include "stack/memory.h"

namespace bypass::fastpath {

class PeerLinks final : public Links {
 public:
  static constexpr unsigned kPlaceBits = 20, kHostBits = 12;
  struct Config {
    std::uint32_t link_memory = 0;          // bytes a link, a power of two (LinkLayout); 0: by the arena's budget
    std::uint64_t (*random)() = nullptr;    // 0: there are no random numbers to be had
    std::uint32_t tcp_window = 256U << 10;  // FramedConfig's
    std::uint8_t capabilities = kCapRoce;   // of the devices to come
    /// Where memory may be shared: kPlaceBits, of which the upper kHostBits are the host's and the others those of a
    /// run directory there. Equal ones may be another's by chance; who asks is then refused. 0: not known.
    std::uint32_t place = 0;
    /// Peers that are asked though a router is between: beyond the port's own subnets an experimental option goes only
    /// where it is known to be welcome (RFC 3692). Outlives the links.
    std::span<const Prefix> routed_peers{};
    /// A link is up, was not made, or has failed: its stage and reason; or, with kRefused, there is no reason to ask
    /// for one, its peer being nobody in particular where that has to do with none. May be null.
    void (*note)(const PeerLink& link) = nullptr;
  };

  /// Before the first connection. Without memory it makes no links: valid().
  PeerLinks(tcp::Engine& engine, Memory& memory, const Config& config);
  [[nodiscard]] bool valid() const { return table_ != nullptr; }
  [[nodiscard]] FramedTcp& framed() { return framed_; }
  [[nodiscard]] const Hooks& hooks() const { return framed_.hooks(); }
  [[nodiscard]] const PeerTable& table() const { return *table_; }

  // --- The owner of the ports
  /// Links to that port's peers are this device's to make, where those that were added before it make none; one a
  /// mover. It stays until drop_devices().
  void add_device(std::uint16_t port, LinkDevice& device);
  /// Whatever links the family had before are over: their devices were a process's that has gone.
  void begin_ownership(Context& ctx);
  /// Its links end, at once; the devices may be closed afterwards.
  void drop_devices(Context& ctx);
  [[nodiscard]] bool has_devices() const;
  /// A forked child: they are the parent's.
  void forget_devices();
  /// After a death inside the lock, between Memory's begin_rebuild() and finish_rebuild(), the connections being made
  /// anew already: links are over, and the next poll() ends them.
  void rebuild();

  /// Takes messages, gives connections their turn, sets links up. Returns the messages taken.
  std::size_t poll(Context& ctx);
  /// Writes what is due. By a process that is not the owner: false, the owner is to be called.
  [[nodiscard]] bool flush(Context& ctx);
  /// From now on the next message makes a descriptor readable. False: one is there.
  bool arm();
  /// What a sleeper watches beside the ports: devices and links.
  static constexpr std::size_t kMostDescriptors = Context::kMaxPorts * kMovers + PeerTable::kLinks;
  std::size_t wait_descriptors(std::span<int> out) const;
  /// Counts what happens to them; 0: there have been none.
  [[nodiscard]] std::uint32_t changes() const { return changes_; }
  [[nodiscard]] Instant next_timeout() const { return next_; }
  /// Whether a program's bytes have been held back since the last call (Lane::is_gathering). What lets them go comes
  /// over the link, so that is to be looked at soon though the program may call no more. By any thread, without the
  /// lock.
  [[nodiscard]] bool take_held() { return held_.exchange(false, std::memory_order_relaxed); }

  /// The link that carries a connection's bytes now, or null: for who shows it.
  [[nodiscard]] const PeerLink* link_of(const tcp::Tcb& tcb) const;
  /// Fails every link that is up, as a device's error would: for drills. Returns how many.
  std::size_t fail_all();

  // --- Short calls: of a connection whose two directions are on a lane, and that has nothing to say over TCP. They
  // need no time and bring about no event; where they come to more than that, take_turn() follows.
  struct ShortPath {
    tcp::Tcb* tcb = nullptr;
    Framed* framed = nullptr;
    PeerLink* link = nullptr;
    Link* mover = nullptr;
    explicit operator bool() const { return tcb != nullptr; }
  };
  /// Empty: it is not so, or the link is another process's.
  [[nodiscard]] ShortPath short_path(tcp::Tcb& tcb);
  enum class Glance : std::uint8_t {
    kNothing,
    kBytes,  // this connection has bytes; nobody has been told of them yet
    kOther,  // something else, which finish_glance() is for
  };
  /// One look at the link alone.
  Glance glance(const ShortPath& path);
  void finish_glance(Context& ctx, const ShortPath& path);
  /// What the connection has to be read, up to `most`; empty: nothing. Nullopt: it is not in one piece of the ring.
  [[nodiscard]] static std::optional<std::span<const std::byte>> readable_at_once(const ShortPath& path,
                                                                                  std::size_t most);
  /// False: take_turn() is to follow.
  [[nodiscard]] bool consume_at_once(const ShortPath& path, std::size_t bytes);
  /// So many bytes would go at once, in one message, and there is room for them.
  [[nodiscard]] bool may_write_at_once(const ShortPath& path, std::size_t bytes);
  /// Then, once they are committed to tcp::Engine.
  void write_at_once(const ShortPath& path, std::size_t bytes);
  void take_turn(Context& ctx, const ShortPath& path);

  // --- Links
  [[nodiscard]] bool wanted(const tcp::Tcb& tcb, const SynOption* theirs) override;
  void on_plain(const tcp::Tcb& tcb) override;
  [[nodiscard]] std::uint8_t note_of(const SynOption& theirs) const override;
  [[nodiscard]] std::span<const std::byte> memory(std::uint32_t link) override;
  [[nodiscard]] bool reads_ring(const tcp::Tcb& tcb, const Framed& framed) override;
  void on_change(Context& ctx, tcp::Tcb& tcb, Framed& framed) override;
  void on_link_record(Context& ctx, tcp::Tcb& tcb, Framed& framed, const Record& record,
                      std::span<const std::byte> body) override;
  [[nodiscard]] bool has_link_record(const tcp::Tcb& tcb, const Framed& framed) override;
  Record next_link_record(tcp::Tcb& tcb, Framed& framed, std::span<std::byte> body) override;
  bool on_gone(Context& ctx, tcp::Tcb& tcb, Framed& framed) override;

 private:
  using Stage = PeerLink::Stage;
  /// The owner's part of a link.
  struct Own {
    LinkSetup* setup = nullptr;
    Record record;  // to be sent on the link's carrier
    std::array<std::byte, kMaxLinkBody> body{};
    int descriptor = -1;
    bool has_record = false;
    bool given_up = false;
  };

  [[nodiscard]] PeerLink* find(std::uint32_t id);
  [[nodiscard]] PeerLink* link_to(const tcp::Tcb& tcb, const Framed& framed);
  [[nodiscard]] std::size_t index_of(const PeerLink& link) const {
    return static_cast<std::size_t>(&link - table_->links.data());
  }
  PeerLink* take_entry(const IpAddress& peer, std::uint32_t tag, std::uint16_t port);
  void free_entry(PeerLink& link);
  [[nodiscard]] bool is_idle(const PeerLink& link) const;
  [[nodiscard]] bool at_our_place(std::uint32_t tag) const {
    return config_.place != 0 && tag >> (32 - kPlaceBits) == config_.place;
  }
  /// Whether this peer may be asked for links.
  [[nodiscard]] bool may_ask(const Path& path) const;
  void tell_place(const tcp::Tcb& tcb, std::uint32_t tag);
  /// Notes why there is no link to somebody (or to nobody in particular), as if it had been refused: once, and not for
  /// each connection.
  void tell(Mover mover, const Path& path, const IpAddress& whom, Reason why);
  [[nodiscard]] LinkDevice* device_of(std::uint16_t port, Mover mover) const;
  [[nodiscard]] LinkDevice* device_of(const PeerLink& link) const { return device_of(link.port, link.mover); }
  LinkDevice* choose(const PeerLink& link, std::uint8_t& choice) const;
  template <typename F>
  void for_each_device(F&& f) const {
    for (const Devices& devices : devices_)
      for (LinkDevice* device : devices)
        if (device != nullptr) f(*device);
  }

  // --- Lanes
  void offer_to_carry(PeerLink& link, tcp::Tcb& tcb);
  void look_for_lane(Context& ctx, tcp::Tcb& tcb, Framed& framed);
  void answer_offer(tcp::Tcb& tcb, Framed& framed);
  bool list(PeerLink& link, tcp::Tcb& tcb, Framed& framed, LaneAddress& address);
  void unlist(PeerLink& link, Framed& framed);
  void free_place(PeerLink& link, std::uint16_t number);
  [[nodiscard]] bool may_read(const tcp::Tcb& tcb, const Framed& framed) const;
  void write(Context& ctx, PeerLink& link, Link& mover);
  [[nodiscard]] static tcp::Tcb* connection_of(const PeerLink& link, std::uint16_t number);
  [[nodiscard]] static bool is_missed(PeerLink& link);
  void run_lane(Context& ctx, PeerLink& link, std::uint16_t number);
  void run_all(Context& ctx, PeerLink& link);
  void sweep_ghosts(Context& ctx, PeerLink& link);

  // --- Who has which lane (lane_sharing.cc)
  [[nodiscard]] static bool may_look(const PeerLink& link, const Framed& framed);
  static void note_detached(PeerLink& link, Framed& framed);
  void share_lanes(Context& ctx, PeerLink& link);

  // --- A link's life (peer_links_life.cc)
  void want(Context& ctx, tcp::Tcb& tcb, Framed& framed);
  [[nodiscard]] std::uint32_t next_link_bytes() const;
  /// `at_ease`: its share; else the least that a link can have.
  bool allocate(PeerLink& link, bool at_ease);
  bool allocate_bytes(PeerLink& link, std::uint32_t bytes);
  void release_memory(PeerLink& link);
  void begin(Context& ctx, PeerLink& link);
  /// Links that have memory here, and of those the ones that peers have asked for and that are not up.
  struct Held {
    std::uint32_t of_peer = 0, of_address = 0, asked = 0, asked_by_address = 0;
  };
  [[nodiscard]] Held held_by(const IpAddress& peer, std::uint32_t tag) const;
  void on_request(Context& ctx, tcp::Tcb& tcb, Framed& framed, std::span<const std::byte> body);
  void decline_request(tcp::Tcb& tcb, Framed& framed, LinkHead head, Reason why);
  void poll_setup(Context& ctx, PeerLink& link);
  void offer_record(Context& ctx, PeerLink& link);
  void fail(PeerLink& link, Reason why);
  static void back_off(PeerLink& link, Reason why, Instant now);
  void refuse(PeerLink& link, Reason why, Instant now);
  void not_made(Context& ctx, PeerLink& link, Reason why);
  std::size_t look_for_credit(Context& ctx, PeerLink& link);
  std::size_t poll_link(Context& ctx, PeerLink& link);
  std::size_t take_messages(Context& ctx, PeerLink& link);
  void take_messages(Context& ctx, PeerLink& link, std::span<const Arrival> arrivals);
  void end(Context& ctx, PeerLink& link);
  void close(Context& ctx, PeerLink& link);
  void look_after(Context& ctx);
  void register_arena();
  void end_all(Context& ctx);
  void note(const PeerLink& link) const {
    if (config_.note != nullptr) config_.note(link);
  }
  void hold() {
    if (!held_.load(std::memory_order_relaxed)) held_.store(true, std::memory_order_relaxed);
  }
  void wait_until(Instant at) { next_ = at < next_ ? at : next_; }

  tcp::Engine& engine_;
  Memory& memory_;
  Config config_;
  PeerTable* table_;
  FramedTcp framed_;
  using Devices = std::array<LinkDevice*, kMovers>;
  std::array<Devices, Context::kMaxPorts> devices_{};  // of a port, in their order
  std::array<Own, PeerTable::kLinks> own_;
  std::uint32_t changes_ = 0;
  Instant looked_{};  // when devices were last asked
  Instant next_ = kNever;
  ReportedOnce reported_;
  bool owner_ = false;
  std::atomic<bool> held_{false};
  // Of a glance()
  std::array<Arrival, LinkEnd::kMostArrivals> found_{};
  std::size_t found_count_ = 0;
};

}  // namespace bypass::fastpath
