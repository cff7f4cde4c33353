#include "fastpath/shm/setup.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

namespace bypass::fastpath::shm {
namespace {

bool make_random(Nonce& out) {
  return os::fill_random(out.data(), sizeof out);
}

/// The number that is written into the memory of the end that chose the secret.
std::uint64_t proof_of(const Nonce& secret) {
  std::uint64_t proof;
  std::memcpy(&proof, secret.data(), sizeof proof);
  return proof;
}

}  // namespace

ShmSetup::ShmSetup(int folder, std::uint16_t window, std::span<std::byte> memory, Instant now)
    : SetupSteps(Mover::kShm, Step::kAnswered, now + kLimit), folder_(folder), link_(memory) {
  local_.window = window;
  local_.size = memory.size();
}

void ShmSetup::request(std::uint32_t id) {
  id_ = id;
  asks_ = true;
  step_ = Step::kAsked;
  if (!make_random(local_.secret) || !make_random(local_.name)) return end_with(Reason::kNoSharedMemory);
  if (const Reason why = meeting_.open(folder_, local_.name); why != Reason::kNone) return end_with(why);
  owes_.request = true;
}

void ShmSetup::answer(std::span<const std::byte> body, Reason refusal) {
  owes_.answer = owes_.told = true;
  LinkHead head;
  Reason why = decode(body, Mover::kShm, head);
  id_ = head.link;
  if (why == Reason::kNone) why = refusal;
  if (why == Reason::kNone) why = decode(body, true, remote_);
  if (why == Reason::kNone && !make_random(local_.secret)) why = Reason::kNoSharedMemory;
  if (why == Reason::kNone) why = Meeting::come(folder_, remote_.name, channel_);
  if (why != Reason::kNone) return end_with(why);
  local_.window = remote_.window = std::min(local_.window, remote_.window);
  channel_.take_descriptors(true);
  if (!introduce(-1)) end_with(Reason::kNoSharedMemory);
}

int ShmSetup::wait_descriptor() const {
  if (link_.is_open()) return link_.wait_descriptor();
  return channel_.is_open() ? channel_.descriptor() : meeting_.descriptor();
}

// --- Records

void ShmSetup::on_accepted(std::span<const std::byte> body) {
  Reason why = decode(body, false, remote_);
  if (why == Reason::kNone && remote_.window > local_.window) why = Reason::kLinkValue;
  if (why != Reason::kNone) return fail(why);
  accepted_ = true;
}

bool ShmSetup::next_record(Record& record, std::span<std::byte> body) {
  return owes_.next(head(), local_, record, body);
}

// --- Over the Unix socket

/// Sends the peer's secret. If the socket's buffer is full at the first packet, the peer is not honest.
bool ShmSetup::introduce(int passed) {
  const Introduction words{.link = id_, .secret = remote_.secret};
  return channel_.send(std::as_bytes(std::span(&words, 1)), passed) == Channel::Sent::kSent;
}

bool ShmSetup::is_introduction(std::span<const std::byte> packet, const Channel::Received& received) const {
  Introduction words;
  if (received.kind != Channel::Received::Kind::kPacket || received.cut || received.bytes != sizeof words) return false;
  std::memcpy(&words, packet.data(), sizeof words);
  return words.magic == Introduction::kMagic && words.link == id_ && words.secret == local_.secret;
}

void ShmSetup::meet() {
  if (!channel_.is_open() && meeting_.is_open()) {
    if (std::optional<Channel> guest = meeting_.accept()) channel_ = std::move(*guest);
  }
  if (channel_.is_open() && !guest_proven_) hear_guest();
  if (step_ == Step::kAsked && guest_proven_ && accepted_) share();
}

void ShmSetup::hear_guest() {
  std::array<std::byte, sizeof(Introduction) + 1> room;
  const Channel::Received received = channel_.receive(room);
  if (received.kind == Channel::Received::Kind::kNothing) return;
  if (!is_introduction(room, received) || received.descriptor.is_open() || received.many) return dismiss_guest();
  guest_proven_ = true;
  meeting_.close();
}

/// The next poll() looks for another guest.
void ShmSetup::dismiss_guest() {
  channel_.close();
  if (++strangers_ >= kMostStrangers) fail(Reason::kUnproven);
}

/// Each end knows the other now. The memory is sent over, and the first write lies in it.
void ShmSetup::share() {
  Outcome<Segment> made = Segment::create({.to_guest = ShmLink::kRing, .to_host = ShmLink::kRing});
  if (!made.ok()) return fail(Reason::kNoSharedMemory);
  if (!introduce(made.value.descriptor())) return fail(Reason::kUnproven);
  made.value.close_descriptor();
  link_.open(std::move(made.value), std::move(channel_));
  step_ = Step::kPinging;
  send_proof(Op::kLinkPing);
}

void ShmSetup::hear_host() {
  std::array<std::byte, sizeof(Introduction) + 1> room;
  const Channel::Received received = channel_.receive(room);
  if (received.kind == Channel::Received::Kind::kNothing) return;
  if (received.kind == Channel::Received::Kind::kGone) return fail(Reason::kPeerLinkDown);
  if (!is_introduction(room, received) || !received.descriptor.is_open()) return fail(Reason::kUnproven);
  channel_.take_descriptors(false);
  Outcome<Segment> opened = Segment::open(received.descriptor.get());
  if (!opened.ok()) return fail(Reason::kNoSharedMemory);
  const bool right = opened.value.outgoing().size == ShmLink::kRing && opened.value.incoming().size == ShmLink::kRing;
  if (!right) return fail(Reason::kLinkValue);
  link_.open(std::move(opened.value), std::move(channel_));
}

// --- The proof, as over RC

void ShmSetup::send_proof(Op op) {
  const Write write = proof_write(op, proof_of(remote_.secret));
  link_.post({&write, 1});
}

std::uint64_t ShmSetup::own_proof() const {
  return proof_of(local_.secret);
}

void ShmSetup::poll(Instant now) {
  if (step_ >= Step::kUp) return;
  if (now >= deadline_) return fail(Reason::kTooSlow);
  if (step_ == Step::kAsked) meet();
  if (step_ == Step::kAnswered && !link_.is_open()) hear_host();
  if (!link_.is_open() || step_ >= Step::kUp) return;
  look_for_proof(Reason::kPeerLinkDown);
}

// --- The end

void ShmSetup::on_failed() {
  meeting_.close();
  channel_.close();
}

void ShmSetup::abandon() {
  meeting_.abandon();
  channel_.abandon();
  link_.abandon();
}

}  // namespace bypass::fastpath::shm
