#include "backends/packet/packet_port.h"

#include <linux/if_ether.h>

#include <cerrno>
#include <cstring>

#include "backends/packet/frames/udp_segments.h"
#include "backends/packet/libc.h"

namespace bypass::packet {
namespace {

constexpr std::uint32_t kLongestFrame = 65'535 + ETH_HLEN;
// For some 2,000 frames of 1,500 bytes; and for large frames, as much as the window of the largest receive buffer lets
// a peer send at once.
constexpr std::uint32_t kShortRingBytes = 4u << 20, kLongRingBytes = 8u << 20;
// How many bytes may wait in the interface's queue, as far as the system allows.
constexpr int kSendBuffer = 4 << 20;

std::string denied(int error) {
  const std::string why = std::strerror(error);
  return error == EPERM ? why + ": packet sockets need CAP_NET_RAW" : why;
}

}  // namespace

std::unique_ptr<PacketPort> PacketPort::open(const PortSpec& spec, std::string& problem) {
  auto port = std::make_unique<PacketPort>();
  if (!port->set_up(spec, problem)) return nullptr;
  return port;
}

PacketPort::~PacketPort() {
  while (waiting_ != nullptr) {
    Packet* const next = waiting_->queue_next;
    pool_.free_frame(waiting_);
    waiting_ = next;
  }
}

bool PacketPort::set_up(const PortSpec& spec, std::string& problem) {
  name_ = spec.target;
  return prepare_virtio(spec, problem) && open_sockets(spec, problem);
}

bool PacketPort::open_sockets(const PortSpec& spec, std::string& problem) {
  tx_ = Descriptor(libc.socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  Interface interface;
  if (!tx_.is_open() || libc.setsockopt(tx_.get(), SOL_PACKET, PACKET_VNET_HDR, &on, sizeof on) != 0) {
    problem = denied(errno);
    return false;
  }
  if (!look_at_ethernet(tx_.get(), name_, interface, problem)) return false;
  if (!choose_mtu(spec, interface.mtu, problem)) return false;
  if (libc.setsockopt(tx_.get(), SOL_SOCKET, SO_SNDBUFFORCE, &kSendBuffer, sizeof kSendBuffer) != 0)
    libc.setsockopt(tx_.get(), SOL_SOCKET, SO_SNDBUF, &kSendBuffer, sizeof kSendBuffer);
  if (!choose_mac(spec, interface.mac, problem)) return false;
  if (!make_rings() || !attach(interface)) {
    problem = shared_ == nullptr ? denied(errno) : sharing_problem(errno);
    return false;
  }
  if (shared_ != nullptr && !shared_->keep_from_kernel(interface.index, problem)) return false;
  wakeup_.add(short_frames_.descriptor());
  wakeup_.add(long_frames_.descriptor());
  return true;
}

bool PacketPort::make_rings() {
  const std::uint32_t plain = caps_.mtu + ETH_HLEN;
  RxShape brief{0, plain, kShortRingBytes, mac_}, large{plain + 1, kLongestFrame, kLongRingBytes, mac_};
  if (shared_ == nullptr) return short_frames_.create(brief) && long_frames_.create(large);
  const Descriptor take_brief = shared_->ring_program(brief.shortest, brief.longest);
  const Descriptor take_large = shared_->ring_program(large.shortest, large.longest);
  brief.program = take_brief.get();
  large.program = take_large.get();
  return take_brief.is_open() && take_large.is_open() && short_frames_.create(brief) && long_frames_.create(large);
}

bool PacketPort::attach(const Interface& interface) {
  sockaddr_ll address{};
  address.sll_family = AF_PACKET;
  address.sll_ifindex = interface.index;
  // The socket has no protocol: it only sends.
  if (libc.bind(tx_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return false;
  if (!join(interface) || !long_frames_.attach(interface.index) || !short_frames_.attach(interface.index)) return false;
  index_ = interface.index;
  return true;
}

bool PacketPort::join(const Interface& interface) {
  return take_frames_to(mac_, tx_.get(), interface, PACKET_MR_UNICAST) ||
         take_frames_to(mac_, tx_.get(), interface, PACKET_MR_PROMISC);
}

// An interface that was removed and made again has another index. A shared interface must keep its MAC address, which
// its peers know and its programs look for.
void PacketPort::look() {
  Interface interface;
  if (!look_at_interface(tx_.get(), name_, interface)) return set_link(false);
  std::string problem;
  const bool serves = follow(interface, problem);
  say_of_link(name_, problem);
  set_link(serves && interface.is_up);
}

// False: `problem` says what is wrong with the interface.
bool PacketPort::follow(const Interface& interface, std::string& problem) {
  if (shared_ != nullptr && interface.mac != mac_) {
    problem = other_mac_problem(interface.mac, mac_);
    return false;
  }
  if (interface.index == index_) return true;
  if (shared_ != nullptr && !shared_->keep_from_kernel(interface.index, problem)) {
    problem = "was made anew: " + problem;
    return false;
  }
  if (attach(interface)) {
    reopened_.fetch_add(1, std::memory_order_relaxed);
    return true;
  }
  problem = "was made anew: " + (shared_ == nullptr ? denied(errno) : sharing_problem(errno));
  if (shared_ != nullptr) shared_->leave_to_kernel();
  return false;
}

// --- Receiving

// The ring whose head is the oldest frame. Frames of one flow arrive one after the other. So if a later frame is seen
// in one ring, a look at the other ring afterwards shows the earlier frame.
RxRing* PacketPort::next_ring() {
  const tpacket2_hdr* brief = short_frames_.head();
  const tpacket2_hdr* const large = long_frames_.head();
  if (large == nullptr) return brief == nullptr ? nullptr : &short_frames_;
  if (brief == nullptr) brief = short_frames_.head();
  return brief == nullptr || is_older(*large, *brief) ? &long_frames_ : &short_frames_;
}

// Puts the slot's frame, or the datagrams in it, into waiting_, which is empty.
void PacketPort::take(const tpacket2_hdr& slot) {
  if ((slot.tp_status & TP_STATUS_LOSING) != 0) losing_.store(true, std::memory_order_relaxed);
  if (slot.tp_snaplen < slot.tp_len) [[unlikely]] {
    rx_dropped_.add(1);
    return explain_truncation(slot);
  }
  const VnetHeader header = vnet_of(slot);
  if (holds_datagrams(header)) [[unlikely]] {
    waiting_ = split_datagrams(pool_, frame_of(slot), header);
    return;
  }
  waiting_ = pool_.copy_in(frame_of(slot));
  if (waiting_ != nullptr) note_header(header, *waiting_);
}

[[gnu::noinline, gnu::cold]] void PacketPort::explain_truncation(const tpacket2_hdr& slot) {
  if (explained_) return;
  explained_ = true;
  const std::string text = name_ + ": a frame of " + std::to_string(slot.tp_len) +
                           " bytes is longer than 64 KiB and was dropped (see gso_max_size in: ip -d link)";
  host->log(LogLevel::kWarn, text.c_str());
}

std::size_t PacketPort::take_waiting(std::span<Packet*> out) {
  std::size_t n = 0;
  for (; waiting_ != nullptr && n < out.size(); n++) {
    out[n] = waiting_;
    waiting_ = waiting_->queue_next;
    out[n]->queue_next = nullptr;
  }
  return n;
}

std::size_t PacketPort::receive(std::uint16_t, std::span<Packet*> out) {
  std::size_t n = take_waiting(out);
  while (n < out.size()) {
    RxRing* const ring = next_ring();
    if (ring == nullptr) break;
    take(*ring->head());
    ring->advance();
    n += take_waiting(out.subspan(n));
  }
  mind_pool();
  if (n == 0) return 0;
  std::uint64_t bytes = 0;
  for (const Packet* p : out.first(n)) bytes += p->frame_len;
  rx_frames_.add(n);
  rx_bytes_.add(bytes);
  return n;
}

std::uint64_t PacketPort::lost_by_kernel() const {
  // The kernel keeps the mark set until it is asked for the count.
  if (const_cast<std::atomic<bool>&>(losing_).exchange(false, std::memory_order_relaxed))
    lost_.fetch_add(short_frames_.take_losses() + long_frames_.take_losses(), std::memory_order_relaxed);
  return lost_.load(std::memory_order_relaxed);
}

// --- Sending

std::size_t PacketPort::send(std::uint16_t, std::span<Packet* const> frames) {
  if (!is_up()) [[unlikely]]
    return drop(frames);
  std::size_t done = 0;
  while (done < frames.size()) {
    const auto part = frames.subspan(done, std::min(frames.size() - done, Sender::kBatch));
    const Sender::Outcome outcome = sender_.send(tx_.get(), part);
    free(part.first(outcome.done));
    tx_frames_.add(outcome.done - outcome.refused);
    tx_bytes_.add(outcome.bytes);
    tx_dropped_.add(outcome.refused);
    done += outcome.done;
    if (outcome.done == part.size()) continue;
    tx_full_.add(1);
    break;
  }
  return done;
}

// --- Sleeping

bool PacketPort::arm(std::uint16_t queue) {
  if (!is_up()) {
    short_frames_.take_error();
    long_frames_.take_error();
  }
  return FramePort::arm(queue);
}

}  // namespace bypass::packet
