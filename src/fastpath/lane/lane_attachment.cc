#include "fastpath/lane/lane_attachment.h"

#include "fastpath/lane/ring.h"

namespace bypass::fastpath {

bool LaneAttachment::fits(const LaneAddress& address, std::uint64_t memory) {
  const std::uint64_t ring = std::uint64_t{1} << (address.ring_log2 & 63);
  const bool ring_fits = ring <= memory && address.ring <= memory - ring;
  const bool credit_fits = sizeof(CreditBlock) <= memory && address.credit <= memory - sizeof(CreditBlock);
  return ring_fits && credit_fits && address.ring >= sizeof(LinkBlock) && address.credit >= sizeof(LinkBlock) &&
         address.credit % alignof(CreditBlock) == 0;
}

void LaneAttachment::offer(std::uint32_t link, const LaneAddress& local, std::uint64_t peer_memory) {
  link_ = link;
  local_ = local;
  peer_memory_ = peer_memory;
  declined_ = Reason::kNone;
  state_ = Attachment::kOffering;
  owe(kOweOpen);
}

Reason LaneAttachment::accept(const LaneAddress& local, std::uint64_t peer_memory) {
  if (!fits(remote_, peer_memory)) return Reason::kBadRecord;
  local_ = local;
  state_ = Attachment::kOpen;
  owe(kOweOk);
  return Reason::kNone;
}

void LaneAttachment::decline(Reason why) {
  declined_ = why;
  state_ = Attachment::kNone;
  owe(kOweNo);
}

Reason LaneAttachment::on_open(const Record& record) {
  if (has(kOpens | kOfferWaits) || state_ == Attachment::kOffered || owes(kOweNo)) return Reason::kBadState;
  if (state_ == Attachment::kNone) {
    state_ = Attachment::kOffered;
    link_ = record.link;
    remote_ = record.address;
    return Reason::kNone;
  }
  set(kOfferWaits);
  waiting_link_ = record.link;
  waiting_ = record.address;
  return Reason::kNone;
}

Reason LaneAttachment::on_ok(const Record& record) {
  if (!fits(record.address, peer_memory_)) return Reason::kBadRecord;
  remote_ = record.address;
  state_ = Attachment::kOpen;
  if (link_state_ != LaneLink::kUp) owe(kOweLinkDown);
  if (link_state_ == LaneLink::kFinal) owe(kOweRxState);
  return Reason::kNone;
}

bool LaneAttachment::leave() {
  if (!is_open() || has(kCloseSent)) return false;
  set(kCloseSent);
  owe(kOweClose);
  return true;
}

void LaneAttachment::detach() {
  constexpr unsigned kOfOneLane = kSuspect | kRxStateSent | kPeerRxState | kCloseSent | kPeerClose;
  state_ = Attachment::kNone;
  link_state_ = LaneLink::kUp;
  flags_ = static_cast<std::uint8_t>(flags_ & ~kOfOneLane);
  forget(kOweLinkDown | kOweRxState);  // nothing depends on that link
  if (!has(kOfferWaits)) return;
  flags_ = static_cast<std::uint8_t>(flags_ & ~unsigned{kOfferWaits});
  state_ = Attachment::kOffered;
  link_ = waiting_link_;
  remote_ = waiting_;
}

bool LaneAttachment::link_failed() {
  if (state_ == Attachment::kNone || link_state_ != LaneLink::kUp) return false;
  link_state_ = LaneLink::kFailed;
  if (is_open()) owe(kOweLinkDown);
  return true;
}

bool LaneAttachment::link_final() {
  if (state_ == Attachment::kNone || link_state_ == LaneLink::kFinal) return false;
  link_state_ = LaneLink::kFinal;
  if (is_open()) owe(kOweRxState);
  return true;
}

}  // namespace bypass::fastpath
