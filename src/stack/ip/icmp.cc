#include "stack/ip/icmp.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "stack/counters.h"
#include "stack/frame/checksum.h"
#include "stack/frame/frame_writer.h"
#include "stack/frame/wire.h"
#include "stack/ip/fragment_writer.h"
#include "stack/ip/ipv4.h"
#include "stack/ip/network_impl.h"

namespace bypass {
namespace {

constexpr std::uint8_t kCodePortUnreachable = 3, kCodeFragmentationNeeded = 4, kCodeHostUnreachable = 1;
constexpr std::uint8_t kCodeReassemblyTime = 1;  // of "time exceeded"
constexpr std::size_t kQuotedL4 = 8;             // RFC 792: ports, and TCP's sequence number
// RFC 1812 §4.3.2.3: an error message is at most 576 bytes long.
constexpr std::size_t kMaxQuote = 576 - sizeof(wire::Ipv4) - sizeof(wire::Icmp);

// What Linux makes of "destination unreachable" (net/ipv4/icmp.c, icmp(7)): `fatal` errors reach a UDP socket.
struct Meaning {
  Error error;
  bool fatal;
};
constexpr std::array<Meaning, 16> kUnreachable = {{
    {Error::kNetUnreachable, false},   // 0 net
    {Error::kHostUnreachable, false},  // 1 host
    {Error::kProtocol, true},          // 2 protocol
    {Error::kRefused, true},           // 3 port
    {Error::kMessageTooLarge, true},   // 4 fragmentation needed
    {Error::kNotSupported, false},     // 5 source route failed
    {Error::kNetUnreachable, true},    // 6 net unknown
    {Error::kHostUnreachable, true},   // 7 host unknown
    {Error::kHostUnreachable, true},   // 8 host isolated
    {Error::kNetUnreachable, true},    // 9 net prohibited
    {Error::kHostUnreachable, true},   // 10 host prohibited
    {Error::kNetUnreachable, false},   // 11 net, type of service
    {Error::kHostUnreachable, false},  // 12 host, type of service
    {Error::kHostUnreachable, true},   // 13 prohibited by filter
    {Error::kHostUnreachable, true},   // 14 precedence violation
    {Error::kHostUnreachable, true},   // 15 precedence cut-off
}};

std::optional<Meaning> meaning(std::uint8_t type, std::uint8_t code) {
  if (type == wire::kIcmpUnreachable && code < kUnreachable.size()) return kUnreachable[code];
  if (type == wire::kIcmpTimeExceeded) return Meaning{Error::kHostUnreachable, false};
  if (type == wire::kIcmpParameterProblem) return Meaning{Error::kProtocol, true};
  return std::nullopt;
}

// Reads the IPv4 header and the first L4 bytes of a packet that we sent. False when too little is there.
bool read_quote(std::span<const std::byte> quote, IcmpError& error) {
  wire::Ipv4 ip;
  if (quote.size() < sizeof ip) return false;
  std::memcpy(&ip, quote.data(), sizeof ip);
  const std::size_t header = ip.header_len();
  if (ip.version_ihl >> 4 != 4 || header < sizeof ip || quote.size() < header + kQuotedL4) return false;
  if ((ip.fragment & wire::kFragmentOffset) != 0) return false;
  wire::Be16 ports[2];
  wire::Be32 sequence;
  std::memcpy(ports, quote.data() + header, sizeof ports);
  std::memcpy(&sequence, quote.data() + header + sizeof ports, sizeof sequence);
  error.protocol = ip.protocol;
  error.local = {IpAddress::from_v4(ip.source), ports[0]};
  error.remote = {IpAddress::from_v4(ip.destination), ports[1]};
  error.sequence = sequence;
  const auto payload = quote.subspan(header + kQuotedL4);
  error.quoted_length = static_cast<std::uint16_t>(std::min(payload.size(), error.quoted.size()));
  std::memcpy(error.quoted.data(), payload.data(), error.quoted_length);
  return true;
}

// Any "unreachable" but "fragmentation needed" ends a connection attempt, as on Linux. A datagram socket sees only the
// fatal ones.
bool is_hard(const IcmpError& error, bool fatal) {
  if (error.protocol != wire::kProtocolTcp) return fatal;
  return !(error.type == wire::kIcmpUnreachable && error.code == kCodeFragmentationNeeded);
}

std::optional<IcmpError> read_error(const Network& network, const Packet& packet, const L4Input& input,
                                    const wire::Icmp& icmp) {
  const std::optional<Meaning> what = meaning(icmp.type, icmp.code);
  if (!what) return std::nullopt;
  IcmpError error;
  error.error = what->error;
  error.type = icmp.type;
  error.code = icmp.code;
  if (error.error == Error::kMessageTooLarge) error.mtu = icmp.sequence;  // RFC 1191 §4; 0 from old routers
  const std::size_t quote = input.l4_offset + sizeof icmp;
  const std::size_t there = std::min<std::size_t>(packet.len, input.l4_offset + input.l4_len);
  if (!read_quote({packet.data + quote, there - quote}, error)) return std::nullopt;
  if (error.local.address != input.destination || !network.is_local(error.local.address)) return std::nullopt;
  error.hard = is_hard(error, what->fatal);
  error.offender = input.source;
  return error;
}

struct Reply {
  wire::Icmp header;
  std::size_t offset, len;  // the body in the frame that is answered
};

void fill_header(Packet& frame, wire::Icmp header, PartialSum body) {
  header.checksum = 0;
  header.checksum.set_raw(checksum_finish(checksum(&header, sizeof header) + body));
  wire::at<wire::Icmp>(frame, 0) = header;
}

bool reply_in_fragments(Network& network, Context& ctx, Path& path, const L4Input& input, const Reply& what) {
  FragmentWriter writer{network, ctx, path, sizeof what.header};
  if (!writer.append(*input.packet, what.offset, what.len)) return false;
  fill_header(*writer.first(), what.header, writer.sum());
  PacketList fragments = writer.take();
  const Result<bool> sent = network.send_fragments(ctx, path, fragments, wire::kProtocolIcmp);
  while (Packet* left = fragments.pop()) ctx.release(left);
  return sent.ok();
}

// Sends an ICMP message whose body is copied out of `input`'s frame, back to its source.
bool reply(Network& network, Context& ctx, const L4Input& input, const Reply& what) {
  Path path;
  path.tos = input.tos;
  if (!network.resolve(input.destination, input.source, path)) return false;
  if (!fits_one_packet(path, sizeof what.header + what.len)) return reply_in_fragments(network, ctx, path, input, what);
  FrameWriter writer{network, ctx, path, sizeof what.header};
  if (!writer.append(*input.packet, what.offset, what.len)) return false;
  fill_header(*writer.frame(), what.header, writer.sum());
  Packet* frame = writer.take();
  const Result<bool> sent = network.send(ctx, path, frame, wire::kProtocolIcmp);
  if (!sent && sent.error() == Error::kWouldBlock) ctx.release(frame);
  return sent.ok();
}

void answer_echo(Network& network, Context& ctx, const L4Input& input, wire::Icmp icmp) {
  Network::Impl& impl = network.impl();
  // RFC 1122 §3.2.2.6: an echo request to a broadcast address may be discarded, because smurf attacks use such
  // requests.
  if (input.broadcast) {
    impl.counters.drop_icmp_ignored++;
  } else if (!impl.echo_limit.allow(ctx.now)) {
    impl.counters.drop_icmp_rate++;
  } else {
    icmp.type = wire::kIcmpEchoReply;
    const std::size_t body = input.l4_offset + sizeof icmp;
    if (reply(network, ctx, input, {icmp, body, input.l4_len - sizeof icmp})) impl.counters.icmp_echo++;
  }
}

// Sends an error about a packet to us, and quotes as much of the packet as fits.
void send_error(Network& network, Context& ctx, const L4Input& input, std::uint8_t type, std::uint8_t code) {
  Network::Impl& impl = network.impl();
  if (!impl.error_limit.allow(ctx.now)) {
    impl.counters.drop_icmp_rate++;
    return;
  }
  wire::Icmp icmp{};
  icmp.type = type;
  icmp.code = code;
  const std::size_t ip_bytes = input.l4_offset - sizeof(wire::Ethernet) + std::size_t{input.l4_len};
  L4Input answered = input;
  answered.tos = 0;
  if (reply(network, ctx, answered, {icmp, sizeof(wire::Ethernet), std::min(ip_bytes, kMaxQuote)}))
    impl.counters.icmp_errors_out++;
}

}  // namespace

std::optional<IcmpError> on_icmp(Network& network, Context& ctx, const L4Input& input) {
  StackCounters& counters = network.impl().counters;
  Packet& packet = *input.packet;
  std::optional<IcmpError> error;
  const bool whole = input.l4_len >= sizeof(wire::Icmp) && wire::fits<wire::Icmp>(packet, input.l4_offset);
  if (!whole || !checksum_is_good(checksum_frame(packet, input.l4_offset, input.l4_len))) {
    counters.drop_icmp_malformed++;
  } else {
    const wire::Icmp icmp = wire::at<wire::Icmp>(packet, input.l4_offset);
    if (icmp.type == wire::kIcmpEcho) {
      answer_echo(network, ctx, input, icmp);
    } else {
      error = read_error(network, packet, input, icmp);
      error ? counters.icmp_errors_in++ : counters.drop_icmp_ignored++;
    }
  }
  ctx.release(&packet);
  return error;
}

std::optional<IcmpError> neighbour_unreachable(const Packet& frame) {
  IcmpError error;
  error.error = Error::kHostUnreachable;
  error.type = wire::kIcmpUnreachable;
  error.code = kCodeHostUnreachable;
  if (frame.len < sizeof(wire::Ethernet)) return std::nullopt;
  if (!read_quote(frame.bytes().subspan(sizeof(wire::Ethernet)), error)) return std::nullopt;
  error.hard = is_hard(error, false);
  error.offender = error.local.address;
  return error;
}

// RFC 1122 §3.2.2: no error about a broadcast, and none about an ICMP error.
void Network::send_port_unreachable(Context& ctx, const L4Input& input) {
  if (!input.broadcast) send_error(*this, ctx, input, wire::kIcmpUnreachable, kCodePortUnreachable);
}

void report_reassembly_timeout(Network& network, Context& ctx, Packet* first) {
  L4Input input;
  const bool parsed = parse_ipv4(*first, input) == Ipv4Check::kFragment;
  const bool may_be_error =
      input.protocol == wire::kProtocolIcmp && !(wire::fits<wire::Icmp>(*first, input.l4_offset) &&
                                                 wire::at<wire::Icmp>(*first, input.l4_offset).type == wire::kIcmpEcho);
  if (parsed && !may_be_error) send_error(network, ctx, input, wire::kIcmpTimeExceeded, kCodeReassemblyTime);
  ctx.release(first);
}

}  // namespace bypass
