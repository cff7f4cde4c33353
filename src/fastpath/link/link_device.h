// LinkDevice: what makes links to other hosts; LinkSetup: one link, from the first word about it to its end.
//
// src/backends/verbs/rc implements them, and fastpath/shm for processes of one host. They are private to the process,
// and called with the shard's lock held. No call waits: what takes long (a queue pair's making, a look for the peer's
// address) is done by the device's own thread, and poll() sees that it is done.
//
//   end that asks                                 TCP, in framed mode           end that answers
//   LinkDevice::request()
//   next_record() → LINK_REQ                      ────────────────────►         LinkDevice::answer()
//   on_record()                                   ◄────────────────────         LINK_ACC ← next_record()
//   poll(): a ping over the link, and its answer
//   kUp; next_record() → LINK_READY               ────────────────────►         on_record(): kUp
//
// The records travel on one connection and the links' lanes are offered on others, so that an offer may come before
// LINK_READY, or where the connection that carried it has ended: it says the same, on_lane_offered().
//
// Any failure ends in kFailed with a reason, which the peer is told.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "fastpath/framed/control.h"
#include "fastpath/link/link.h"
#include "fastpath/reason.h"
#include "fastpath/setup/link_record.h"
#include "stack/address.h"
#include "stack/time.h"

namespace bypass::fastpath {

enum class SetupState : std::uint8_t { kUnderWay, kUp, kFailed };

class LinkSetup {
 public:
  LinkSetup() = default;
  LinkSetup(const LinkSetup&) = delete;
  LinkSetup& operator=(const LinkSetup&) = delete;
  virtual ~LinkSetup() = default;

  [[nodiscard]] virtual SetupState state() const = 0;
  /// Why it failed.
  [[nodiscard]] virtual Reason reason() const = 0;
  /// Its number in control records; 0: the peer's request had none.
  [[nodiscard]] virtual std::uint32_t id() const = 0;

  /// A LINK_* record that has come.
  virtual void on_record(RecordType type, std::span<const std::byte> body) = 0;
  /// The peer offers a lane on this link, as only they do whose end is up.
  virtual void on_lane_offered() = 0;
  /// The next LINK_* record due: record.length bytes of `body`, which holds kMaxLinkBody. Due in every state.
  virtual bool next_record(Record& record, std::span<std::byte> body) = 0;
  /// Goes on. To be called at next_timeout(), when LinkDevice::descriptor() or wait_descriptor() is readable, and after
  /// on_record().
  virtual void poll(Instant now) = 0;
  /// Of the link, once there is something to wait for; else -1.
  [[nodiscard]] virtual int wait_descriptor() const = 0;
  [[nodiscard]] virtual Instant next_timeout() const = 0;

  // --- Once it is up
  [[nodiscard]] virtual Link& link() = 0;
  /// Message credits: LinkEnd's window, the same at both ends.
  [[nodiscard]] virtual std::uint32_t window() const = 0;
  /// Bytes of the peer's memory: what Lane::offer and accept must know.
  [[nodiscard]] virtual std::uint64_t peer_memory() const = 0;
  /// The device has been silent for too long after a failure: what it has not said by now does not count. The link is
  /// drained after the next polls. May take a millisecond.
  virtual void give_up() = 0;
};

class LinkDevice {
 public:
  LinkDevice() = default;
  LinkDevice(const LinkDevice&) = delete;
  LinkDevice& operator=(const LinkDevice&) = delete;
  virtual ~LinkDevice() = default;

  /// What its links are, and which requests are its to answer.
  [[nodiscard]] virtual Mover mover() const = 0;
  /// Its links read the bytes of a write after post(), and need to have been told of the memory. False: post() copies.
  [[nodiscard]] virtual bool reads_memory() const { return true; }
  /// Send buffers lie there: what links' writes point to must. Once a range and process; takes milliseconds, as the
  /// device holds the pages from then on. False: `problem` says why.
  virtual bool add_memory(std::span<const std::byte> range, const char*& problem) = 0;
  /// No write that points there may be under way.
  virtual void remove_memory(std::span<const std::byte> range) = 0;

  /// `memory` is what the peer writes: LinkBlock, which is zeroed here, then what lanes are given. (A lane's credit
  /// block is zeroed by who gives it, before LANE_OPEN or LANE_OK says where it is: the last lane's counters lie
  /// there.) It stays until the setup is closed and gone, and belongs to no other link. `peer`: the address of the
  /// peer's TCP. Null: too many links at once.
  virtual LinkSetup* request(std::uint32_t id, std::span<std::byte> memory, const IpAddress& peer, Instant now) = 0;
  /// To a LINK_REQ's body. A request that is not to be granted is answered as well: `refusal`.
  virtual LinkSetup* answer(std::span<const std::byte> body, Reason refusal, std::span<std::byte> memory,
                            const IpAddress& peer, Instant now) = 0;
  /// Ends the link, if it is there. `memory` is the caller's again once gone() says so for it.
  virtual void close(LinkSetup* setup) = 0;
  /// No closed setup has this memory any more.
  [[nodiscard]] virtual bool gone(std::span<const std::byte> memory) = 0;

  /// Readable when a setup has something to do, or the device has: attend(), then poll() of every setup under way.
  [[nodiscard]] virtual int descriptor() const = 0;
  virtual void attend() = 0;
  /// The device is lost. Its links have failed, and no more will come: to be closed, and opened again later.
  [[nodiscard]] virtual bool lost() const = 0;
};

/// What a LinkDevice is opened with.
struct LinkDeviceSpec {
  IpAddress address;               // the stack's own; the device must have it
  std::uint16_t window = 512;      // messages that a link takes before credits return: kLeastWindow … kMostWindow
  std::uint8_t timeout = 13;       // 4.096 µs · 2^timeout, then it tries again
  std::uint8_t retries = 3;        // so often: fail fast, there is TCP
  std::uint8_t traffic_class = 0;  // of its packets: lossless networks tell classes apart
  std::uint32_t depth = 512;       // writes under way, a link
};

}  // namespace bypass::fastpath
