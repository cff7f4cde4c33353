// UDP's receiving half: which endpoint gets a datagram, how much memory it may use, and received errors.
#include <algorithm>
#include <cstring>
#include <utility>

#include "stack/frame/arrival.h"
#include "stack/frame/wire.h"
#include "stack/memory/arena_packet.h"
#include "stack/share.h"
#include "stack/udp/udp_impl.h"

namespace bypass::udp {
namespace {

// A queue of many small datagrams is kept in blocks of the arena: a port's frame would hold 2 KiB of a pool that the
// whole shard receives into.
constexpr std::uint32_t kSmallDatagram = 512;
constexpr std::uint32_t kFewQueued = 16;
constexpr std::uint32_t kMaxHeldFrames = 256;

constexpr std::uint32_t kMinPathMtu = 552;                        // Linux's min_pmtu
constexpr Duration kPathMtuLife = std::chrono::seconds(10 * 60);  // Linux's mtu_expires

Endpoint source_of(const L4Input& in) {
  return {in.source, wire::at<wire::Udp>(*in.packet, in.l4_offset).source};
}
std::uint16_t port_of(const L4Input& in) {
  return wire::at<wire::Udp>(*in.packet, in.l4_offset).destination;
}

// How well an endpoint fits (the most specific wins), or -1. A datagram to a broadcast address is for endpoints that
// are bound to that address or to no address.
int fit(const Binding& binding, const L4Input& in) {
  if (binding.local.port != port_of(in)) return -1;
  const bool any = binding.local.address.is_any();
  if (!any && binding.local.address != in.destination) return -1;
  if (binding.connected && binding.remote != source_of(in)) return -1;
  return (any ? 0 : 1) + (binding.connected ? 2 : 0);
}

// A hash that spreads the flows evenly enough over sockets that share a port.
std::uint32_t hash_of(const L4Input& in) {
  std::uint64_t halves[2];
  static_assert(sizeof halves == sizeof in.source);
  std::memcpy(halves, &in.source, sizeof halves);
  const Endpoint source = source_of(in);
  std::uint64_t mixed = (halves[0] ^ halves[1] ^ source.port) * 0x9e3779b97f4a7c15U;
  mixed ^= mixed >> 32;
  return static_cast<std::uint32_t>((mixed * 0xd1b54a32d192ed03U) >> 32);
}

}  // namespace

void Engine::Impl::keep_error(Context& ctx, Binding& binding, const IcmpError& error) {
  QueuedError* const entry = queue_error(ctx, binding);
  if (entry == nullptr) return;
  entry->error = error.error;
  entry->type = error.type;
  entry->code = error.code;
  entry->info = error.mtu;
  entry->remote = error.remote;
  entry->offender = error.offender;
  entry->payload_length = error.quoted_length;
  entry->payload = error.quoted;
}

Binding* Engine::Impl::find(const L4Input& input) const {
  Binding* best = nullptr;
  int best_fit = -1;
  for (Binding* b = bucket(port_of(input)); b != nullptr; b = b->next) {
    const int f = fit(*b, input);
    if (f <= best_fit) continue;
    best = b;
    best_fit = f;
  }
  if (best == nullptr || !best->reuse.port) return best;
  return choose_by_flow<&Binding::next>(*best, hash_of(input), [&](const Binding& b) {
    return b.reuse.port && fit(b, input) == best_fit;  // the others that match equally well
  });
}

void Engine::Impl::take(Context& ctx, const L4Input& input) {
  if (input.broadcast) return deliver_all(ctx, input);
  Binding* binding = find(input);
  if (binding != nullptr) return deliver(ctx, *binding, input);
  counters.drop_udp_no_socket++;
  network.send_port_unreachable(ctx, input);
  ctx.release(input.packet);
}

void Engine::Impl::deliver_all(Context& ctx, const L4Input& input) {
  bool taken = false;
  for (Binding* b = bucket(port_of(input)); b != nullptr; b = b->next) {
    if (fit(*b, input) < 0) continue;
    taken = true;
    L4Input copy = input;
    copy.packet = copy_to_arena(memory, *input.packet);
    if (copy.packet != nullptr)
      deliver(ctx, *b, copy);
    else
      counters.drop_udp_queue_full++;
  }
  if (!taken) counters.drop_udp_no_socket++;
  ctx.release(input.packet);
}

void Engine::Impl::deliver(Context& ctx, Binding& binding, const L4Input& input) {
  current = &binding;
  Packet* frame = input.packet;
  const bool in_arena = (frame->flags & kInArena) != 0;
  const bool crowded = binding.queue.count() >= kFewQueued && frame->frame_len <= kSmallDatagram;
  const bool copying = !in_arena && (crowded || held_frames >= kMaxHeldFrames || ctx.queue(input.port).scarce());
  const std::size_t cost = copying ? arena_packet_size(frame->frame_len) : memory_of(*frame);
  Packet* kept = frame;
  const bool in_kept_back = (frame->flags & kInReserve) != 0;
  const bool fits = binding.queue.empty() ? !in_kept_back || !memory.is_short()
                                          : !in_kept_back && binding.charged + cost <= binding.limit;
  if (fits && copying) kept = copy_to_arena(memory, *frame);
  if (!fits || kept == nullptr) {
    counters.drop_udp_queue_full++;
    ctx.release(frame);
    current = nullptr;
    return;
  }
  if (kept != frame) ctx.release(frame);
  if ((kept->flags & kInArena) == 0) held_frames++;
  kept->flags &= static_cast<std::uint16_t>(~kInReserve);
  kept->l4_len = sizeof(wire::Udp);
  kept->offset = static_cast<std::uint32_t>(input.l4_offset + sizeof(wire::Udp));
  kept->payload_len = static_cast<std::uint32_t>(input.l4_len - sizeof(wire::Udp));
  kept->seq = static_cast<std::uint32_t>(cost);
  settle_arrival(*kept, ctx.now);
  binding.charged += kept->seq;
  binding.queue.push(kept);
  counters.udp_in++;
  events.post(binding.event, kEventReadable);
  current = nullptr;
}

void Engine::Impl::release(Context& ctx, Packet* frame) {
  if ((frame->flags & kInArena) == 0) held_frames--;
  ctx.release(frame);
}

// Datagrams in the arena are charged for the block that they use there.
std::size_t Engine::Impl::move_queue_to_arena(Context& ctx, Binding& binding) {
  std::size_t stayed = 0;
  current = &binding;
  PacketList old = std::exchange(binding.queue, {});
  while (Packet* frame = old.pop()) {
    Packet* kept = move_to_arena(ctx, frame);
    if (kept != frame) {
      held_frames--;
      binding.charged -= kept->seq;
      kept->seq = static_cast<std::uint32_t>(arena_packet_size(kept->frame_len));
      binding.charged += kept->seq;
    }
    if ((kept->flags & kInArena) == 0) stayed++;
    binding.queue.push(kept);
  }
  current = nullptr;
  return stayed;
}

void Engine::Impl::empty_queue(Context& ctx, Binding& binding) {
  while (Packet* frame = binding.queue.pop()) release(ctx, frame);
  binding.charged = 0;
}

// RFC 1191 §6.3: a report is believed as long as Linux does, and never below Linux's minimum. A forged report costs
// fragments.
void Engine::Impl::narrow(Context& ctx, Binding& binding, const IcmpError& error) {
  if (binding.path.remote != error.remote.address || error.mtu == 0 || error.mtu >= binding.path.mtu) return;
  binding.narrow_remote = error.remote.address;
  binding.narrow_mtu = std::max(error.mtu, kMinPathMtu);
  binding.narrow_until = ctx.now + kPathMtuLife;
  binding.path.mtu = static_cast<std::uint16_t>(std::min<std::uint32_t>(binding.path.mtu, binding.narrow_mtu));
}

// As on Linux (__udp4_lib_err): only a connected endpoint gets errors, and only fatal ones, unless it has asked for
// all.
void Engine::Impl::on_icmp(Context& ctx, const IcmpError& error) {
  if (error.error == Error::kMessageTooLarge)
    for (Binding* b = bucket(error.local.port); b != nullptr; b = b->next)
      if (b->local.port == error.local.port) narrow(ctx, *b, error);
  for (Binding* b = bucket(error.local.port); b != nullptr; b = b->next) {
    if (b->local.port != error.local.port || (b->connected && b->remote != error.remote)) continue;
    if (!b->local.address.is_any() && b->local.address != error.local.address) continue;
    if (!b->wants_errors && (!b->connected || !error.hard)) continue;
    if (b->wants_errors) keep_error(ctx, *b, error);
    b->error = error.error;
    events.post(b->event, kEventError);
    return;
  }
}

// --- Engine's receiving calls

void Engine::on_datagrams(Context& ctx, std::span<L4Input> batch) {
  for (const L4Input& input : batch) impl_->take(ctx, input);
}

void Engine::on_icmp(Context& ctx, const IcmpError& error) {
  impl_->on_icmp(ctx, error);
}

std::size_t Engine::queued(const Binding& endpoint) const {
  return endpoint.queue.count();
}

std::size_t Engine::queued_bytes(const Binding& endpoint) const {
  return endpoint.charged;
}

bool Engine::front(const Binding& endpoint, Datagram& out) const {
  const Packet* frame = endpoint.queue.front();
  if (frame == nullptr) return false;
  const auto& ip = wire::at<wire::Ipv4>(*frame, frame->l2_len);
  const auto& udp = wire::at<wire::Udp>(*frame, frame->offset - sizeof(wire::Udp));
  out.source = {IpAddress::from_v4(ip.source), udp.source};
  out.destination = IpAddress::from_v4(ip.destination);
  out.port = udp.destination;
  out.length = frame->payload_len;
  out.tos = ip.tos;
  out.ttl = ip.ttl;
  out.arrived = arrival(*frame);
  out.packet = frame;
  out.offset = frame->offset;
  return true;
}

std::size_t Engine::move_frames_to_arena(Context& ctx) {
  if (impl_->held_frames == 0) return 0;
  std::size_t stayed = 0;
  impl_->bindings.for_each([&](Binding& binding) { stayed += impl_->move_queue_to_arena(ctx, binding); });
  return stayed;
}

void Engine::pop(Context& ctx, Binding& endpoint) {
  impl_->current = &endpoint;
  if (Packet* frame = endpoint.queue.pop()) {
    endpoint.charged -= frame->seq;
    impl_->release(ctx, frame);
  }
  impl_->current = nullptr;
}

}  // namespace bypass::udp
