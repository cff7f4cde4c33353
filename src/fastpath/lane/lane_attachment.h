// LaneAttachment: a connection's place on a link: how it is offered, agreed on and left, and which records about it are
// owed to the peer over TCP.
//
// It knows nothing of the stream's bytes. Lane (lane.h) says what the end of a link means for the two directions. It
// lies in the arena: no pointer, no padding.
// Tests: tests/fastpath/lane_test.cc, tests/fastpath/model_test.cc.
#pragma once

#include <cstdint>

#include "fastpath/framed/control.h"
#include "fastpath/lane/lane_rules.h"
#include "fastpath/link/link.h"
#include "fastpath/reason.h"

namespace bypass::fastpath {

class LaneAttachment {
 public:
  enum Flag : std::uint8_t {
    kOpens = 1U << 0,
    kOfferWaits = 1U << 1,  // for the last lane to be detached
    kSuspect = 1U << 2,
    kPeerRxState = 1U << 3,
    kRxStateSent = 1U << 4,
    kCloseSent = 1U << 5,
    kPeerClose = 1U << 6,
    kAborted = 1U << 7,  // the connection was aborted: abort()
  };
  enum Owed : std::uint16_t {  // records, in the order in which they must leave
    kOweOpen = 1U << 0,
    kOweOk = 1U << 1,
    kOweNo = 1U << 2,
    kOweCut = 1U << 3,
    kOweResume = 1U << 4,
    kOweLinkDown = 1U << 5,
    kOweRxState = 1U << 6,
    kOweClose = 1U << 7,
    kOwePong = 1U << 8,
  };

  explicit LaneAttachment(bool opens) : flags_(opens ? std::uint8_t{kOpens} : std::uint8_t{0}) {}

  [[nodiscard]] bool has(unsigned flags) const { return (flags_ & flags) != 0; }
  void set(unsigned flags) { flags_ = static_cast<std::uint8_t>(flags_ | flags); }
  [[nodiscard]] bool owes(unsigned what) const { return (owed_ & what) != 0; }
  [[nodiscard]] bool owes_any() const { return owed_ != 0; }
  void owe(unsigned what) { owed_ = static_cast<std::uint16_t>(owed_ | what); }
  void forget(unsigned what) { owed_ = static_cast<std::uint16_t>(owed_ & ~what); }
  void forget_all() { owed_ = 0; }
  /// True once for each time that `what` became owed; then it is owed no more.
  [[nodiscard]] bool take_owed(Owed what) {
    if ((owed_ & what) == 0) return false;
    forget(what);
    return true;
  }
  /// The record CUT is owed, with the epoch that begins at the cut.
  void owe_cut(std::uint8_t epoch) {
    cut_epoch_ = epoch;
    owe(kOweCut);
  }
  [[nodiscard]] std::uint8_t cut_epoch() const { return cut_epoch_; }

  [[nodiscard]] bool is(Attachment state) const { return state_ == state; }
  [[nodiscard]] bool is_open() const { return state_ == Attachment::kOpen; }
  [[nodiscard]] bool on_link() const { return is_open() && link_state_ == LaneLink::kUp; }
  [[nodiscard]] LaneLink link_state() const { return link_state_; }
  [[nodiscard]] std::uint32_t link() const { return link_; }
  [[nodiscard]] const LaneAddress& local() const { return local_; }
  [[nodiscard]] const LaneAddress& remote() const { return remote_; }
  [[nodiscard]] Reason declined() const { return declined_; }
  /// True if the connection was aborted here, or reset by the peer's message. reason() names the rule that the peer
  /// broke.
  [[nodiscard]] bool aborted() const { return has(kAborted); }
  [[nodiscard]] Reason reason() const { return reason_; }
  void abort(Reason why) {
    if (aborted()) return;
    set(kAborted);
    reason_ = why;
  }

  // --- Opening
  void offer(std::uint32_t link, const LaneAddress& local, std::uint64_t peer_memory);
  /// kBadRecord: the peer's ring or credit block lies outside its memory.
  [[nodiscard]] Reason accept(const LaneAddress& local, std::uint64_t peer_memory);
  void decline(Reason why);
  [[nodiscard]] Reason on_open(const Record& record);
  /// LANE_OK for our offer has come: the lane is open from here on.
  [[nodiscard]] Reason on_ok(const Record& record);
  [[nodiscard]] bool is_answer(const Record& record) const { return is(Attachment::kOffering) && record.link == link_; }
  void note_declined(Reason why) { declined_ = why; }

  // --- The end
  /// Makes LANE_CLOSE owed. False: no lane is open, or LANE_CLOSE was sent already.
  bool leave();
  /// Ends the attachment. An offer that came too early is considered next.
  void detach();
  /// False if the failure was known already, or no lane is attached.
  bool link_failed();
  bool link_final();

 private:
  [[nodiscard]] static bool fits(const LaneAddress& address, std::uint64_t memory);

  std::uint64_t peer_memory_ = 0;
  LaneAddress local_, remote_;
  LaneAddress waiting_;  // an offer that has come too early
  std::uint32_t link_ = 0, waiting_link_ = 0;
  std::uint16_t owed_ = 0;
  std::uint8_t flags_;
  Attachment state_ = Attachment::kNone;
  LaneLink link_state_ = LaneLink::kUp;
  std::uint8_t cut_epoch_ = 0;
  Reason declined_ = Reason::kNone, reason_ = Reason::kNone;
};

}  // namespace bypass::fastpath
