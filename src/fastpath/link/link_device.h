// LinkDevice: what makes links to other hosts; LinkSetup: one link, from the first word about it to its end.
//
// src/backends/verbs/rc implements them, and fastpath/shm for processes of one host. They are private to the process,
// No call waits. What takes long (making a queue pair, finding the peer's address) is done by the device's own thread,
// and poll() sees when it is done.
//
//   end that asks                                 TCP, in framed mode           end that answers
//   LinkDevice::request()
//   next_record() → LINK_REQ                      ────────────────────►         LinkDevice::answer()
//   on_record()                                   ◄────────────────────         LINK_ACC ← next_record()
//   poll(): a ping over the link, and its answer
//   kUp; next_record() → LINK_READY               ────────────────────►         on_record(): kUp
//
// The records travel on one connection, and the link's lanes are offered on others. So an offer may come before
// LINK_READY, or after the connection that should carry LINK_READY has ended. The offer proves the same thing:
// on_lane_offered().
//
// Any failure ends in kFailed with a reason, which the peer is told.
// Tests: tests/fastpath/shm/setup_test.cc, tests/verbs/rc/setup_test.cc.
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
  /// Why the set-up failed.
  [[nodiscard]] virtual Reason reason() const = 0;
  /// The link's number in control records; 0: the peer's request had no number.
  [[nodiscard]] virtual std::uint32_t id() const = 0;

  /// Takes a LINK_* record that has come.
  virtual void on_record(RecordType type, std::span<const std::byte> body) = 0;
  /// The peer offers a lane on this link. Only a peer whose end is up does so.
  virtual void on_lane_offered() = 0;
  /// Fills in the next LINK_* record that is due: record.length bytes of `body`, which holds kMaxLinkBody. A record may
  /// be due in every state.
  virtual bool next_record(Record& record, std::span<std::byte> body) = 0;
  /// Takes the next steps. Call it at next_timeout(), when LinkDevice::descriptor() or wait_descriptor() is readable,
  /// and after on_record().
  virtual void poll(Instant now) = 0;
  /// The link's descriptor, once there is something to wait for; before that -1.
  [[nodiscard]] virtual int wait_descriptor() const = 0;
  [[nodiscard]] virtual Instant next_timeout() const = 0;

  // --- Once the link is up
  [[nodiscard]] virtual Link& link() = 0;
  /// Message credits: LinkEnd's window, the same at both ends.
  [[nodiscard]] virtual std::uint32_t window() const = 0;
  /// Bytes of the peer's memory: what Lane::offer and accept must know.
  [[nodiscard]] virtual std::uint64_t peer_memory() const = 0;
  /// Called when the device has been silent for too long after a failure: what it has not reported by now does not
  /// count. The link is drained after the next polls. May take a millisecond.
  virtual void give_up() = 0;
};

class LinkDevice {
 public:
  LinkDevice() = default;
  LinkDevice(const LinkDevice&) = delete;
  LinkDevice& operator=(const LinkDevice&) = delete;
  virtual ~LinkDevice() = default;

  /// The kind of link that this device makes, and the kind of request that it answers.
  [[nodiscard]] virtual Mover mover() const = 0;
  /// True: its links read a write's bytes after post(), so the device must know the memory. False: post() copies.
  [[nodiscard]] virtual bool reads_memory() const { return true; }
  /// Announces memory that send buffers lie in: writes of the links must point there. Call it once a range and process.
  /// It takes milliseconds, because the device holds the pages from then on. False: `problem` says why.
  virtual bool add_memory(std::span<const std::byte> range, const char*& problem) = 0;
  /// Withdraws the range. No write that points there may be under way.
  virtual void remove_memory(std::span<const std::byte> range) = 0;

  /// Begins a link from this end. The peer writes `memory`: a LinkBlock, which is zeroed here, and then what lanes are
  /// given. The end that places a lane zeroes its credit block before LANE_OPEN or LANE_OK names it: the last lane's
  /// counters lie there. `memory` stays until the setup is closed and gone() says so, and belongs to no other link.
  /// `peer`: the address of the peer's TCP. Null: too many links at once.
  virtual LinkSetup* request(std::uint32_t id, std::span<std::byte> memory, const IpAddress& peer, Instant now) = 0;
  /// Answers the body of a LINK_REQ. A request that is not to be granted is answered as well, with `refusal`.
  virtual LinkSetup* answer(std::span<const std::byte> body, Reason refusal, std::span<std::byte> memory,
                            const IpAddress& peer, Instant now) = 0;
  /// Ends the link, if it is there. The caller may use `memory` again once gone() returns true for it.
  virtual void close(LinkSetup* setup) = 0;
  /// True if no closed setup uses this memory any more.
  [[nodiscard]] virtual bool gone(std::span<const std::byte> memory) = 0;

  /// Readable when a setup or the device has something to do: call attend(), then poll() of every setup under way.
  [[nodiscard]] virtual int descriptor() const = 0;
  virtual void attend() = 0;
  /// The device is lost. Its links have failed, and it makes no more. The caller closes it and opens it again later.
  [[nodiscard]] virtual bool lost() const = 0;
};

/// What a LinkDevice is opened with.
struct LinkDeviceSpec {
  IpAddress address;               // the stack's own; the device must have it
  std::uint16_t window = 512;      // messages that a link takes before it returns credits: kLeastWindow … kMostWindow
  std::uint8_t timeout = 13;       // 4.096 µs · 2^timeout until a packet is sent again
  std::uint8_t retries = 3;        // how often a packet is sent again; few, because TCP is there
  std::uint8_t traffic_class = 0;  // the traffic class of its packets: lossless networks tell classes apart
  std::uint32_t depth = 512;       // writes under way a link
};

}  // namespace bypass::fastpath
