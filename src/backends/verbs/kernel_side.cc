#include "backends/verbs/kernel_side.h"

#include <linux/icmp.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "backends/packet/interface.h"
#include "backends/packet/libc.h"
#include "stack/frame/wire.h"

namespace bypass::verbs {
namespace {

using packet::Descriptor;
using packet::libc;

constexpr std::uint16_t kDiscard = 9;  // RFC 863
constexpr int kBehind = 4 << 20;       // bytes of news that may wait while nobody reads

int open_raw(int family, int protocol) {
  return libc.socket(family, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, protocol);
}

bool look(const std::string& interface, packet::Interface& found, std::string& problem) {
  const Descriptor any(libc.socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (packet::look_at_interface(any.get(), interface, found)) return true;
  problem = "no network interface " + interface + ": " + strerrordesc_np(errno);
  return false;
}

struct Neighbour {
  std::uint32_t address = 0;
  MacAddress mac;
  bool known = false;
};

// Reads a neighbour from the kernel's RTM_NEWNEIGH.
Neighbour neighbour_in(const nlmsghdr& message, int interface) {
  Neighbour neighbour;
  const auto* const body = static_cast<const ndmsg*>(NLMSG_DATA(&message));
  if (message.nlmsg_type != RTM_NEWNEIGH || body->ndm_family != AF_INET || body->ndm_ifindex != interface)
    return neighbour;
  constexpr unsigned kValid = NUD_PERMANENT | NUD_NOARP | NUD_REACHABLE | NUD_PROBE | NUD_STALE | NUD_DELAY;
  if ((body->ndm_state & kValid) == 0) return neighbour;
  auto left = static_cast<int>(NLMSG_PAYLOAD(&message, sizeof *body));
  const auto* each = reinterpret_cast<const rtattr*>(reinterpret_cast<const char*>(body) + NLMSG_ALIGN(sizeof *body));
  for (; RTA_OK(each, left); each = RTA_NEXT(each, left)) {
    if (each->rta_type == NDA_DST && RTA_PAYLOAD(each) == sizeof neighbour.address) {
      std::memcpy(&neighbour.address, RTA_DATA(each), sizeof neighbour.address);
      neighbour.address = be32_to_host(neighbour.address);
    } else if (each->rta_type == NDA_LLADDR && RTA_PAYLOAD(each) == neighbour.mac.bytes.size()) {
      std::memcpy(neighbour.mac.bytes.data(), RTA_DATA(each), neighbour.mac.bytes.size());
      neighbour.known = true;
    }
  }
  return neighbour;
}

}  // namespace

bool KernelSide::is_there(const std::string& interface, const MacAddress& mac, std::string& problem) {
  packet::Interface found;
  if (!look(interface, found, problem)) return false;
  if (found.mac == mac) return true;
  problem = "the network interface " + interface + " has another MAC address than before";
  return false;
}

bool KernelSide::is_another() const {
  packet::Interface found;
  std::string problem;
  return look(name_, found, problem) && found.index != interface_ && found.mac == mac_;
}

bool KernelSide::open(const std::string& interface, packet::Wakeup& wakeup, std::string& problem) {
  packet::Interface found;
  if (!look(interface, found, problem)) return false;
  name_ = interface;
  return watch(found, wakeup, problem);
}

bool KernelSide::follow(packet::Wakeup& wakeup, std::string& problem) {
  packet::Interface found;
  moved_ = look(name_, found, problem) && found.mac == mac_;
  problem.clear();
  return moved_ && watch(found, wakeup, problem);  // else news that is heard later tells
}

// The old sockets stay until all new ones are there.
bool KernelSide::watch(const packet::Interface& found, packet::Wakeup& wakeup, std::string& problem) {
  Descriptor news(open_raw(AF_NETLINK, NETLINK_ROUTE));
  sockaddr_nl address{};
  address.nl_family = AF_NETLINK;
  address.nl_groups = RTMGRP_NEIGH | RTMGRP_LINK;
  if (!news.is_open() || libc.bind(news.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    problem = "the kernel does not tell of the neighbours on " + name_ + ": " + strerrordesc_np(errno);
    return false;
  }
  (void)libc.setsockopt(news.get(), SOL_SOCKET, SO_RCVBUF, &kBehind, sizeof kBehind);
  netlink_ = std::move(news);
  mac_ = found.mac;
  interface_ = found.index;
  moved_ = false;
  wakeup.add(netlink_.get());
  // Without CAP_NET_RAW, which the queue pair needs, too, no ICMP errors are heard. TCP lives without them.
  icmp_ = Descriptor(open_raw(AF_INET, IPPROTO_ICMP));
  icmp_filter filter{};
  filter.data = ~(1U << ICMP_DEST_UNREACH | 1U << ICMP_TIME_EXCEEDED | 1U << ICMP_PARAMETERPROB);
  if (!icmp_.is_open() || libc.setsockopt(icmp_.get(), SOL_RAW, ICMP_FILTER, &filter, sizeof filter) != 0 ||
      libc.setsockopt(icmp_.get(), SOL_SOCKET, SO_BINDTODEVICE, name_.c_str(),
                      static_cast<socklen_t>(name_.size() + 1)) != 0)
    icmp_.close();
  if (icmp_.is_open()) wakeup.add(icmp_.get());
  sockets_ = Descriptor(open_raw(AF_NETLINK, NETLINK_SOCK_DIAG));
  return true;
}

// --- Questions

void KernelSide::take_arp(const Packet& frame) {
  if (!wire::fits<wire::Arp>(frame, sizeof(wire::Ethernet))) return;
  const auto& arp = wire::at<wire::Arp>(frame, sizeof(wire::Ethernet));
  const std::uint32_t target = arp.target_ip, sender = arp.sender_ip;
  if (arp.operation != wire::kArpRequest || target == sender) return;  // the kernel answers others
  const auto asked = std::find_if(open_.begin(), open_.end(), [&](const Question& q) { return q.address == target; });
  if (asked == open_.end()) {
    Question& place = open_[next_++ % open_.size()];  // the oldest question will be asked again by its asker
    if (place.address == 0) questions_++;
    place = {target, sender};
  }
  ask(target);
}

// The kernel answers at once what it knows. What it has to find out, it answers later. Using an entry keeps it fresh.
void KernelSide::ask(std::uint32_t address) {
  (void)request(RTM_GETNEIGH, NLM_F_REQUEST, 0, address);
  may_ask_ = may_ask_ && request(RTM_NEWNEIGH, NLM_F_REQUEST | NLM_F_CREATE, NTF_USE, address);
  if (!may_ask_) nudge(address);
}

bool KernelSide::request(std::uint16_t type, std::uint16_t flags, std::uint8_t neighbour_flags,
                         std::uint32_t address) const {
  struct {
    nlmsghdr head;
    ndmsg body;
    rtattr attribute;
    std::uint32_t address;
  } message{};
  message.head.nlmsg_len = sizeof message;
  message.head.nlmsg_type = type;
  message.head.nlmsg_flags = flags;
  message.body.ndm_family = AF_INET;
  message.body.ndm_ifindex = interface_;
  message.body.ndm_flags = neighbour_flags;
  message.attribute.rta_type = NDA_DST;
  message.attribute.rta_len = RTA_LENGTH(sizeof message.address);
  message.address = host_to_be32(address);
  return libc.sendto(netlink_.get(), &message, sizeof message, 0, nullptr, 0) == static_cast<ssize_t>(sizeof message);
}

// Makes the kernel look a neighbour up, where CAP_NET_ADMIN is missing: the kernel does so when it has something to
// send there.
void KernelSide::nudge(std::uint32_t address) const {
  const Descriptor socket(libc.socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = host_to_be16(kDiscard);
  to.sin_addr.s_addr = host_to_be32(address);
  (void)libc.setsockopt(socket.get(), SOL_SOCKET, SO_BINDTODEVICE, name_.c_str(),
                        static_cast<socklen_t>(name_.size() + 1));
  (void)libc.sendto(socket.get(), "", 0, MSG_DONTROUTE, reinterpret_cast<const sockaddr*>(&to), sizeof to);
}

// --- Connections

bool KernelSide::is_wrong_reset(const Packet& frame) const {
  if (!wire::fits<wire::Ipv4>(frame, sizeof(wire::Ethernet)) || !sockets_.is_open()) return false;
  const auto& ip = wire::at<wire::Ipv4>(frame, sizeof(wire::Ethernet));
  const std::size_t tcp = sizeof(wire::Ethernet) + ip.header_len();
  constexpr std::size_t kFlags = 13;
  constexpr auto kReset = std::byte{4};
  if (ip.protocol != wire::kProtocolTcp || frame.len <= tcp + kFlags) return false;
  if ((frame.data[tcp + kFlags] & kReset) == std::byte{}) [[likely]]
    return false;
  return has_connection(frame.data + offsetof(wire::Ipv4, source) + sizeof(wire::Ethernet), frame.data + tcp);
}

// `addresses` and `ports`: as they lie in a frame of ours, local before remote. The kernel may find a listener instead.
bool KernelSide::has_connection(const std::byte* addresses, const std::byte* ports) const {
  struct {
    nlmsghdr head;
    inet_diag_req_v2 body;
  } request{};
  request.head.nlmsg_len = sizeof request;
  request.head.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  request.head.nlmsg_flags = NLM_F_REQUEST;
  request.body.sdiag_family = AF_INET;
  request.body.sdiag_protocol = IPPROTO_TCP;
  request.body.idiag_states = ~0U;
  std::memcpy(&request.body.id.idiag_src[0], addresses, sizeof(std::uint32_t));
  std::memcpy(&request.body.id.idiag_dst[0], addresses + sizeof(std::uint32_t), sizeof(std::uint32_t));
  std::memcpy(&request.body.id.idiag_sport, ports, sizeof(std::uint16_t));
  std::memcpy(&request.body.id.idiag_dport, ports + sizeof(std::uint16_t), sizeof(std::uint16_t));
  request.body.id.idiag_cookie[0] = request.body.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  alignas(nlmsghdr) char answer[4096];
  if (libc.sendto(sockets_.get(), &request, sizeof request, 0, nullptr, 0) < 0) return false;
  const ssize_t got = libc.recv(sockets_.get(), answer, sizeof answer, 0);
  const auto* const head = reinterpret_cast<const nlmsghdr*>(answer);
  if (got < static_cast<ssize_t>(NLMSG_LENGTH(sizeof(inet_diag_msg))) || head->nlmsg_type != SOCK_DIAG_BY_FAMILY)
    return false;
  return static_cast<const inet_diag_msg*>(NLMSG_DATA(head))->idiag_state != TCP_LISTEN;
}

// --- Answers

std::size_t KernelSide::receive(packet::FramePool& pool, std::span<Packet*> out) {
  const std::size_t n = read_neighbours(pool, out);
  return n + read_errors(pool, out.subspan(n));
}

std::size_t KernelSide::read_neighbours(packet::FramePool& pool, std::span<Packet*> out) {
  alignas(nlmsghdr) char told[8192];
  std::size_t n = 0;
  bool links = false;  // some interfaces have changed
  while (n + kMostReady <= out.size()) {
    const ssize_t got = libc.recv(netlink_.get(), told, sizeof told, 0);
    if (got < 0 && errno == ENOBUFS) {  // some news is lost: a stack that still needs an answer asks again
      ask_again();
      links = true;
      continue;
    }
    if (got <= 0) break;
    auto left = static_cast<std::size_t>(got);
    for (const auto* each = reinterpret_cast<const nlmsghdr*>(told); NLMSG_OK(each, left);
         each = NLMSG_NEXT(each, left)) {
      // EPERM answers a request of ours. ENOENT: the kernel is finding the neighbour out.
      if (each->nlmsg_type == NLMSG_ERROR && static_cast<const nlmsgerr*>(NLMSG_DATA(each))->error == -EPERM) {
        may_ask_ = false;
        for (const Question& question : open_)
          if (question.address != 0) nudge(question.address);
      }
      links = links || each->nlmsg_type == RTM_NEWLINK;
      const Neighbour neighbour = neighbour_in(*each, interface_);
      Packet* const frame =
          neighbour.known && n < out.size() ? answer(pool, neighbour.address, neighbour.mac) : nullptr;
      if (frame != nullptr) out[n++] = frame;
    }
  }
  moved_ = moved_ || (links && is_another());
  return n;
}

// What this process has told the stack about the address. An earlier owner of the port may have told something, too.
KernelSide::Known* KernelSide::known_of(std::uint32_t address) {
  const auto known = std::find_if(known_.begin(), known_.end(), [&](const Known& k) { return k.address == address; });
  return known == known_.end() ? nullptr : &*known;
}

void KernelSide::ask_again() const {
  for (const Known& each : known_)
    if (each.address != 0) (void)request(RTM_GETNEIGH, NLM_F_REQUEST, 0, each.address);
}

// The frame that tells the stack. Null: the stack has not asked, and the address is nothing new. What it has not asked
// for is an announcement (RFC 5227 §3). A stack that uses another MAC address will ask.
Packet* KernelSide::answer(packet::FramePool& pool, std::uint32_t address, const MacAddress& mac) {
  const auto asked = std::find_if(open_.begin(), open_.end(), [&](const Question& q) { return q.address == address; });
  const bool is_asked = asked != open_.end();
  Known* const known = known_of(address);
  if (!is_asked && known != nullptr && known->mac == mac) return nullptr;
  Packet* const frame = pool.take();
  if (frame == nullptr) return nullptr;
  (known != nullptr ? *known : known_[next_known_++ % known_.size()]) = {address, mac};
  frame->len = frame->frame_len = sizeof(wire::Ethernet) + sizeof(wire::Arp);
  auto& ethernet = wire::at<wire::Ethernet>(*frame, 0);
  ethernet.destination = mac_;
  ethernet.source = mac;
  ethernet.type = wire::kEtherTypeArp;
  auto& arp = wire::at<wire::Arp>(*frame, sizeof ethernet);
  arp.hardware = 1;
  arp.protocol = wire::kEtherTypeIpv4;
  arp.hardware_len = sizeof(MacAddress);
  arp.protocol_len = sizeof(std::uint32_t);
  arp.operation = wire::kArpReply;
  arp.sender_mac = mac;
  arp.sender_ip = address;
  arp.target_mac = mac_;
  arp.target_ip = is_asked ? asked->asker : address;
  if (!is_asked) return frame;
  *asked = {};
  questions_--;
  return frame;
}

std::size_t KernelSide::read_errors(packet::FramePool& pool, std::span<Packet*> out) const {
  std::byte error[1500];
  std::size_t n = 0;
  while (icmp_.is_open() && n < out.size()) {
    auto* const packet = error + sizeof(wire::Ethernet);
    const ssize_t got = libc.recv(icmp_.get(), packet, sizeof error - sizeof(wire::Ethernet), 0);
    if (got <= 0) break;
    wire::Ethernet ethernet{mac_, mac_, {}};
    ethernet.type = wire::kEtherTypeIpv4;
    std::memcpy(error, &ethernet, sizeof ethernet);
    Packet* const frame = pool.copy_in({error, sizeof ethernet + static_cast<std::size_t>(got)});
    if (frame != nullptr) out[n++] = frame;
  }
  return n;
}

}  // namespace bypass::verbs
