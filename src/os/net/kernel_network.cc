#include "os/net/kernel_network.h"

#include <linux/if_addr.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "os/os.h"

namespace bypass::runtime {
namespace {

std::uint32_t number_of(const rtattr* attribute) {
  std::uint32_t value = 0;
  if (attribute != nullptr && RTA_PAYLOAD(attribute) >= sizeof value)
    std::memcpy(&value, RTA_DATA(attribute), sizeof value);
  return value;
}

IpAddress address_of(const rtattr* attribute, int family) {
  IpAddress address = family == AF_INET ? IpAddress::from_v4(0) : IpAddress{};
  const std::size_t bytes = family == AF_INET ? 4 : 16;
  if (attribute != nullptr && RTA_PAYLOAD(attribute) >= bytes)
    std::memcpy(address.bytes.data() + 16 - bytes, RTA_DATA(attribute), bytes);
  return address;
}

// The attributes after a message's fixed part, indexed by their number.
template <std::size_t kMost>
struct Attributes {
  const rtattr* all[kMost + 1] = {};

  Attributes(const rtattr* first, std::size_t bytes) {
    auto left = static_cast<int>(bytes);
    for (const rtattr* each = first; RTA_OK(each, left); each = RTA_NEXT(each, left))
      if (each->rta_type <= kMost) all[each->rta_type] = each;
  }
  [[nodiscard]] std::uint32_t number(std::size_t type) const { return number_of(all[type]); }
  [[nodiscard]] IpAddress address(std::size_t type, int family) const { return address_of(all[type], family); }
};

template <typename Body>
const rtattr* behind(const Body* body) {
  return reinterpret_cast<const rtattr*>(reinterpret_cast<const char*>(body) + NLMSG_ALIGN(sizeof(Body)));
}

// Requests everything of one kind and passes each message to take(). It makes direct system calls, because an
// interposed call may be its caller.
class Dump {
 public:
  explicit Dump(int netlink) : netlink_(netlink) {}

  template <typename Take>
  void ask(std::uint16_t type, Take take) {
    struct {
      nlmsghdr head;
      rtgenmsg body;
    } request{};
    request.head.nlmsg_len = sizeof request;
    request.head.nlmsg_type = type;
    request.head.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
    request.head.nlmsg_seq = type;
    request.body.rtgen_family = AF_UNSPEC;
    if (os::call(SYS_sendto, netlink_, os::address(&request), sizeof request, 0, 0, 0) < 0) return;
    while (read_some(type, take)) {
    }
  }

 private:
  // False: that was the last message.
  template <typename Take>
  bool read_some(std::uint16_t type, Take& take) {
    const long got = os::call(SYS_recvfrom, netlink_, os::address(answer_), sizeof answer_, 0, 0, 0);
    if (got <= 0) return got == -EINTR;
    auto left = static_cast<std::size_t>(got);
    for (const auto* each = reinterpret_cast<const nlmsghdr*>(answer_); NLMSG_OK(each, left);
         each = NLMSG_NEXT(each, left)) {
      if (each->nlmsg_seq != type) continue;  // the answer to an earlier question
      if (each->nlmsg_type == NLMSG_DONE || each->nlmsg_type == NLMSG_ERROR) return false;
      take(*each);
    }
    return true;
  }

  int netlink_;
  alignas(nlmsghdr) char answer_[16 << 10]{};
};

// Whether it is a route of the main table that packets can use.
bool is_route(const rtmsg& body, const Attributes<RTA_MAX>& attributes) {
  const std::uint32_t table = attributes.all[RTA_TABLE] != nullptr ? attributes.number(RTA_TABLE) : body.rtm_table;
  const bool leads = body.rtm_type == RTN_UNICAST || body.rtm_type == RTN_UNREACHABLE ||
                     body.rtm_type == RTN_BLACKHOLE || body.rtm_type == RTN_PROHIBIT;
  return table == RT_TABLE_MAIN && leads && (body.rtm_flags & RTM_F_CLONED) == 0;
}

}  // namespace

int KernelNetwork::index_of(const std::string& name) const {
  const auto at = std::find_if(interfaces.begin(), interfaces.end(), [&](const auto& i) { return i.name == name; });
  return at == interfaces.end() ? 0 : at->index;
}

std::uint32_t KernelNetwork::mtu_of(int interface) const {
  const auto at =
      std::find_if(interfaces.begin(), interfaces.end(), [&](const auto& i) { return i.index == interface; });
  return at == interfaces.end() ? 0 : at->mtu;
}

std::vector<Prefix> KernelNetwork::addresses_of(int interface) const {
  std::vector<Prefix> own;
  for (const Address& each : addresses)
    if (each.interface == interface && !each.prefix.address.is_link_local()) own.push_back(each.prefix);
  return own;
}

IpAddress KernelNetwork::link_local_of(int interface) const {
  for (const Address& each : addresses)
    if (each.interface == interface && each.prefix.address.is_link_local()) return each.prefix.address;
  return {};
}

void KernelNetworkReader::take_interface(const nlmsghdr& message) {
  const auto* const body = static_cast<const ifinfomsg*>(NLMSG_DATA(&message));
  const Attributes<IFLA_MAX> attributes(behind(body), NLMSG_PAYLOAD(&message, sizeof *body));
  const rtattr* const name = attributes.all[IFLA_IFNAME];
  if (name == nullptr) return;
  network_.interfaces.push_back(
      {body->ifi_index, static_cast<const char*>(RTA_DATA(name)), attributes.number(IFLA_MTU)});
}

void KernelNetworkReader::take_address(const nlmsghdr& message) {
  const auto* const body = static_cast<const ifaddrmsg*>(NLMSG_DATA(&message));
  if (body->ifa_family != AF_INET && body->ifa_family != AF_INET6) return;
  const Attributes<IFA_MAX> attributes(behind(body), NLMSG_PAYLOAD(&message, sizeof *body));
  // On a point-to-point link, IFA_ADDRESS is the peer's address.
  const std::size_t own = attributes.all[IFA_LOCAL] != nullptr ? IFA_LOCAL : IFA_ADDRESS;
  network_.addresses.push_back(
      {static_cast<int>(body->ifa_index), {attributes.address(own, body->ifa_family), body->ifa_prefixlen}});
}

void KernelNetworkReader::take_route(const nlmsghdr& message) {
  const auto* const body = static_cast<const rtmsg*>(NLMSG_DATA(&message));
  if (body->rtm_family != AF_INET && body->rtm_family != AF_INET6) return;
  const Attributes<RTA_MAX> attributes(behind(body), NLMSG_PAYLOAD(&message, sizeof *body));
  if (!is_route(*body, attributes)) return;
  const bool unicast = body->rtm_type == RTN_UNICAST;
  routes_.push_back({{unicast ? static_cast<int>(attributes.number(RTA_OIF)) : 0,
                      {attributes.address(RTA_DST, body->rtm_family), body->rtm_dst_len},
                      attributes.address(RTA_GATEWAY, body->rtm_family)},
                     attributes.number(RTA_PRIORITY)});
}

void KernelNetworkReader::take(const nlmsghdr& message) {
  switch (message.nlmsg_type) {
    case RTM_NEWLINK:
      return take_interface(message);
    case RTM_NEWADDR:
      return take_address(message);
    case RTM_NEWROUTE:
      return take_route(message);
    default:
      return;
  }
}

KernelNetwork KernelNetworkReader::finish() {
  std::stable_sort(routes_.begin(), routes_.end(),
                   [](const Measured& a, const Measured& b) { return a.metric < b.metric; });
  for (const Measured& each : routes_) network_.routes.push_back(each.route);
  return std::move(network_);
}

KernelNetwork read_kernel_network(int netlink) {
  KernelNetworkReader reader;
  Dump dump(netlink);
  for (const std::uint16_t type : {RTM_GETLINK, RTM_GETADDR, RTM_GETROUTE})
    dump.ask(type, [&](const nlmsghdr& message) { reader.take(message); });
  return reader.finish();
}

KernelNetwork read_kernel_network() {
  const long netlink = os::call(SYS_socket, AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
  if (netlink < 0) return {};
  KernelNetwork network = read_kernel_network(static_cast<int>(netlink));
  os::close(static_cast<int>(netlink));
  return network;
}

bool is_network_change(const nlmsghdr& message) {
  switch (message.nlmsg_type) {
    case RTM_NEWLINK:
    case RTM_DELLINK:
    case RTM_NEWADDR:
    case RTM_DELADDR:
      return true;
    case RTM_NEWROUTE:
    case RTM_DELROUTE: {
      const auto* const body = static_cast<const rtmsg*>(NLMSG_DATA(&message));
      if (message.nlmsg_len < NLMSG_SPACE(sizeof *body)) return true;
      return is_route(*body, Attributes<RTA_MAX>(behind(body), NLMSG_PAYLOAD(&message, sizeof *body)));
    }
    default:
      return false;
  }
}

bool has_network_change(std::span<const std::byte> messages) {
  while (messages.size() >= sizeof(nlmsghdr)) {
    const auto& message = *reinterpret_cast<const nlmsghdr*>(messages.data());
    const std::size_t bytes = message.nlmsg_len;
    if (bytes < sizeof message || bytes > messages.size() || is_network_change(message)) return true;
    messages = messages.subspan(std::min<std::size_t>(NLMSG_ALIGN(bytes), messages.size()));
  }
  return !messages.empty();
}

}  // namespace bypass::runtime
