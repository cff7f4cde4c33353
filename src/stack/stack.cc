#include "stack/stack.h"

#include <algorithm>
#include <new>

#include "stack/frame/checksum.h"
#include "stack/frame/wire.h"
#include "stack/ip/icmp.h"
#include "stack/ip/network_impl.h"

namespace bypass {
namespace {

constexpr std::size_t kBurst = 64;
constexpr std::size_t kPrefetchAhead = 4;

// The L4 packets of one burst, for one protocol. Not initialised: a burst is often one frame.
class Batch {
 public:
  /// A place for the next packet; it becomes part of the batch only by keep().
  L4Input& place() { return *new (storage_ + sizeof(L4Input) * count_) L4Input; }
  void keep() { count_++; }
  void add(const L4Input& input) {
    place() = input;
    keep();
  }
  [[nodiscard]] std::span<L4Input> items() { return {std::launder(reinterpret_cast<L4Input*>(storage_)), count_}; }

 private:
  alignas(L4Input) std::byte storage_[sizeof(L4Input) * kBurst];
  std::size_t count_ = 0;
};

PartialSum pseudo_sum(const L4Input& in) {
  return checksum_pseudo(in.source, in.destination, in.protocol, in.l4_len);
}

bool sums_well(const L4Input& in) {
  if (in.checksum_good) return true;
  if ((in.packet->flags & kRxChecksumBad) != 0) return false;
  return checksum_is_good(checksum_frame(*in.packet, in.l4_offset, in.l4_len) + pseudo_sum(in));
}

// The fixed header and the options lie inside the segment, and in the head as packet.h promises.
bool tcp_header_is_whole(const L4Input& in) {
  if (in.l4_len < wire::kMinTcpHeader || in.packet->len < in.l4_offset + wire::kMinTcpHeader) return false;
  const std::size_t header = std::to_integer<std::size_t>(in.packet->data[in.l4_offset + 12] >> 4) * 4;
  return header >= wire::kMinTcpHeader && header <= in.l4_len && in.l4_offset + header <= in.packet->len;
}

}  // namespace

struct Stack::Impl {
  Impl(Memory& memory_in, const StackConfig& config)
      : memory(memory_in),
        network(memory_in, counters, config),
        tcp(memory_in, network, events, counters, config.tcp),
        udp(memory_in, network, events, counters) {}

  void on_burst(Context& ctx, std::uint16_t port, std::span<Packet* const> frames);
  void sort(Context& ctx, L4Input& input, Batch& segments, Batch& datagrams);
  void take_tcp(Context& ctx, L4Input& input, Batch& segments);
  void take_udp(Context& ctx, L4Input& input, Batch& datagrams);
  void deliver_looped(Context& ctx);
  void report(Context& ctx, const IcmpError& error);
  void report_failed_neighbours(Context& ctx);
  void report_expired_fragments(Context& ctx);
  void drop(Context& ctx, const L4Input& input, std::uint64_t& reason) {
    reason++;
    ctx.release(input.packet);
  }

  Memory& memory;
  StackCounters counters;
  EventList events;
  Network network;
  tcp::Engine tcp;
  udp::Engine udp;
};

Stack* Stack::create(Memory& memory, const StackConfig& config) {
  void* place = memory.allocate(sizeof(Stack));
  void* impl_place = memory.allocate(sizeof(Impl));
  if (place == nullptr || impl_place == nullptr) return nullptr;
  auto* stack = new (place) Stack;
  stack->impl_ = new (impl_place) Impl(memory, config);
  const Impl& impl = *stack->impl_;
  return impl.network.valid() && impl.tcp.valid() && impl.udp.valid() ? stack : nullptr;
}

Result<bool> Stack::set_interface(std::uint16_t port, const InterfaceConfig& config) {
  return impl_->network.set_interface(port, config);
}

Result<bool> Stack::change_interface(Context& ctx, std::uint16_t port, const InterfaceConfig& config) {
  const std::uint32_t before = impl_->network.mtu(port);
  const Result<bool> changed = impl_->network.change_interface(port, config);
  if (changed && config.mtu != before) impl_->tcp.on_mtu(ctx, port, before, config.mtu);
  return changed;
}

// --- Input

void Stack::on_frames(Context& ctx, std::uint16_t port, std::span<Packet* const> frames) {
  impl_->counters.rx_frames += frames.size();
  while (!frames.empty()) {
    const std::size_t n = std::min(frames.size(), kBurst);
    impl_->on_burst(ctx, port, frames.first(n));
    frames = frames.subspan(n);
  }
}

void Stack::Impl::on_burst(Context& ctx, std::uint16_t port, std::span<Packet* const> frames) {
  for (std::size_t i = 0; i < std::min(frames.size(), kPrefetchAhead); i++) __builtin_prefetch(frames[i]->data);
  Batch segments, datagrams;
  for (std::size_t i = 0; i < frames.size(); i++) {
    if (i + kPrefetchAhead < frames.size()) __builtin_prefetch(frames[i + kPrefetchAhead]->data);
    L4Input& input = segments.place();
    if (network.impl().receive(ctx, port, frames[i], input)) sort(ctx, input, segments, datagrams);
  }
  if (!segments.items().empty()) tcp.on_segments(ctx, segments.items());
  if (!datagrams.items().empty()) udp.on_datagrams(ctx, datagrams.items());
  Arp::Announced announced;
  // One walk over the connections for the whole burst: announcements are cheap to forge.
  if (const std::size_t n = network.impl().arp.take_announced(announced); n != 0) [[unlikely]]
    tcp.on_announced(ctx, std::span(announced).first(n));
}

void Stack::Impl::sort(Context& ctx, L4Input& input, Batch& segments, Batch& datagrams) {
  switch (input.protocol) {
    case wire::kProtocolTcp:
      return take_tcp(ctx, input, segments);
    case wire::kProtocolUdp:
      return take_udp(ctx, input, datagrams);
    case wire::kProtocolIcmp:
      if (const auto error = on_icmp(network, ctx, input)) report(ctx, *error);
      return;
    default:
      return drop(ctx, input, counters.drop_ip_protocol);
  }
}

void Stack::Impl::take_tcp(Context& ctx, L4Input& input, Batch& segments) {
  // RFC 9293 §3.9.2.3 (MUST-57): segments to a broadcast or multicast address are discarded.
  if (input.broadcast) return drop(ctx, input, counters.drop_ip_not_ours);
  if (!tcp_header_is_whole(input)) return drop(ctx, input, counters.drop_tcp_malformed);
  if (!sums_well(input)) return drop(ctx, input, counters.drop_tcp_checksum);
  input.checksum_good = true;
  segments.keep();  // on_burst() has put it there
}

void Stack::Impl::take_udp(Context& ctx, L4Input& input, Batch& datagrams) {
  if (input.l4_len < sizeof(wire::Udp) || !wire::fits<wire::Udp>(*input.packet, input.l4_offset))
    return drop(ctx, input, counters.drop_udp_malformed);
  const auto& udp_header = wire::at<wire::Udp>(*input.packet, input.l4_offset);
  const std::uint32_t len = udp_header.length;
  if (len < sizeof(wire::Udp) || len > input.l4_len) return drop(ctx, input, counters.drop_udp_malformed);
  input.l4_len = len;
  const bool unsummed = udp_header.checksum == 0;  // RFC 768: the sender has made no checksum
  if (!unsummed && !sums_well(input)) return drop(ctx, input, counters.drop_udp_malformed);
  input.checksum_good = true;
  datagrams.add(input);
}

void Stack::Impl::report(Context& ctx, const IcmpError& error) {
  if (error.protocol == wire::kProtocolTcp) tcp.on_icmp(ctx, error);
  if (error.protocol == wire::kProtocolUdp) udp.on_icmp(ctx, error);
}

// Delivers what was under way to ourselves when this began. Answers to it wait for the next poll.
void Stack::Impl::deliver_looped(Context& ctx) {
  std::uint32_t left = network.impl().looped.count();
  while (left != 0) {
    Batch segments, datagrams;
    for (std::size_t i = 0; i < kBurst && left != 0; i++, left--) {
      counters.rx_frames++;
      L4Input& input = segments.place();
      if (network.impl().receive_looped(ctx, network.impl().looped.pop(), input)) sort(ctx, input, segments, datagrams);
    }
    if (!segments.items().empty()) tcp.on_segments(ctx, segments.items());
    if (!datagrams.items().empty()) udp.on_datagrams(ctx, datagrams.items());
  }
}

// --- Time and output

void Stack::Impl::report_failed_neighbours(Context& ctx) {
  PacketList failed = network.impl().arp.take_failed();
  while (Packet* frame = failed.pop()) {
    if (const auto error = neighbour_unreachable(*frame)) report(ctx, *error);
    ctx.release(frame);
  }
}

void Stack::Impl::report_expired_fragments(Context& ctx) {
  PacketList expired = network.impl().fragments.take_expired();
  while (Packet* first = expired.pop()) report_reassembly_timeout(network, ctx, first);
}

void Stack::for_each_steered(void (*each)(void* argument, const FlowSpec&), void* argument) const {
  impl_->tcp.for_each_steered(each, argument);
  impl_->udp.for_each_steered(each, argument);
}

void Stack::steer_all(Context& ctx) {
  impl_->network.flows().clear();
  impl_->tcp.steer_all(ctx);
  impl_->udp.steer_all();
}

void Stack::on_link_up(Context& ctx, std::uint16_t port) {
  impl_->network.impl().arp.on_link_up(ctx, port);
  impl_->tcp.on_link_up(ctx);
}

void Stack::on_timers(Context& ctx) {
  if (ctx.now < next_timeout()) return;
  if (!impl_->network.impl().looped.empty()) impl_->deliver_looped(ctx);
  impl_->network.impl().on_timers(ctx);
  impl_->report_failed_neighbours(ctx);
  impl_->report_expired_fragments(ctx);
  impl_->tcp.on_timers(ctx);
}

Instant Stack::next_timeout() const {
  return std::min(impl_->network.impl().next_timeout(), impl_->tcp.next_timeout());
}

void Stack::resume_output(Context& ctx) {
  if (!impl_->network.impl().looped.empty()) impl_->deliver_looped(ctx);
  impl_->tcp.resume_output(ctx);
}

bool Stack::output_pending() const {
  return impl_->tcp.output_pending() || !impl_->network.impl().looped.empty();
}

std::size_t Stack::undelivered(const Context& ctx) const {
  const Network::Impl& network = impl_->network.impl();
  std::size_t count = network.arp.waiting_datagrams() + network.looped.count();
  for (std::size_t i = 0; i < ctx.ports; i++) count += ctx.queues[i].pending();
  return count;
}

void Stack::ask_behind(Context& ctx) {
  impl_->network.impl().arp.ask_behind(ctx);
}

std::size_t Stack::unresolved() const {
  return impl_->network.impl().arp.unresolved();
}

std::size_t Stack::asked() const {
  return impl_->network.impl().arp.asked();
}

void Stack::on_flushed(Context& ctx) {
  impl_->tcp.on_flushed(ctx);
}

std::size_t Stack::move_frames_to_arena(Context& ctx, bool (*being_read)(const void* user)) {
  return impl_->network.impl().move_frames_to_arena(ctx) + impl_->tcp.move_frames_to_arena(ctx, being_read) +
         impl_->udp.move_frames_to_arena(ctx);
}

Network& Stack::network() {
  return impl_->network;
}
tcp::Engine& Stack::tcp() {
  return impl_->tcp;
}
udp::Engine& Stack::udp() {
  return impl_->udp;
}
EventList& Stack::events() {
  return impl_->events;
}
StackCounters& Stack::counters() {
  return impl_->counters;
}
Memory& Stack::memory() {
  return impl_->memory;
}

// The object being changed belongs to the engine that names one.
void Stack::rebuild(Context& ctx) {
  (void)impl_->memory.mark_in_use(this);
  (void)impl_->memory.mark_in_use(impl_);
  impl_->events.clear();
  impl_->network.impl().rebuild(ctx);
  impl_->tcp.rebuild(ctx, impl_->tcp.current());
  impl_->udp.rebuild(ctx, impl_->udp.current());
}

}  // namespace bypass
