#include "backends/verbs/verbs_port.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "backends/packet/interface.h"
#include "backends/packet/libc.h"
#include "os/own/cancellation.h"
#include "stack/frame/arrival.h"
#include "stack/frame/wire.h"

namespace bypass::verbs {

namespace {

constexpr std::uint32_t kDefaultBuffers = 32u << 20;  // a card keeps all buffers in memory
constexpr std::uint32_t kDefaultMtu = 1500;
constexpr std::uint32_t kRefill = 64;  // requests that are posted in one go
// For so many calls of receive() after a question, each call looks at what the kernel tells, until the kernel has
// answered. Otherwise one call in kRareLooks looks.
constexpr std::uint32_t kEagerLooks = 4096, kRareLooks = 1024;
static_assert((SendQueue::kMostSegments - 1) * packet::FramePool::kLargeRoom >= kLargestTsoPayload);
constexpr std::uint32_t kLargestMtu =
    packet::FramePool::kLarge.buffer - kTxHeadroom - static_cast<std::uint32_t>(sizeof(wire::Ethernet));

bool is_connection(const FlowSpec& flow) {
  return flow.remote.port != 0;
}

bool is_arp(const Packet* frame) {
  return wire::at<wire::Ethernet>(*frame, 0).type == wire::kEtherTypeArp;
}

}  // namespace

// The lists of requests as they are posted; they are linked once.
struct VerbsPort::Requests {
  std::array<ibv_recv_wr, kRefill> receive{};
  std::array<ibv_sge, kRefill> room{};
};

VerbsPort::VerbsPort() = default;

VerbsPort::~VerbsPort() {
  watch_.stop();
  device_.close();
  forget_posted();
}

std::unique_ptr<VerbsPort> VerbsPort::open(const PortSpec& spec, std::string& problem) {
  auto port = std::make_unique<VerbsPort>();
  if (!port->set_up(spec, problem)) return nullptr;
  return port;
}

bool VerbsPort::set_up(const PortSpec& spec, std::string& problem) {
  if (spec.addresses.empty()) {
    problem = "no address is given for it (BYPASS_ADDR=10.9.0.1/24, say)";
    return false;
  }
  if (!device_.open(spec.target, problem) || !choose_frames(spec, problem)) return false;
  if (spec.share_interface && !kernel_.open(spec.interface, wakeup_, problem)) return false;
  mac_ = own_mac(spec);
  const std::uint32_t depth = std::min(kDepth, pool_.total() / 4);
  if (!device_.make_queues(pool_.memory(), depth, problem)) return false;
  caps_.steering = spec.share_interface;
  interface_ = spec.interface;
  if (caps_.steering)
    device_.steer_flows(mac_);
  else if (!device_.steer(mac_, problem))
    return false;
  caps_.tso_max_bytes = std::min(device_.tso_bytes(), kLargestTsoPayload);
  caps_.tso = caps_.tso_max_bytes != 0;
  caps_.keeps_sent = true;
  caps_.rx_checksum = caps_.tx_ip_checksum = caps_.tx_l4_checksum = device_.checksums();
  requests_ = std::make_unique<Requests>();
  begin();
  return watch_.start(problem);
}

// Starts with new queues.
void VerbsPort::begin() {
  forget_posted();
  depth_ = device_.depth();
  waiting_.resize(std::bit_ceil(depth_));
  posted_sends_ = sent_ = 0;
  receiving_.resize(depth_);
  forget_posted();
  lost_ = device_.lost();
  refill();
  wakeup_.add(device_.wait_descriptor());
}

// The port's MAC address: its own beside the kernel's interface, or the interface's if that is shared.
MacAddress VerbsPort::own_mac(const PortSpec& spec) const {
  if (spec.share_interface) return kernel_.mac();
  if (!spec.mac.is_zero()) return spec.mac;
  return device_.has_interface() ? packet::derive_mac(spec, device_.mac()) : device_.mac();
}

bool VerbsPort::choose_frames(const PortSpec& spec, std::string& problem) {
  const std::uint32_t wire = device_.mtu();
  const std::uint32_t most =
      spec.follows_mtu ? kLargestMtu : kDefaultMtu;  // where the MTU is the interface's, the stack knows it
  const std::uint32_t usual = wire != 0 ? std::min(wire, kLargestMtu) : most;
  caps_.mtu = spec.mtu != 0 ? spec.mtu : usual;
  if (wire != 0) caps_.mtu = std::min(caps_.mtu, wire);  // a longer frame would be lost on the wire
  if (caps_.mtu > kLargestMtu) {
    problem = "an MTU of " + std::to_string(caps_.mtu) + " is more than the " + std::to_string(kLargestMtu) +
              " that a frame's buffer holds here";
    return false;
  }
  PortSpec room = spec;
  if (room.buffer_memory == 0) room.buffer_memory = kDefaultBuffers;
  return prepare(room, packet::FramePool::kLarge, Hugepages::kAuto, problem);
}

// --- Receiving

// Forgets what the queue pair had, and gives the frames back to the pool.
void VerbsPort::forget_posted() {
  for (Packet*& frame : receiving_) {
    if (frame != nullptr) pool_.free_frame(frame);
    frame = nullptr;
  }
  free_requests_.resize(receiving_.size());
  for (std::uint32_t i = 0; i < free_requests_.size(); i++) free_requests_[i] = i;
  for (; sent_ < posted_sends_; sent_++) pool_.free_frame(waiting_[sent_ & (waiting_.size() - 1)]);
}

// A quarter of the pool is kept for sending.
void VerbsPort::refill() {
  mind_pool();
  const std::uint32_t spare = pool_.total() / 4;
  while (serves_ && free_requests_.size() >= kRefill && pool_.free_count() > spare + kRefill) {
    Requests& r = *requests_;
    for (std::uint32_t i = 0; i < kRefill; i++) {
      Packet* const frame = pool_.take();
      const std::uint32_t request = free_requests_[free_requests_.size() - 1 - i];
      receiving_[request] = frame;
      r.room[i] = {reinterpret_cast<std::uint64_t>(frame->data), static_cast<std::uint32_t>(frame->tailroom()),
                   device_.key()};
      r.receive[i] = {request, i + 1 < kRefill ? &r.receive[i + 1] : nullptr, &r.room[i], 1};
    }
    ibv_recv_wr* refused = nullptr;
    const int error = ibv_post_recv(device_.queue(), &r.receive[0], &refused);
    std::uint32_t taken = kRefill;  // all of them, if nobody says which was refused: the device may write into any
    if (error != 0 && refused != nullptr) taken = static_cast<std::uint32_t>(refused - r.receive.data());
    for (std::uint32_t i = taken; i < kRefill; i++) {
      Packet*& frame = receiving_[r.receive[i].wr_id];
      pool_.free_frame(frame);
      frame = nullptr;
    }
    // Those that were taken lie at the list's end, in reverse.
    free_requests_.erase(free_requests_.end() - taken, free_requests_.end());
    if (error != 0) return fail();
  }
}

Packet* VerbsPort::finish(const Completion& completion) {
  const auto request = static_cast<std::uint32_t>(completion.request);
  Packet* const frame = receiving_[request];
  receiving_[request] = nullptr;
  free_requests_.push_back(request);
  if (completion.status != IBV_WC_SUCCESS) {
    pool_.free_frame(frame);
    if (completion.status != IBV_WC_WR_FLUSH_ERR) rx_dropped_.add(1);  // a flushed request had no frame
    fail();
    return nullptr;
  }
  frame->len = frame->frame_len = completion.bytes;
  if (caps_.rx_checksum && completion.checksums_good) frame->flags = kRxIpChecksumGood | kRxL4ChecksumGood;
  if (device_.received().is_timed()) stamp(*frame, completion.time);
  return frame;
}

void VerbsPort::stamp(Packet& frame, std::uint64_t ticks) {
  const auto at = device_.clock().at(ticks);
  if (!at) return;
  set_arrival(frame, *at);
  frame.flags |= kRxArrival;
}

// Whether to look now at what the kernel tells.
bool VerbsPort::kernel_is_due() {
  looks_++;
  if (kernel_looks_ == 0 || !kernel_.has_questions())
    return std::exchange(kernel_looks_, 0U) != 0 || looks_ % kRareLooks == 0;
  kernel_looks_--;
  return true;
}

std::size_t VerbsPort::receive(std::uint16_t, std::span<Packet*> out) {
  if (trouble_.load(std::memory_order_acquire)) [[unlikely]]
    attend();
  const bool asks = caps_.steering && kernel_is_due();
  // Room for the kernel's answers is kept, however many frames there are: without an answer no new neighbour is
  // reached.
  const std::size_t kept = asks && out.size() > 2 * KernelSide::kMostReady ? KernelSide::kMostReady : 0;
  std::size_t n = serves_ ? take(out.first(out.size() - kept)) : 0;
  if (asks) [[unlikely]] {
    n += kernel_.receive(pool_, out.subspan(n));
    if (kernel_.has_moved()) follow_interface();
  }
  if (n != 0) rx_frames_.add(n);
  return n;
}

// A device tells its losses only when it is asked. It is asked before a sleep.
void VerbsPort::count_lost() {
  const std::uint64_t before = std::exchange(lost_, device_.lost());
  if (lost_ > before) rx_dropped_.add(lost_ - before);
}

std::size_t VerbsPort::take(std::span<Packet*> out) {
  if (posted_sends_ != sent_) reap();
  std::array<Completion, kBurst> completions;
  const std::size_t got = device_.received().poll(std::span(completions).first(std::min(out.size(), kBurst)));
  std::size_t n = 0;
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < got; i++) {
    Packet* const frame = finish(completions[i]);
    if (frame == nullptr) continue;
    bytes += frame->len;
    out[n++] = frame;
  }
  refill();
  if (n != 0) rx_bytes_.add(bytes);
  return n;
}

// --- Sending

void VerbsPort::reap() {
  std::array<Completion, 16> completions;
  for (std::size_t got = completions.size(); got == completions.size();) {
    got = device_.sent().poll(completions);
    for (std::size_t i = 0; i < got; i++) {
      if (completions[i].status != IBV_WC_SUCCESS) fail();
      for (; sent_ < completions[i].request; sent_++) pool_.free_frame(waiting_[sent_ & (waiting_.size() - 1)]);
    }
  }
}

// Returns how many frames it has dealt with. Frames that the device refuses are lost.
std::size_t VerbsPort::post(std::span<Packet* const> frames) {
  const SendQueue::Posted posted = device_.sender().post(frames, posted_sends_ + 1);
  std::uint64_t bytes = 0;
  for (Packet* const frame : frames.first(posted.taken)) {
    waiting_[posted_sends_++ & (waiting_.size() - 1)] = frame;
    bytes += frame->frame_len;
  }
  tx_frames_.add(posted.taken);
  tx_bytes_.add(bytes);
  if (!posted.told) fail();  // their frames would never come back
  return posted.taken + (posted.refused == 0 ? 0 : drop(frames.subspan(posted.taken, posted.refused)));
}

bool VerbsPort::steer(const FlowSpec& flow, bool add) {
  if (!caps_.steering) return false;
  if (trouble_.load(std::memory_order_acquire)) [[unlikely]]
    attend();
  const bool done = device_.steer(flow, add);
  if (guard_.is_open() && done) guard_.keep(flow, (serves_ || is_connection(flow)) && device_.is_steered(flow));
  return done;
}

bool VerbsPort::keep_flows(const Handover& handover, std::string& problem) {
  if (!caps_.steering) return true;
  handover_ = handover;
  const std::vector<FlowSpec> flows = device_.flows();
  return guard_.hold(handover, kernel_.index(), mac_, flows, problem);
}

// ARP requests go to the kernel. A RST for a connection of the kernel's is not sent.
std::size_t VerbsPort::send(std::uint16_t, std::span<Packet* const> frames) {
  if (!caps_.steering) [[likely]]
    return transmit(frames);
  std::size_t done = 0;
  while (done < frames.size()) {
    const auto rest = frames.subspan(done);
    const auto kept = std::find_if(rest.begin(), rest.end(),
                                   [this](const Packet* f) { return is_arp(f) || kernel_.is_wrong_reset(*f); });
    const auto before = static_cast<std::size_t>(kept - rest.begin());
    const std::size_t sent = before == 0 ? 0 : transmit(rest.first(before));
    done += sent;
    if (sent < before) break;
    if (before == rest.size()) continue;
    if (is_arp(frames[done])) {
      kernel_.take_arp(*frames[done]);
      kernel_looks_ = kEagerLooks;
    }
    pool_.free_frame(frames[done++]);
  }
  return done;
}

std::size_t VerbsPort::transmit(std::span<Packet* const> frames) {
  if (serves_ && room() < frames.size()) reap();
  std::size_t n = 0;
  while (n < frames.size()) {
    if (!is_up() || !serves_ || failed_.load(std::memory_order_acquire)) [[unlikely]]
      return n + drop(frames.subspan(n));
    const std::size_t most = std::min({frames.size() - n, SendQueue::kBurst, static_cast<std::size_t>(room())});
    if (most == 0) {
      tx_full_.add(1);
      break;
    }
    n += post(frames.subspan(n, most));
  }
  return n;
}

// --- Waiting

bool VerbsPort::arm(std::uint16_t queue) {
  if (serves_) {
    device_.arm();
    count_lost();
    if (!is_up()) set_forbidden(device_.is_forbidden());
  }
  return FramePort::arm(queue) && !trouble_.load(std::memory_order_acquire);
}

void VerbsPort::disarm(std::uint16_t queue) {
  if (serves_) device_.fetch();
  kernel_looks_ = std::max(kernel_looks_, 1U);  // the kernel's news may be what woke us
  FramePort::disarm(queue);
}

// --- Failures

void VerbsPort::fail() {
  failed_.store(true, std::memory_order_release);
  trouble_.store(true, std::memory_order_release);
}

void VerbsPort::on_queue_failure() {
  fail();
  wakeup_.ring();
}

void VerbsPort::on_stage() {
  trouble_.store(true, std::memory_order_release);
  wakeup_.ring();
}

void VerbsPort::attend() {
  const socket::CancellationOff off;  // older kernels are asked by write(2)
  // cleared before looking: what comes later is seen next time
  (void)trouble_.exchange(false, std::memory_order_acq_rel);
  using Stage = DeviceWatch::Stage;
  switch (watch_.stage()) {
    case Stage::kServing:
      return failed_.exchange(false, std::memory_order_acq_rel) ? repair() : void();
    case Stage::kLost:
      return leave();
    case Stage::kLeft:
      return;
    case Stage::kGone:
      return forget_posted();
    case Stage::kBack:
      return resume();
  }
}

// The interface was made anew under its name. The kernel's news is now read for the new one, and the device finds it by
// itself. What fails now is tried again at the next look.
void VerbsPort::follow_interface() {
  std::string problem;
  const bool follows = kernel_.follow(wakeup_, problem);
  if (follows && !keep_flows_again(problem)) problem = "its connections are not kept from the kernel: " + problem;
  if (problem.empty() || problem == follow_problem_) return;
  follow_problem_ = problem;
  device_.log(LogLevel::kWarn, interface_ + " was made anew: " + problem);
}

bool VerbsPort::keep_flows_again(std::string& problem) {
  return !handover_.is_there() || keep_flows(handover_, problem);
}

void VerbsPort::repair() {
  if (!device_.restart()) return leave();
  forget_posted();
  reopened_.fetch_add(1, std::memory_order_relaxed);
  refill();
  if (failed_.load(std::memory_order_relaxed)) leave();  // it would fail again the next time
}

// What the device has been given stays its own until it is closed, since it may still write there. Connections may go
// on once the device is back. Meanwhile the kernel refuses new connections from peers.
void VerbsPort::leave() {
  serves_ = false;
  if (guard_.is_open())
    for (const FlowSpec& flow : device_.flows())
      if (!is_connection(flow)) guard_.keep(flow, false);
  set_link(false);
  wakeup_.remove(device_.wait_descriptor());
  device_.suspend_flows();
  watch_.leave();
}

// The interface may be new, too, and comes later than the device: the device's driver makes it, and udev names it.
bool VerbsPort::can_come_back(std::string& problem) {
  return !caps_.steering || KernelSide::is_there(interface_, mac_, problem);
}

void VerbsPort::resume() {
  count_steer_lost(device_.take_lost_flows());
  std::string problem;
  if (caps_.steering && !kernel_.open(interface_, wakeup_, problem)) {  // the interface has gone again
    device_.log(LogLevel::kWarn, problem);
    return leave();
  }
  if (!keep_flows_again(problem))
    device_.log(LogLevel::kInfo, "its connections are not kept from the kernel: " + problem);
  failed_.store(false, std::memory_order_relaxed);
  serves_ = true;
  begin();
  reopened_.fetch_add(1, std::memory_order_relaxed);
  watch_.resume();
}

}  // namespace bypass::verbs
