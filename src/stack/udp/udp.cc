// UDP's endpoints and its sending half.
#include "stack/udp/udp.h"

#include <algorithm>
#include <new>
#include <utility>

#include "stack/frame/frame_writer.h"
#include "stack/frame/wire.h"
#include "stack/ip/fragment_writer.h"
#include "stack/ip/ipv4.h"
#include "stack/ip/lost_device.h"
#include "stack/ip/network_impl.h"
#include "stack/memory/arena_packet.h"
#include "stack/udp/udp_impl.h"

namespace bypass::udp {
namespace {

constexpr std::uint32_t kLoopedMtu = 65535;  // what Linux says of its loopback
constexpr std::size_t kMaxPayload = 65535 - sizeof(wire::Ipv4) - sizeof(wire::Udp);

bool conflict(const Binding& a, const Endpoint& local, Reuse reuse) {
  if (a.local.port != local.port) return false;
  if ((a.reuse.address && reuse.address) || (a.reuse.port && reuse.port)) return false;
  return a.local.address.is_any() || local.address.is_any() || a.local.address == local.address;
}

}  // namespace

Engine::Engine(Memory& memory, Network& network, EventList& events, StackCounters& counters) : impl_(nullptr) {
  void* block = memory.allocate(sizeof(Impl));
  if (block != nullptr) impl_ = new (block) Impl(memory, network, events, counters);
}

// --- Endpoints

Result<Binding*> Engine::open(const Endpoint& local, std::uint32_t receive_bytes, Reuse reuse, void* user) {
  if (local.port == 0) return Error::kInvalid;
  if (!local.address.is_any() && !impl_->network.is_local(local.address)) return Error::kAddressNotAvailable;
  for (const Binding* b = impl_->bucket(local.port); b != nullptr; b = b->next)
    if (conflict(*b, local, reuse)) return Error::kAddressInUse;
  Binding* binding = impl_->bindings.allocate();
  if (binding == nullptr) return Error::kNoMemory;
  binding->event.user = user;
  binding->event.source = EventSource::kUdp;
  binding->local = local;
  binding->reuse = reuse;
  binding->limit = receive_bytes;
  impl_->link(*binding);
  binding->steered = impl_->network.flows().note({wire::kProtocolUdp, local, {}}, true);
  return binding;
}

void Engine::steer_all() {
  impl_->bindings.for_each([&](Binding& binding) {
    binding.steered = impl_->network.flows().note({wire::kProtocolUdp, binding.local, {}}, true);
  });
}

void Engine::for_each_steered(void (*each)(void* argument, const FlowSpec&), void* argument) const {
  impl_->bindings.for_each([&](const Binding& binding) {
    if (binding.steered) each(argument, {wire::kProtocolUdp, binding.local, {}});
  });
}

void Engine::close(Context& ctx, Binding& endpoint) {
  impl_->current = &endpoint;
  if (std::exchange(endpoint.steered, false)) impl_->network.flows().note_end({wire::kProtocolUdp, endpoint.local, {}});
  impl_->unlink(endpoint);
  impl_->drop_errors(endpoint);
  impl_->empty_queue(ctx, endpoint);
  impl_->events.remove(endpoint.event);
  impl_->bindings.free(&endpoint);
  impl_->current = nullptr;
}

void Engine::connect(Binding& endpoint, const Endpoint& remote) {
  endpoint.connected = !remote.address.is_any();
  endpoint.remote = endpoint.connected ? remote : Endpoint{};
}

void Engine::set_receive_bytes(Binding& endpoint, std::uint32_t bytes) {
  endpoint.limit = bytes;
}

Error Engine::error(const Binding& endpoint) const {
  return endpoint.error;
}

Error Engine::take_error(Binding& endpoint) {
  return std::exchange(endpoint.error, Error::kNone);
}

Endpoint Engine::local(const Binding& endpoint) const {
  return endpoint.local;
}

Endpoint Engine::remote(const Binding& endpoint) const {
  return endpoint.remote;
}

void Engine::Impl::link(Binding& binding) {
  Binding*& head = bucket(binding.local.port);
  binding.next = head;
  head = &binding;
}

void Engine::Impl::unlink(Binding& binding) {
  Binding** link = &bucket(binding.local.port);
  while (*link != nullptr && *link != &binding) link = &(*link)->next;
  if (*link != nullptr) *link = binding.next;
  binding.next = nullptr;
}

// --- Sending

Result<bool> Engine::Impl::route(Context& ctx, Binding& binding, const IpAddress& remote, const IpAddress& source,
                                 const SendOptions& options) {
  Path& path = binding.path;
  const IpAddress& local = source.is_any() ? binding.local.address : source;
  const bool known = path.generation == network.generation() && path.remote == remote;
  if (!known || local != binding.path_source) {
    const Result<bool> found = network.resolve(local, remote, path);
    if (!found) {
      path.generation = 0;
      return found;
    }
    binding.path_source = local;
    if (binding.narrow_remote == remote && ctx.now < binding.narrow_until)
      path.mtu = static_cast<std::uint16_t>(std::min<std::uint32_t>(path.mtu, binding.narrow_mtu));
  }
  if (path.neighbour == Path::kGroup && !remote.is_multicast() && !options.broadcast) return Error::kAccess;
  if (leads_nowhere(ctx, path)) return Error::kNetUnreachable;
  path.tos = options.tos;
  path.ttl = options.ttl;
  const std::uint16_t fragment = options.dont_fragment ? wire::kDontFragment : std::uint16_t{0};
  if (path.fragment != fragment) [[unlikely]]
    set_fragment(path, fragment);
  return true;
}

void Engine::Impl::fill_header(Packet& frame, const Binding& binding, std::uint16_t to_port, std::uint32_t l4_len,
                               PartialSum payload, bool offload) const {
  auto& udp = wire::at<wire::Udp>(frame, 0);
  udp.source = binding.local.port;
  udp.destination = to_port;
  udp.length = static_cast<std::uint16_t>(l4_len);
  udp.checksum = 0;
  const PartialSum pseudo = checksum_pseudo(binding.path.local, binding.path.remote, wire::kProtocolUdp, l4_len);
  frame.l4_len = sizeof udp;
  if (offload) {
    frame.flags |= kTxL4Checksum;
    udp.checksum.set_raw(checksum_fold(pseudo));
    return;
  }
  const std::uint16_t sum = checksum_finish(checksum(&udp, sizeof udp) + pseudo + payload);
  udp.checksum.set_raw(sum == 0 ? 0xffff : sum);  // RFC 768: zero means that there is no checksum
}

Result<bool> Engine::Impl::send_whole(Context& ctx, Binding& binding, std::uint16_t to_port, const Pieces& bytes) {
  const bool offload = network.offloads(ctx, binding.path).l4_checksum;
  FrameWriter writer{network, ctx, binding.path, sizeof(wire::Udp), !offload};
  if (!writer.ok()) return Error::kNoMemory;
  for (const auto& piece : bytes)
    if (!writer.append(piece)) return Error::kNoMemory;
  fill_header(*writer.frame(), binding, to_port, writer.frame()->frame_len, writer.sum(), offload);
  Packet* frame = writer.take();
  const Result<bool> sent = network.send(ctx, binding.path, frame, wire::kProtocolUdp);
  if (!sent && sent.error() == Error::kWouldBlock) ctx.release(frame);
  return sent;
}

[[gnu::noinline]] Result<bool> Engine::Impl::send_in_fragments(Context& ctx, Binding& binding, std::uint16_t to_port,
                                                               const Pieces& bytes, std::size_t length) {
  FragmentWriter writer{network, ctx, binding.path, sizeof(wire::Udp)};
  for (const auto& piece : bytes)
    if (!writer.append(piece)) return Error::kNoMemory;
  const auto l4_len = static_cast<std::uint32_t>(sizeof(wire::Udp) + length);
  fill_header(*writer.first(), binding, to_port, l4_len, writer.sum(), false);
  PacketList fragments = writer.take();
  const Result<bool> sent = network.send_fragments(ctx, binding.path, fragments, wire::kProtocolUdp);
  while (Packet* left = fragments.pop()) ctx.release(left);
  return sent;
}

bool Engine::is_cut_off(Context& ctx, const Binding& endpoint, const IpAddress& remote) const {
  Path path;
  return impl_->network.resolve(endpoint.local.address, remote, path).ok() && leads_nowhere(ctx, path);
}

Result<std::uint32_t> Engine::path_mtu(Context& ctx, Binding& endpoint, const IpAddress& remote) {
  const Result<bool> routed = impl_->route(ctx, endpoint, remote, {}, {});
  if (!routed) return routed.error();
  return endpoint.path.neighbour == Path::kLooped ? kLoopedMtu : endpoint.path.mtu;
}

Result<std::size_t> Engine::send(Context& ctx, Binding& endpoint, const Endpoint& remote, const IpAddress& source,
                                 std::span<const std::span<const std::byte>> bytes, const SendOptions& options) {
  if (endpoint.error != Error::kNone) return take_error(endpoint);
  std::size_t length = 0;
  for (const auto& piece : bytes) length += piece.size();
  const Result<bool> routed = impl_->route(ctx, endpoint, remote.address, source, options);
  if (!routed) return routed.error();
  const bool fits = fits_one_packet(endpoint.path, length + sizeof(wire::Udp));
  if (length > kMaxPayload || (!fits && !options.fragment)) return Error::kMessageTooLarge;
  const Result<bool> sent = fits ? impl_->send_whole(ctx, endpoint, remote.port, bytes)
                                 : impl_->send_in_fragments(ctx, endpoint, remote.port, bytes, length);
  if (!sent) return sent.error();
  impl_->counters.udp_out++;
  return length;
}

// --- After a death inside the lock

void Engine::rebuild(Context& ctx, void* broken) {
  Impl& impl = *impl_;
  (void)impl.memory.mark_in_use(&impl);
  const bool sound = impl.bindings.rebuild();
  impl.buckets = {};
  impl.held_frames = 0;
  if (!sound) return;
  impl.bindings.for_each([&](Binding& binding) {
    binding.errors = binding.last_error = nullptr;  // the queue's blocks are freed
    impl.rebuild_queue(ctx, binding, &binding == broken);
    if (&binding == broken) binding.error = Error::kReset;
    binding.path.generation = 0;
    impl.link(binding);
    binding.event.linked = false;
    binding.event.next = nullptr;
    const auto events = static_cast<std::uint16_t>(binding.queue.empty() ? 0 : kEventReadable);
    const auto error = static_cast<std::uint16_t>(binding.error == Error::kNone ? 0 : kEventError);
    if ((events | error) != 0) impl.events.post(binding.event, static_cast<std::uint16_t>(events | error));
  });
  impl.current = nullptr;
}

void Engine::forget_users() {
  impl_->bindings.for_each([](Binding& binding) { binding.event.user = nullptr; });
}

bool Engine::claim(Binding* endpoint, void* user) {
  if (!impl_->bindings.lives(endpoint)) return false;
  endpoint->event.user = user;
  return true;
}

void Engine::end_unclaimed(Context& ctx) {
  impl_->bindings.for_each([&](Binding& binding) {
    if (binding.event.user == nullptr) close(ctx, binding);
  });
}

// Keeps the datagrams, or only gives back the ports' frames among them. This process may not see a port's frames: then
// everything after the first such frame is lost.
void Engine::Impl::rebuild_queue(Context& ctx, Binding& binding, bool give_up) {
  const PacketList old = binding.queue;
  const bool sees_frames = ctx.sees_frames();
  binding.queue = {};
  binding.charged = 0;
  for (Packet* frame = old.front(); frame != nullptr;) {
    const bool in_arena = memory.contains(frame);
    if (!in_arena && !sees_frames) break;
    Packet* const next = frame->queue_next;
    if (give_up) {
      if (!in_arena) ctx.release(frame);
    } else {
      if (in_arena && !mark_arena_packet(memory, *frame)) break;
      if (!in_arena) held_frames++;
      binding.charged += frame->seq;
      binding.queue.push(frame);
    }
    frame = next;
  }
}

void* Engine::current() const {
  return impl_->current;
}

}  // namespace bypass::udp
