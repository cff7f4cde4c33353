#include "backends/packet/interface.h"

#include <linux/if_packet.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cstring>

#include "backends/packet/libc.h"

namespace bypass::packet {

bool look_at_interface(int socket, const std::string& name, Interface& out) {
  out = {};
  ifreq request{};
  std::strncpy(request.ifr_name, name.c_str(), IFNAMSIZ - 1);
  if (libc.ioctl(socket, SIOCGIFINDEX, &request) != 0) return false;
  out.index = request.ifr_ifindex;
  if (libc.ioctl(socket, SIOCGIFMTU, &request) != 0) return false;
  out.mtu = static_cast<std::uint32_t>(request.ifr_mtu);
  if (libc.ioctl(socket, SIOCGIFHWADDR, &request) != 0) return false;
  out.is_ethernet = request.ifr_hwaddr.sa_family == ARPHRD_ETHER;
  std::copy_n(request.ifr_hwaddr.sa_data, out.mac.bytes.size(), out.mac.bytes.begin());
  if (libc.ioctl(socket, SIOCGIFFLAGS, &request) != 0) return false;
  constexpr short kPasses = IFF_UP | IFF_RUNNING;
  out.is_up = (request.ifr_flags & kPasses) == kPasses;
  return true;
}

bool look_at_ethernet(int socket, const std::string& name, Interface& out, std::string& problem) {
  if (!look_at_interface(socket, name, out)) {
    problem = "no network interface of that name (see: ip link)";
  } else if (!out.is_ethernet) {
    problem = "is no Ethernet interface; accepted is one with link/ether (see: ip link)";
  } else {
    return true;
  }
  return false;
}

bool take_frames_to(const MacAddress& mac, int packet_socket, const Interface& interface, unsigned short type) {
  if (mac == interface.mac) return true;
  packet_mreq wish{};
  wish.mr_ifindex = interface.index;
  wish.mr_type = type;
  wish.mr_alen = static_cast<unsigned short>(mac.bytes.size());
  std::memcpy(wish.mr_address, mac.bytes.data(), mac.bytes.size());
  return libc.setsockopt(packet_socket, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &wish, sizeof wish) == 0;
}

namespace {

std::string text_of(const MacAddress& mac) {
  char text[18];
  const auto& b = mac.bytes;
  (void)std::snprintf(text, sizeof text, "%02x:%02x:%02x:%02x:%02x:%02x", b[0], b[1], b[2], b[3], b[4], b[5]);
  return text;
}

}  // namespace

std::string other_mac_problem(const MacAddress& now, const MacAddress& opened) {
  return "has the MAC address " + text_of(now) + " now; what was opened when it was " + text_of(opened) +
         " reaches nobody until it is that again";
}

MacAddress derive_mac(const PortSpec& spec, const MacAddress& interface) {
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  const auto mix = [&](const auto& bytes) {
    for (const auto byte : bytes) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  };
  mix(spec.target);
  for (const IpAddress& address : spec.addresses) mix(address.bytes);
  mix(interface.bytes);
  MacAddress mac;
  for (std::size_t i = 0; i < mac.bytes.size(); i++) mac.bytes[i] = static_cast<std::uint8_t>(hash >> (8 * i));
  mac.bytes[0] = static_cast<std::uint8_t>((mac.bytes[0] & 0xfc) | 0x02);  // locally administered, unicast
  return mac;
}

}  // namespace bypass::packet
