#include "backends/packet/tap_port.h"

#include <fcntl.h>
#include <linux/if_ether.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "backends/packet/interface.h"
#include "backends/packet/libc.h"

namespace bypass::packet {
namespace {

std::string explained(int error) {
  const std::string why = std::strerror(error);
  if (error == EPERM) return why + ": making an interface needs CAP_NET_ADMIN";
  if (error == EBUSY) return why + ": another process has it open";
  return error == EINVAL ? why + ": there is another kind of interface of that name" : why;
}

}  // namespace

std::unique_ptr<TapPort> TapPort::open(const PortSpec& spec, std::string& problem) {
  auto port = std::make_unique<TapPort>();
  if (!port->set_up(spec, problem)) return nullptr;
  return port;
}

bool TapPort::make_device(std::string& problem) {
  tap_ = Descriptor(libc.open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (!tap_.is_open()) {
    problem = "/dev/net/tun: " + std::string(std::strerror(errno));
    return false;
  }
  ifreq request{};
  std::strncpy(request.ifr_name, name_.c_str(), IFNAMSIZ - 1);
  request.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
  // What the kernel may leave undone in frames to us.
  constexpr unsigned long kTaken = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN;
  if (libc.ioctl(tap_.get(), TUNSETIFF, &request) == 0 && libc.ioctl(tap_.get(), TUNSETOFFLOAD, kTaken) == 0)
    return true;
  problem = explained(errno);
  return false;
}

// Brings the interface up. If somebody made the interface beforehand, that may be left to us. Without the right to do
// it, the interface stays as it is.
void TapPort::bring_up() {
  ifreq request{};
  std::strncpy(request.ifr_name, name_.c_str(), IFNAMSIZ - 1);
  if (libc.ioctl(asking_.get(), SIOCGIFFLAGS, &request) != 0 || (request.ifr_flags & IFF_UP) != 0) return;
  request.ifr_flags = static_cast<short>(request.ifr_flags | IFF_UP);
  libc.ioctl(asking_.get(), SIOCSIFFLAGS, &request);
}

bool TapPort::set_up(const PortSpec& spec, std::string& problem) {
  name_ = spec.target;
  if (!prepare_virtio(spec, problem) || !make_device(problem)) return false;
  asking_ = Descriptor(libc.socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  bring_up();
  Interface interface;
  if (!look_at_interface(asking_.get(), name_, interface)) {
    problem = std::strerror(errno);
    return false;
  }
  if (!choose_mtu(spec, interface.mtu, problem)) return false;
  // The interface's own MAC address is the kernel's end of the link. It differs each time the interface is made.
  mac_ = spec.mac.is_zero() ? derive_mac(spec, {}) : spec.mac;
  wakeup_.add(tap_.get());
  return true;
}

// The kernel's side decides whether the interface is up. A frame that is sent before is lost with an error.
void TapPort::look() {
  Interface interface;
  set_link(look_at_interface(asking_.get(), name_, interface) && interface.is_up);
}

Packet* TapPort::take_one() {
  VnetHeader header;
  const iovec pieces[] = {{&header, sizeof header}, {frame_.data(), frame_.size()}};
  const ssize_t got = libc.readv(tap_.get(), pieces, 2);
  if (got < static_cast<ssize_t>(sizeof header)) return nullptr;
  Packet* const frame = pool_.copy_in(std::span(frame_).first(static_cast<std::size_t>(got) - sizeof header));
  if (frame != nullptr) note_header(header, *frame);
  return frame;
}

std::size_t TapPort::receive(std::uint16_t, std::span<Packet*> out) {
  std::size_t n = 0;
  std::uint64_t bytes = 0;
  for (; n < out.size() && (out[n] = take_one()) != nullptr; n++) bytes += out[n]->frame_len;
  mind_pool();
  if (n == 0) return 0;
  rx_frames_.add(n);
  rx_bytes_.add(bytes);
  return n;
}

std::size_t TapPort::send(std::uint16_t, std::span<Packet* const> frames) {
  if (!is_up()) [[unlikely]]
    return drop(frames);
  for (const Packet* frame : frames) {
    VnetHeader header = header_of(*frame);
    std::array<iovec, 1 + kMaxPieces> pieces;
    pieces[0] = {&header, sizeof header};
    const std::size_t count = 1 + gather(*frame, std::span(pieces).subspan(1));
    const bool sent = libc.writev(tap_.get(), pieces.data(), static_cast<int>(count)) >= 0;
    tx_frames_.add(sent ? 1 : 0);
    tx_bytes_.add(sent ? frame->frame_len : 0);
    tx_dropped_.add(sent ? 0 : 1);
  }
  free(frames);
  return frames.size();
}

}  // namespace bypass::packet
