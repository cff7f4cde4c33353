#include "backends/verbs/rc/setup.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "fastpath/lane/message.h"

namespace bypass::verbs {

using fastpath::LinkHead;
using fastpath::Op;
using fastpath::Reason;

namespace {

constexpr std::uint32_t kPsnMask = 0xffffff;

Reason reason_of(int error) {
  switch (error) {
    case 0:
      return Reason::kNone;
    case ENOMEM:
    case EAGAIN:
    case ENOSPC:
      return Reason::kNoMemory;
    default:
      return Reason::kNoDevice;
  }
}

}  // namespace

RcSetup::RcSetup(const Common& common, std::span<std::byte> memory, const IpAddress& peer, Instant now)
    : SetupSteps(fastpath::Mover::kRc, Step::kMaking, now + kLimit),
      common_(common),
      link_(common.context, common.buffers, memory),
      peer_(peer) {
  local_.gid = common.context.gid;
  local_.mtu = static_cast<std::uint8_t>(common.context.mtu);
  local_.window = common.window;
  local_.size = memory.size();
  local_.psn = static_cast<std::uint32_t>(common.random()) & kPsnMask;
  local_.nonce = common.random();  // never 0, which the memory holds before
}

void RcSetup::request(std::uint32_t id) {
  id_ = id;
  asks_ = true;
  start(Work::kMake);
}

void RcSetup::answer(std::span<const std::byte> body, Reason refusal) {
  owes_.told = true;
  LinkHead head;
  Reason why = decode(body, fastpath::Mover::kRc, head);
  id_ = head.link;
  if (why == Reason::kNone) why = refusal;
  if (why == Reason::kNone) why = decode(body, peer_, remote_);
  if (why != Reason::kNone) {
    owes_.answer = true;
    return end_with(why);
  }
  local_.window = remote_.window = std::min(local_.window, remote_.window);
  start(Work::kMakeAndConnect);
}

int RcSetup::wait_descriptor() const {
  return is_connected() || step_ == Step::kUp ? link_.wait_descriptor() : -1;
}

// --- The worker's part

void RcSetup::start(Work work) {
  work_ = work;
  if (!common_.worker.submit(*this)) return work == Work::kDestroy ? void() : fail(Reason::kNoMemory);
  if (done()) after_work();
}

void RcSetup::run() {
  outcome_ = work();
}

Reason RcSetup::work() {
  switch (work_) {
    case Work::kMake:
      return make();
    case Work::kConnect:
      return connect();
    case Work::kMakeAndConnect: {
      const Reason why = make();
      return why == Reason::kNone ? connect() : why;
    }
    case Work::kDestroy:
      link_.destroy();
      return Reason::kNone;
  }
  return Reason::kNone;
}

Reason RcSetup::make() {
  const std::uint64_t number = common_.random();
  if (local_.nonce == 0 || number == 0) return Reason::kNoDevice;  // a peer must not be able to guess either
  const Reason why = reason_of(link_.make(local_.window, number));
  if (why != Reason::kNone) return why;
  local_.qpn = link_.pair().pair()->qp_num;
  local_.key = link_.pair().key();
  local_.address = link_.pair().address();
  return Reason::kNone;
}

Reason RcSetup::connect() {
  return link_.connect(remote_, local_.psn) == 0 ? Reason::kNone : Reason::kUnreachable;
}

void RcSetup::after_work() {
  if (step_ == Step::kClosing) {
    if (work_ == Work::kDestroy)
      step_ = Step::kClosed;
    else
      start(Work::kDestroy);
    return;
  }
  if (step_ != Step::kMaking && step_ != Step::kConnecting) return;
  if (outcome_ != Reason::kNone) {
    owes_.answer = !asks_;
    return asks_ ? fail(outcome_) : end_with(outcome_);
  }
  if (work_ == Work::kMake) {
    step_ = Step::kAsked;
    owes_.request = true;
  } else if (asks_) {
    step_ = Step::kPinging;
    send_proof(Op::kLinkPing);
  } else {
    step_ = Step::kAnswered;
    owes_.answer = true;
  }
}

// --- Records

void RcSetup::on_accepted(std::span<const std::byte> body) {
  Reason why = decode(body, peer_, remote_);
  if (why == Reason::kNone && remote_.window > local_.window) why = Reason::kLinkValue;
  if (why != Reason::kNone) return fail(why);
  step_ = Step::kConnecting;
  start(Work::kConnect);
}

bool RcSetup::next_record(fastpath::Record& record, std::span<std::byte> body) {
  if (step_ >= Step::kClosing) return false;
  return owes_.next(head(), local_, record, body);
}

// --- The proof

// Sends the proof behind a full packet. Where only smaller packets arrive, a link would fail at its first bytes, and so
// would the next link.
void RcSetup::send_proof(Op op) {
  link_.post_full_packet();
  const fastpath::Write write = fastpath::proof_write(op, remote_.nonce);
  link_.post({&write, 1});
}

void RcSetup::poll(Instant now) {
  if (step_ >= Step::kUp) return;
  if (now >= deadline_) return fail(is_connected() ? Reason::kUnproven : Reason::kTooSlow);
  if (!done()) return;
  after_work();
  if (is_connected()) look_for_proof(Reason::kUnreachable);
}

// --- The end

void RcSetup::on_device_failure(bool silent) {
  if (step_ == Step::kUp) return silent ? link_.give_up() : link_.fail();
  if (!is_over()) fail(Reason::kNoDevice);
}

void RcSetup::close() {
  step_ = Step::kClosing;
  if (done()) start(Work::kDestroy);
}

bool RcSetup::closed() {
  if (step_ == Step::kClosing && done()) after_work();
  return step_ == Step::kClosed;
}

}  // namespace bypass::verbs
