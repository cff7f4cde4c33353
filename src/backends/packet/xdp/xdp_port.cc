#include "backends/packet/xdp/xdp_port.h"

#include <linux/ethtool.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "backends/packet/frames/partial_checksum.h"
#include "backends/packet/libc.h"

namespace bypass::packet {
namespace {

// The kernel keeps every chunk in memory.
constexpr std::uint32_t kDefaultBuffers = 32u << 20;
// Three parts: what readers may hold before the stack copies it away (1,024 frames at first), and three times as much.
// So the kernel never lacks chunks to receive into. If it did, nothing would arrive that could free some.
constexpr std::uint32_t kLeastBuffers = 16u << 20;
constexpr std::uint32_t kRingEntries = 2048;
constexpr std::uint32_t kCopyRingBytes = 1u << 20;
// The space that the kernel leaves free in front of a received frame (XDP_PACKET_HEADROOM).
constexpr std::uint32_t kKernelHeadroom = 256;
constexpr std::chrono::milliseconds kBindAgain{5}, kBindPatience{1'000};
constexpr std::uint32_t kLargestMtu = FramePool::kPaged.element - kKernelHeadroom - ETH_HLEN - 512;

bool ask_ethtool(int socket, const std::string& name, void* question) {
  ifreq request{};
  std::strncpy(request.ifr_name, name.c_str(), IFNAMSIZ - 1);
  request.ifr_data = static_cast<char*>(question);
  return libc.ioctl(socket, SIOCETHTOOL, &request) == 0;
}

bool is_veth(int socket, const std::string& name) {
  ethtool_drvinfo driver{};
  driver.cmd = ETHTOOL_GDRVINFO;
  return ask_ethtool(socket, name, &driver) && std::strcmp(driver.driver, "veth") == 0;
}

std::uint32_t receive_queues(int socket, const std::string& name) {
  ethtool_channels channels{};
  channels.cmd = ETHTOOL_GCHANNELS;
  return ask_ethtool(socket, name, &channels) ? std::max(1u, channels.rx_count + channels.combined_count) : 1;
}

std::string explained(int error, bool shared) {
  const std::string why = std::strerror(error);
  if (shared && error == EPERM) return sharing_problem(error);
  if (shared && error == EINVAL) return why + ": AF_XDP shares an interface with the kernel from Linux 5.18 on";
  if (shared && error == EBUSY)
    return why +
           ": another XDP program or socket is at this interface (ip link shows it), and takes it whole; several " +
           "processes share one by af_packet";
  if (error == EPERM) return why + ": AF_XDP needs CAP_NET_RAW, CAP_BPF and CAP_NET_ADMIN";
  if (error == EBUSY) return why + ": another XDP program or socket is at this interface (ip link shows it)";
  if (error == ENOBUFS) return why + ": the frames are more memory than may be locked (ulimit -l)";
  return why;
}

}  // namespace

std::unique_ptr<XdpPort> XdpPort::open(const PortSpec& spec, std::string& problem) {
  auto port = std::make_unique<XdpPort>();
  if (!port->set_up(spec, problem)) return nullptr;
  return port;
}

bool XdpPort::set_up(const PortSpec& spec, std::string& problem) {
  name_ = spec.target;
  Interface interface;
  PortSpec room = spec;
  room.buffer_memory = spec.buffer_memory == 0 ? kDefaultBuffers : std::max(spec.buffer_memory, kLeastBuffers);
  if (!choose(spec, interface, problem) || !prepare(room, FramePool::kPaged, Hugepages::kOff, problem)) return false;
  socket_ = Descriptor(libc.socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0));
  // The program goes first: a process that has the interface has a program there, too, so the failure shows at once.
  const bool opened = socket_.is_open() && make_rings() && attach(interface.index, spec.addresses) &&
                      bind_patiently(interface.index) &&
                      take_frames_to(mac_, asking_.get(), interface, PACKET_MR_UNICAST);
  if (!opened) {
    problem = explained(errno, shared_ != nullptr);
    return false;
  }
  index_ = interface.index;
  fill();
  wakeup_.add(socket_.get());
  return true;
}

bool XdpPort::choose(const PortSpec& spec, Interface& interface, std::string& problem) {
  asking_ = Descriptor(libc.socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0));
  if (!asking_.is_open()) {
    problem = explained(errno, spec.share_interface);
    return false;
  }
  if (!look_at_ethernet(asking_.get(), name_, interface, problem)) return false;
  const std::uint32_t queues = receive_queues(asking_.get(), name_);
  if (queues != 1) {
    problem = "the interface has " + std::to_string(queues) + " receive queues and AF_XDP serves one here; use " +
              "af_packet:" + name_ + ", or: ethtool -L " + name_ + " combined 1";
    return false;
  }
  is_veth_ = is_veth(asking_.get(), name_);
  caps_.rx_checksum = is_veth_;
  if (!choose_mac(spec, interface.mac, problem) || !choose_mtu(spec, interface.mtu, problem)) return false;
  if (caps_.mtu <= kLargestMtu) return true;
  problem = "AF_XDP takes an MTU of " + std::to_string(kLargestMtu) + " at most, and the interface has " +
            std::to_string(caps_.mtu) + "; use af_packet:" + name_;
  return false;
}

bool XdpPort::make_rings() {
  xdp_umem_reg memory{};
  memory.addr = reinterpret_cast<std::uint64_t>(pool_.memory().data());
  memory.len = pool_.memory().size();
  memory.chunk_size = FramePool::kPaged.element;
  const int fd = socket_.get();
  if (libc.setsockopt(fd, SOL_XDP, XDP_UMEM_REG, &memory, sizeof memory) != 0) return false;
  xdp_mmap_offsets at{};
  socklen_t size = sizeof at;
  if (libc.getsockopt(fd, SOL_XDP, XDP_MMAP_OFFSETS, &at, &size) != 0) return false;
  constexpr auto kFillPage = static_cast<off_t>(XDP_UMEM_PGOFF_FILL_RING);
  constexpr auto kCompletionPage = static_cast<off_t>(XDP_UMEM_PGOFF_COMPLETION_RING);
  return fill_.create(fd, XDP_UMEM_FILL_RING, kFillPage, at.fr, kRingEntries) &&
         completion_.create(fd, XDP_UMEM_COMPLETION_RING, kCompletionPage, at.cr, kRingEntries) &&
         rx_.create(fd, XDP_RX_RING, XDP_PGOFF_RX_RING, at.rx, kRingEntries) &&
         tx_.create(fd, XDP_TX_RING, XDP_PGOFF_TX_RING, at.tx, kRingEntries);
}

bool XdpPort::bind_to(int interface) {
  sockaddr_xdp address{};
  address.sxdp_family = AF_XDP;
  address.sxdp_flags = XDP_USE_NEED_WAKEUP;
  address.sxdp_ifindex = static_cast<std::uint32_t>(interface);
  return libc.bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

// Binds, and waits for a queue that a dead process had. The kernel frees the queue some time after the process's end
// (RCU, then a work queue). Until then the queue is as good as in use.
bool XdpPort::bind_patiently(int interface) {
  for (std::chrono::milliseconds waited{}; !bind_to(interface); waited += kBindAgain) {
    if (errno != EBUSY || waited >= kBindPatience) return false;
    libc.poll(nullptr, 0, static_cast<int>(kBindAgain.count()));
  }
  return true;
}

bool XdpPort::attach(int interface, std::span<const IpAddress> addresses) {
  if (shared_ == nullptr) return program_.attach(interface, socket_.get(), mac_, addresses);
  return open_copies(interface) && program_.attach(interface, socket_.get(), shared_->point());
}

bool XdpPort::open_copies(int interface) {
  RxShape shape{0, caps_.mtu + ETH_HLEN, kCopyRingBytes, mac_};
  const Descriptor program = shared_->ring_program(shape.shortest, shape.longest);
  shape.program = program.get();
  copies_ = std::make_unique<RxRing>();
  if (!program.is_open() || !copies_->create(shape) || !copies_->attach(interface)) return false;
  wakeup_.add(copies_->descriptor());
  return true;
}

// The socket stays with the interface that it was bound to. A new interface with the same name is another one.
void XdpPort::look() {
  Interface interface;
  if (!look_at_interface(asking_.get(), name_, interface)) return set_link(false);
  std::string problem;
  if (interface.index != index_)
    problem = "was made anew, and an AF_XDP socket stays with the one that has gone; use af_packet:" + name_ +
              " where that happens";
  else if (shared_ != nullptr && interface.mac != mac_)
    problem = other_mac_problem(interface.mac, mac_);
  say_of_link(name_, problem);
  set_link(problem.empty() && interface.is_up);
}

// --- Chunks: each is a Packet's header and its buffer

Packet* XdpPort::packet_at(std::uint64_t address) const {
  const std::uint64_t chunk = address / FramePool::kPaged.element * FramePool::kPaged.element;
  return reinterpret_cast<Packet*>(pool_.memory().data() + chunk);
}

std::uint64_t XdpPort::address_of(const std::byte* at) const {
  return static_cast<std::uint64_t>(at - pool_.memory().data());
}

// Gives the kernel chunks to receive into; a quarter of the pool stays for sending.
void XdpPort::fill() {
  std::uint32_t room = fill_.room();
  const std::uint32_t spare = pool_.total() / 4;
  for (; room > 0 && pool_.free_count() > spare; room--) {
    Packet* const packet = pool_.take();
    if (packet == nullptr) break;
    fill_.put(address_of(reinterpret_cast<std::byte*>(packet)));
    posted_++;
  }
  mind_pool();
  fill_.publish();
  // a driver that ran out of chunks waits for this
  if (fill_.needs_wakeup()) libc.recv(socket_.get(), nullptr, 0, MSG_DONTWAIT);
}

// Takes back the chunks that the kernel has sent.
void XdpPort::reap() {
  const std::uint32_t sent = completion_.waiting();
  for (std::uint32_t i = 0; i < sent; i++) pool_.free_frame(packet_at(completion_.take()));
  if (sent != 0) completion_.release();
}

// --- Receiving

std::size_t XdpPort::receive(std::uint16_t, std::span<Packet*> out) {
  reap();
  // It also fills when nothing arrives: the reason may be a lack of chunks, which the program held until now.
  if (posted_ < kRingEntries / 2) fill();
  const std::size_t n = take_received(out);
  return copies_ == nullptr ? n : n + take_copies(out.subspan(n));
}

std::size_t XdpPort::take_received(std::span<Packet*> out) {
  const std::size_t n = std::min<std::size_t>(rx_.waiting(), out.size());
  if (n == 0) return 0;
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < n; i++) {
    const xdp_desc& received = rx_.take();
    Packet* const packet = out[i] = packet_at(received.addr);
    packet->reset(0);
    packet->data = pool_.memory().data() + received.addr;
    packet->len = packet->frame_len = received.len;
    if (is_veth_ && has_partial_checksum(packet->bytes())) packet->flags = kRxL4ChecksumGood;
    bytes += received.len;
  }
  rx_.release();
  posted_ -= static_cast<std::uint32_t>(n);
  rx_frames_.add(n);
  rx_bytes_.add(bytes);
  return n;
}

std::size_t XdpPort::take_copies(std::span<Packet*> out) {
  std::size_t n = 0;
  while (n < out.size()) {
    const tpacket2_hdr* const slot = copies_->head();
    if (slot == nullptr) break;
    Packet* const packet = pool_.copy_in(frame_of(*slot));
    if (packet != nullptr) {
      note_header(vnet_of(*slot), *packet);
      rx_frames_.add(1);
      rx_bytes_.add(packet->frame_len);
      out[n++] = packet;
    }
    copies_->advance();
  }
  return n;
}

bool XdpPort::arm(std::uint16_t queue) {
  if (copies_ != nullptr && !is_up()) copies_->take_error();
  return FramePort::arm(queue);
}

// --- Sending

// In copy mode the kernel sends 32 frames a call, and returns EAGAIN when there are more.
void XdpPort::kick() {
  if (!tx_.needs_wakeup()) return;
  for (int calls = 0; calls < 4; calls++)
    if (libc.sendto(socket_.get(), nullptr, 0, MSG_DONTWAIT, nullptr, 0) >= 0 || errno != EAGAIN) return;
}

std::size_t XdpPort::send(std::uint16_t, std::span<Packet* const> frames) {
  reap();
  if (!is_up()) [[unlikely]]
    return drop(frames);
  const std::size_t n = std::min<std::size_t>(tx_.room(), frames.size());
  std::uint64_t bytes = 0;
  for (Packet* const frame : frames.first(n)) {
    tx_.put({address_of(frame->data), frame->len, 0});
    bytes += frame->len;
  }
  tx_.publish();
  kick();
  reap();
  tx_frames_.add(n);
  tx_bytes_.add(bytes);
  if (n < frames.size()) tx_full_.add(1);
  return n;
}

}  // namespace bypass::packet
