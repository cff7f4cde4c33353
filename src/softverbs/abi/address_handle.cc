// Address handles: the destination of a datagram, and how to answer one.
#include <arpa/inet.h>
#include <netinet/ip.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "softverbs/abi/objects.h"
#include "softverbs/abi/real.h"
#include "stack/frame/checksum.h"

namespace bypass::softverbs {
namespace {

/// The offset of the IP header of a RoCE datagram over IPv4, in the 40 bytes of a global routing header.
constexpr std::size_t kIpv4Offset = 20;
constexpr std::uint8_t kUdp = 17;
constexpr std::uint32_t kFlowLabel = 0xfffff;

ibv_gid mapped(const std::byte* ipv4) {
  ibv_gid gid{};
  gid.raw[10] = gid.raw[11] = 0xff;
  std::memcpy(&gid.raw[12], ipv4, 4);
  return gid;
}

bool is_group(const ibv_gid& gid) {
  return gid.raw[0] == 0xff || (gid.raw[10] == 0xff && gid.raw[11] == 0xff && gid.raw[12] >> 4 == 0xe);
}

// The index of one of the device's own addresses; -1: it is another address.
int find_gid(Context& context, const ibv_gid& gid) {
  const Adapter::Turn turn(*context.adapter);
  if (!turn) return -1;
  const auto gids = turn->gids();
  for (std::size_t i = 0; i < gids.size(); i++)
    if (std::memcmp(&gids[i], &gid, sizeof gid) == 0) return static_cast<int>(i);
  return -1;
}

struct Route {
  ibv_gid from, to;
  std::uint8_t hop_limit, traffic_class;
};

// False, with errno: the bytes are no header of a RoCE v2 datagram.
bool read_route(const ibv_grh& grh, Route& route) {
  const auto* const bytes = reinterpret_cast<const std::byte*>(&grh);
  iphdr ip;
  std::memcpy(&ip, bytes + kIpv4Offset, sizeof ip);
  const std::uint32_t version = ntohl(grh.version_tclass_flow) >> 28;
  // The second half of an IPv6 header may look like an IPv4 header, but then its checksum is not correct.
  if (ip.version == 4 && ip.ihl == 5 && (version != 6 || checksum_is_good(checksum(&ip, sizeof ip)))) {
    route = {mapped(bytes + kIpv4Offset + 12), mapped(bytes + kIpv4Offset + 16), ip.ttl, ip.tos};
    return true;
  }
  if (version != 6 || grh.next_hdr != kUdp) {
    errno = EPROTONOSUPPORT;
    return false;
  }
  route = {grh.sgid, grh.dgid, grh.hop_limit, static_cast<std::uint8_t>(ntohl(grh.version_tclass_flow) >> 20)};
  return true;
}

int answer_to(Context& context, std::uint8_t port, const ibv_wc& wc, const ibv_grh& grh, ibv_ah_attr& attr) {
  attr = {};
  attr.dlid = wc.slid;  // its service level is the kind of the received header, not one to send with
  attr.src_path_bits = wc.dlid_path_bits;
  attr.port_num = port;
  if ((wc.wc_flags & IBV_WC_GRH) == 0) return 0;
  Route route{};
  if (!read_route(grh, route)) return -1;
  const int own = is_group(route.to) ? -1 : find_gid(context, route.to);
  if (own < 0) {
    errno = EINVAL;
    return -1;
  }
  attr.is_global = 1;
  attr.grh.dgid = route.from;
  attr.grh.sgid_index = static_cast<std::uint8_t>(own);
  attr.grh.hop_limit = route.hop_limit;
  attr.grh.traffic_class = route.traffic_class;
  attr.grh.flow_label = ntohl(grh.version_tclass_flow) & kFlowLabel;
  return 0;
}

}  // namespace

extern "C" {

ibv_ah* ibv_create_ah(ibv_pd* pd, ibv_ah_attr* attr) {
  Context* const ours = Context::find(pd->context);
  if (ours == nullptr) return BYPASS_REAL(ibv_create_ah)(pd, attr);
  if (attr->is_global != 0 && !is_group(attr->grh.dgid))
    if (const int error = ours->adapter->await_peer(attr->grh.dgid); error != 0) return refuse<ibv_ah>(error);
  Adapter::Turn turn(*ours->adapter);
  if (!turn) return refuse<ibv_ah>(EIO);
  const auto made = turn->create_ah(*ProtectionDomain::of(pd).engine, *attr);
  if (made.error != 0) return refuse<ibv_ah>(made.error);
  auto* const ah = new AddressHandle;
  ah->engine = made.object;
  ah->context = pd->context;
  ah->pd = pd;
  ours->ahs.push_back(*ah);
  return ah;
}

int ibv_init_ah_from_wc(ibv_context* context, std::uint8_t port, ibv_wc* wc, ibv_grh* grh, ibv_ah_attr* attr) {
  Context* const ours = Context::find(context);
  if (ours == nullptr) return BYPASS_REAL(ibv_init_ah_from_wc)(context, port, wc, grh, attr);
  return answer_to(*ours, port, *wc, *grh, *attr);
}

ibv_ah* ibv_create_ah_from_wc(ibv_pd* pd, ibv_wc* wc, ibv_grh* grh, std::uint8_t port) {
  Context* const ours = Context::find(pd->context);
  if (ours == nullptr) return BYPASS_REAL(ibv_create_ah_from_wc)(pd, wc, grh, port);
  ibv_ah_attr attr;
  return answer_to(*ours, port, *wc, *grh, attr) == 0 ? ibv_create_ah(pd, &attr) : nullptr;
}

int ibv_destroy_ah(ibv_ah* ah) {
  Context* const ours = Context::find(ah->context);
  if (ours == nullptr) return BYPASS_REAL(ibv_destroy_ah)(ah);
  Adapter::Turn turn(*ours->adapter);
  AddressHandle* const handle = &AddressHandle::of(ah);
  const int error = turn ? turn->destroy_ah(*handle->engine) : 0;
  if (error == 0) delete handle;
  return error;
}

int ibv_resolve_eth_l2_from_gid(ibv_context* context, ibv_ah_attr* attr, std::uint8_t mac[ETHERNET_LL_SIZE],
                                std::uint16_t* vid) {
  Context* const ours = Context::find(context);
  if (ours == nullptr) return BYPASS_REAL(ibv_resolve_eth_l2_from_gid)(context, attr, mac, vid);
  if (const int error = ours->adapter->await_peer(attr->grh.dgid); error != 0) return -error;
  const Adapter::Turn turn(*ours->adapter);
  MacAddress known;
  if (!turn || !turn->neighbour(attr->grh.dgid, known)) return -EHOSTUNREACH;
  std::memcpy(mac, known.bytes.data(), ETHERNET_LL_SIZE);
  if (vid != nullptr) *vid = 0xffff;  // no VLAN
  return 0;
}

}  // extern "C"

}  // namespace bypass::softverbs
