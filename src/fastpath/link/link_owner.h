// LinkOwner: a link's life, as the process that owns the ports runs it: asked for, set up, polled, lost.
//
// A port may have several devices, in order: when the first makes no link to a peer, the next is tried at once. Queue
// pairs and devices belong to the owner. Another process puts its lane into the link's queue and wakes the owner. The
// caller holds the shard's lock.
// Tests: tests/fastpath/peer_links_test.cc, tests/fastpath/peer_links_end_test.cc.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "fastpath/framed/framed.h"
#include "fastpath/link/link_device.h"
#include "fastpath/link/link_lanes.h"
#include "fastpath/link/link_reports.h"
#include "fastpath/link/link_table.h"
#include "fastpath/link/links_config.h"
#include "fastpath/link/peer_link.h"

namespace bypass::fastpath {

class LinkOwner {
 public:
  struct Parts {
    tcp::Engine& engine;
    FramedTcp& framed;
    LinkTable& table;
    LinkLanes& lanes;
    LinkReports& reports;
  };
  LinkOwner(const LinksConfig& config, const Parts& parts);

  // --- Devices
  /// `device` makes the links to that port's peers for which the devices that were added before make none. One device
  /// for each mover. It stays until drop_devices().
  void add_device(std::uint16_t port, LinkDevice& device);
  /// Ends whatever links the family had before: their devices belonged to a process that has gone.
  void begin_ownership(Context& ctx);
  /// Ends all links at once; the devices may be closed afterwards.
  void drop_devices(Context& ctx);
  [[nodiscard]] bool has_devices() const;
  /// In a forked child: the devices are the parent's.
  void forget_devices();
  [[nodiscard]] bool is_owner() const { return owner_; }

  // --- Looks
  /// Takes messages, gives connections their turn, sets links up. Returns the messages taken.
  std::size_t poll(Context& ctx);
  /// Writes what is due. False: this process is not the owner, and the owner is to be woken.
  [[nodiscard]] bool flush(Context& ctx);
  /// From now on the next message makes a descriptor readable. False: a message is there already.
  bool arm();
  /// The descriptors that a sleeper watches beside those of the ports: devices' and links'.
  static constexpr std::size_t kMostDescriptors = Context::kMaxPorts * kMovers + PeerTable::kLinks;
  std::size_t wait_descriptors(std::span<int> out) const;
  /// A number that changes with each change of wait_descriptors(); 0: there has been none.
  [[nodiscard]] std::uint32_t changes() const { return changes_; }
  [[nodiscard]] Instant next_timeout() const { return next_; }

  // --- Connections
  /// A connection without a link to its peer asks for a link.
  void want(Context& ctx, tcp::Tcb& tcb, Framed& framed);
  /// For a link whose set-up has more to send: `tcb` carries the records if the link has no carrier, or its carrier
  /// sends nothing any more.
  void offer_to_carry(PeerLink& link, tcp::Tcb& tcb);
  /// A lane was offered on a link that is not up at this end yet.
  void on_lane_offered(PeerLink& link);
  void on_link_record(Context& ctx, tcp::Tcb& tcb, Framed& framed, const Record& record,
                      std::span<const std::byte> body);
  [[nodiscard]] bool has_link_record(const tcp::Tcb& tcb) const;
  Record next_link_record(const tcp::Tcb& tcb, std::span<std::byte> body);

  // --- Short calls
  /// The Link that carries the link's messages; null: it belongs to another process.
  [[nodiscard]] Link* mover_of(const PeerLink& link) const {
    LinkSetup* const setup = own_of(link).setup;
    return setup != nullptr ? &setup->link() : nullptr;
  }
  void take_messages(Context& ctx, PeerLink& link, std::span<const Arrival> arrivals);

 private:
  using Stage = PeerLink::Stage;
  using Devices = std::array<LinkDevice*, kMovers>;
  /// How often devices, and links that are being set up, are looked at.
  static constexpr Duration kLook = std::chrono::milliseconds(10);
  /// The part of a link that only the owner has.
  struct Own {
    LinkSetup* setup = nullptr;
    Record record;  // to be sent on the link's carrier
    std::array<std::byte, kMaxLinkBody> body{};
    int descriptor = -1;
    bool has_record = false;
    bool given_up = false;
  };

  [[nodiscard]] Own& own_of(const PeerLink& link) { return own_[table_.index_of(link)]; }
  [[nodiscard]] const Own& own_of(const PeerLink& link) const { return own_[table_.index_of(link)]; }
  /// True if the entry only says when to try again.
  [[nodiscard]] bool is_idle(const PeerLink& link) const;
  PeerLink* take_entry(const IpAddress& peer, std::uint32_t tag, std::uint16_t port);
  [[nodiscard]] LinkDevice* device_of(std::uint16_t port, Mover mover) const;
  [[nodiscard]] LinkDevice* device_of(const PeerLink& link) const { return device_of(link.port, link.mover); }
  /// The first of the port's devices, from number `choice` on, that may reach the peer; null if none may.
  LinkDevice* choose(const PeerLink& link, std::uint8_t& choice) const;
  template <typename F>
  void for_each_device(F&& f) const {
    for (const Devices& devices : devices_)
      for (LinkDevice* device : devices)
        if (device != nullptr) f(*device);
  }

  // --- Set-up
  void begin(Context& ctx, PeerLink& link);
  void on_request(Context& ctx, tcp::Tcb& tcb, Framed& framed, std::span<const std::byte> body);
  /// Sent in this turn of the connection, so that the peer goes on to its next device at once.
  void decline_request(tcp::Tcb& tcb, Framed& framed, LinkHead head, Reason why);
  void poll_setup(Context& ctx, PeerLink& link);
  void offer_record(Context& ctx, PeerLink& link);
  static void back_off(PeerLink& link, Reason why, Instant now);
  void refuse(PeerLink& link, Reason why, Instant now);
  /// This device makes no link. The next device is asked at once, on an entry of its own, because the peer may have to
  /// be told about this one.
  void not_made(Context& ctx, PeerLink& link, Reason why);

  // --- Up, and its end (link_polls.cc)
  std::size_t take_messages(Context& ctx, PeerLink& link);
  std::size_t look_for_credit(Context& ctx, PeerLink& link);
  std::size_t poll_link(Context& ctx, PeerLink& link);
  void end(Context& ctx, PeerLink& link);
  void close(Context& ctx, PeerLink& link);
  void end_all(Context& ctx);
  void look_after(Context& ctx);
  void register_arena();
  void wait_until(Instant at) { next_ = at < next_ ? at : next_; }

  const LinksConfig& config_;
  tcp::Engine& engine_;
  FramedTcp& framed_;
  LinkTable& table_;
  LinkLanes& lanes_;
  LinkReports& reports_;
  std::array<Devices, Context::kMaxPorts> devices_{};  // the devices of each port, in their order
  std::array<Own, PeerTable::kLinks> own_;
  std::uint32_t changes_ = 0;
  Instant looked_{};  // when devices were last asked
  Instant next_ = kNever;
  bool owner_ = false;
};

}  // namespace bypass::fastpath
