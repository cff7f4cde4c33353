#include "backends/verbs/verbs_port.h"

#include <algorithm>
#include <array>
#include <utility>

#include "backends/packet/interface.h"
#include "backends/packet/libc.h"
#include "stack/wire.h"

namespace bypass::verbs {

namespace {

constexpr std::uint32_t kDefaultBuffers = 32u << 20;  // a card keeps all of it in memory
constexpr std::uint32_t kDefaultMtu = 1500;
constexpr std::uint32_t kRefill = 64;  // requests that are posted in one go
constexpr std::size_t kMostSegments = Device::kMostSegments;
// Between two looks at what the kernel tells: none while it is being asked, many when nobody waits for it.
constexpr std::uint32_t kEagerLooks = 4096, kRareLooks = 1024;
static_assert((kMostSegments - 1) * packet::FramePool::kLargeRoom >= kLargestTsoPayload);
constexpr std::uint32_t kLargestMtu =
    packet::FramePool::kLarge.buffer - kTxHeadroom - static_cast<std::uint32_t>(sizeof(wire::Ethernet));

bool is_arp(const Packet* frame) {
  return wire::at<wire::Ethernet>(*frame, 0).type == wire::kEtherTypeArp;
}

}  // namespace

// Lists of requests as they are posted, linked once.
struct VerbsPort::Requests {
  std::array<ibv_recv_wr, kRefill> receive{};
  std::array<ibv_sge, kRefill> room{};
  std::array<ibv_send_wr, kBurst> send{};
  std::array<std::array<ibv_sge, Device::kMostSegments>, kBurst> pieces{};
};

VerbsPort::VerbsPort() = default;

VerbsPort::~VerbsPort() {
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
  if (!caps_.steering && !device_.steer(mac_, problem)) return false;
  caps_.tso_max_bytes = std::min(device_.tso_bytes(), kLargestTsoPayload);
  caps_.tso = caps_.tso_max_bytes != 0;
  caps_.rx_checksum = caps_.tx_ip_checksum = caps_.tx_l4_checksum = device_.checksums();
  requests_ = std::make_unique<Requests>();
  waiting_.resize(device_.depth());
  receiving_.resize(device_.depth());
  forget_posted();
  refill();
  wakeup_.add(device_.wait_descriptor());
  return device_.watch(problem);
}

// Beside the kernel's interface, and not its: an address of our own.
MacAddress VerbsPort::own_mac(const PortSpec& spec) const {
  if (spec.share_interface) return kernel_.mac();
  if (!spec.mac.is_zero()) return spec.mac;
  return device_.has_interface() ? packet::derive_mac(spec, device_.mac()) : device_.mac();
}

bool VerbsPort::choose_frames(const PortSpec& spec, std::string& problem) {
  const std::uint32_t wire = device_.mtu();
  const std::uint32_t usual = wire != 0 ? std::min(wire, kLargestMtu) : kDefaultMtu;
  caps_.mtu = spec.mtu != 0 ? spec.mtu : usual;
  if (wire != 0) caps_.mtu = std::min(caps_.mtu, wire);  // what is longer would be lost there
  if (caps_.mtu > kLargestMtu) {
    problem = "an MTU of " + std::to_string(caps_.mtu) + " is more than the " + std::to_string(kLargestMtu) +
              " that a frame's buffer holds here";
    return false;
  }
  PortSpec room = spec;
  if (room.buffer_memory == 0) room.buffer_memory = kDefaultBuffers;
  return prepare(room, packet::FramePool::kLarge, problem);
}

// --- Receiving

// What the queue pair had is gone; frames among it go back.
void VerbsPort::forget_posted() {
  for (Packet*& frame : receiving_) {
    if (frame != nullptr) pool_.free_frame(frame);
    frame = nullptr;
  }
  free_requests_.resize(receiving_.size());
  for (std::uint32_t i = 0; i < free_requests_.size(); i++) free_requests_[i] = i;
  for (; sent_ < posted_sends_; sent_++) pool_.free_frame(waiting_[sent_ % waiting_.size()]);
}

// A quarter of the pool stays for sending.
void VerbsPort::refill() {
  const std::uint32_t spare = pool_.total() / 4;
  while (!lost_ && free_requests_.size() >= kRefill && pool_.free_count() > spare + kRefill) {
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
    (void)ibv_post_recv(device_.queue(), &r.receive[0], &refused);
    std::uint32_t taken = kRefill;
    if (refused != nullptr) taken = static_cast<std::uint32_t>(refused - r.receive.data());
    for (std::uint32_t i = taken; i < kRefill; i++) {
      Packet*& frame = receiving_[r.receive[i].wr_id];
      pool_.free_frame(frame);
      frame = nullptr;
    }
    // Those that were taken lie at the list's end, in reverse.
    free_requests_.erase(free_requests_.end() - taken, free_requests_.end());
    if (taken < kRefill) return failed_.store(true, std::memory_order_release);
  }
}

Packet* VerbsPort::finish(const ibv_wc& completion) {
  const auto request = static_cast<std::uint32_t>(completion.wr_id);
  Packet* const frame = receiving_[request];
  receiving_[request] = nullptr;
  free_requests_.push_back(request);
  if (completion.status != IBV_WC_SUCCESS) {
    pool_.free_frame(frame);
    if (completion.status != IBV_WC_WR_FLUSH_ERR) rx_dropped_.add(1);  // that one had no frame yet
    failed_.store(true, std::memory_order_release);
    return nullptr;
  }
  frame->len = frame->frame_len = completion.byte_len;
  if (caps_.rx_checksum && (completion.wc_flags & IBV_WC_IP_CSUM_OK) != 0)
    frame->flags = kRxIpChecksumGood | kRxL4ChecksumGood;
  return frame;
}

// True: what the kernel tells is to be looked at.
bool VerbsPort::kernel_is_due() {
  looks_++;
  if (kernel_looks_ == 0 || !kernel_.has_questions())
    return std::exchange(kernel_looks_, 0U) != 0 || looks_ % kRareLooks == 0;
  kernel_looks_--;
  return true;
}

std::size_t VerbsPort::receive(std::uint16_t, std::span<Packet*> out) {
  if (failed_.load(std::memory_order_acquire)) [[unlikely]]
    repair();
  if (posted_sends_ != sent_) reap();
  std::array<ibv_wc, kBurst> completions;
  const int most = static_cast<int>(std::min(out.size(), completions.size()));
  const int got = lost_ ? 0 : ibv_poll_cq(device_.received(), most, completions.data());
  std::size_t n = 0;
  std::uint64_t bytes = 0;
  for (int i = 0; i < got; i++) {
    Packet* const frame = finish(completions[static_cast<std::size_t>(i)]);
    if (frame == nullptr) continue;
    bytes += frame->len;
    out[n++] = frame;
  }
  refill();
  if (caps_.steering && kernel_is_due()) [[unlikely]]
    n += kernel_.receive(pool_, out.subspan(n));
  if (n == 0) return 0;
  rx_frames_.add(n);
  rx_bytes_.add(bytes);
  return n;
}

// --- Sending

void VerbsPort::reap() {
  std::array<ibv_wc, 16> completions;
  for (int got = 16; got == 16;) {
    got = lost_ ? 0 : ibv_poll_cq(device_.sent(), 16, completions.data());
    for (int i = 0; i < got; i++) {
      const ibv_wc& completion = completions[static_cast<std::size_t>(i)];
      if (completion.status != IBV_WC_SUCCESS) failed_.store(true, std::memory_order_release);
      for (; sent_ < completion.wr_id; sent_++) pool_.free_frame(waiting_[sent_ % waiting_.size()]);
    }
  }
}

std::size_t VerbsPort::post(std::span<Packet* const> frames) {
  Requests& r = *requests_;
  for (std::size_t i = 0; i < frames.size(); i++) {
    Packet* const frame = frames[i];
    waiting_[(posted_sends_ + i) % waiting_.size()] = frame;
    ibv_send_wr& request = r.send[i];
    const bool large = (frame->flags & kTxTso) != 0;
    const std::uint32_t headers = large ? std::uint32_t{frame->l2_len} + frame->l3_len + frame->l4_len : 0;
    std::size_t pieces = 0;
    std::uint32_t skipped = headers;  // they are given apart
    for (Packet* piece = frame; piece != nullptr && pieces < kMostSegments; piece = piece->next_segment) {
      if (piece->len > skipped)
        r.pieces[i][pieces++] = {reinterpret_cast<std::uint64_t>(piece->data + skipped), piece->len - skipped,
                                 device_.key()};
      skipped = 0;  // headers lie in the head
    }
    request.wr_id = posted_sends_ + i + 1;
    request.next = i + 1 < frames.size() ? &r.send[i + 1] : nullptr;
    request.sg_list = r.pieces[i].data();
    request.num_sge = static_cast<int>(pieces);
    request.opcode = large ? IBV_WR_TSO : IBV_WR_SEND;
    request.send_flags = 0;
    if (large) {
      request.tso.hdr = frame->data;
      request.tso.hdr_sz = static_cast<std::uint16_t>(headers);
      request.tso.mss = frame->tso_mss;
    }
    if ((frame->flags & (kTxIpChecksum | kTxL4Checksum)) != 0) request.send_flags |= IBV_SEND_IP_CSUM;
    if (!large && frame->frame_len <= device_.inline_bytes()) request.send_flags |= IBV_SEND_INLINE;
  }
  r.send[frames.size() - 1].send_flags |= IBV_SEND_SIGNALED;
  ibv_send_wr* refused = nullptr;
  const int error = ibv_post_send(device_.queue(), &r.send[0], &refused);
  const std::size_t taken = error == 0 ? frames.size() : static_cast<std::size_t>(refused - r.send.data());
  posted_sends_ += taken;
  return taken;
}

bool VerbsPort::steer(const FlowSpec& flow, bool add) {
  return caps_.steering && device_.steer(mac_, flow, add);
}

// What is asked by ARP the kernel knows.
std::size_t VerbsPort::send(std::uint16_t, std::span<Packet* const> frames) {
  if (!caps_.steering) [[likely]]
    return transmit(frames);
  std::size_t done = 0;
  while (done < frames.size()) {
    const auto rest = frames.subspan(done);
    const auto arp = static_cast<std::size_t>(std::find_if(rest.begin(), rest.end(), is_arp) - rest.begin());
    const std::size_t sent = arp == 0 ? 0 : transmit(rest.first(arp));
    done += sent;
    if (sent < arp) break;
    if (arp == rest.size()) continue;
    kernel_.take_arp(*frames[done]);
    kernel_looks_ = kEagerLooks;
    pool_.free_frame(frames[done++]);
  }
  return done;
}

std::size_t VerbsPort::transmit(std::span<Packet* const> frames) {
  if (waiting_.size() - (posted_sends_ - sent_) < frames.size()) reap();
  if (!is_up() || lost_ || failed_.load(std::memory_order_acquire)) [[unlikely]]
    return drop(frames);
  std::size_t n = 0, lost = 0;
  std::uint64_t bytes = 0;
  while (n + lost < frames.size()) {
    const std::size_t room = waiting_.size() - (posted_sends_ - sent_);
    const std::size_t wanted = std::min({frames.size() - n, kBurst, room});
    if (wanted == 0) break;
    const std::size_t taken = post(frames.subspan(n, wanted));
    for (Packet* const frame : frames.subspan(n, taken)) bytes += frame->frame_len;
    n += taken;
    if (taken == wanted) continue;
    // There was room: it refuses this frame, and would again. Those before it have no completion of their own to come.
    failed_.store(true, std::memory_order_release);
    lost = drop(frames.subspan(n));
  }
  tx_frames_.add(n);
  tx_bytes_.add(bytes);
  if (n + lost < frames.size()) tx_full_.add(1);
  return n + lost;
}

// --- Waiting

bool VerbsPort::arm(std::uint16_t queue) {
  if (!lost_) device_.arm();
  if (!is_up()) set_forbidden(device_.is_forbidden());
  return FramePort::arm(queue) && !failed_.load(std::memory_order_acquire);
}

void VerbsPort::disarm(std::uint16_t queue) {
  if (!lost_) device_.fetch();
  kernel_looks_ = std::max(kernel_looks_, 1U);  // it may be what woke us
  FramePort::disarm(queue);
}

// --- Failures

void VerbsPort::on_queue_failure() {
  failed_.store(true, std::memory_order_release);
  wakeup_.ring();
}

void VerbsPort::on_device_lost() {
  set_link(false);
  on_queue_failure();
}

void VerbsPort::repair() {
  failed_.store(false, std::memory_order_release);
  lost_ = !device_.restart();
  if (lost_) return set_link(false);  // what it has stays its own: it may write there still
  forget_posted();
  reopened_.fetch_add(1, std::memory_order_relaxed);
  refill();
}

}  // namespace bypass::verbs
