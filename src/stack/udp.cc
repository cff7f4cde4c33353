// UDP's endpoints and its sending half.
#include "stack/udp.h"

#include <algorithm>
#include <new>
#include <utility>

#include "stack/frame_writer.h"
#include "stack/network_impl.h"
#include "stack/udp_impl.h"
#include "stack/wire.h"

namespace bypass::udp {
namespace {

constexpr std::size_t kMaxPayload = 65535 - sizeof(wire::Ipv4) - sizeof(wire::Udp);

bool conflict(const Binding& a, const Endpoint& local, bool reuse) {
  if (a.local.port != local.port || (a.reuse && reuse)) return false;
  return a.local.address.is_any() || local.address.is_any() || a.local.address == local.address;
}

}  // namespace

Engine::Engine(Memory& memory, Network& network, EventList& events, StackCounters& counters) : impl_(nullptr) {
  void* block = memory.allocate(sizeof(Impl));
  if (block != nullptr) impl_ = new (block) Impl(memory, network, events, counters);
}

// --- Endpoints

Result<Binding*> Engine::open(const Endpoint& local, std::uint32_t receive_bytes, bool reuse, void* user) {
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
  return binding;
}

void Engine::close(Context& ctx, Binding& endpoint) {
  impl_->current = &endpoint;
  impl_->unlink(endpoint);
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

Result<bool> Engine::Impl::route(Binding& binding, const IpAddress& remote, const IpAddress& source,
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
  }
  if (path.neighbour == Path::kGroup && !remote.is_multicast() && !options.broadcast) return Error::kAccess;
  path.tos = options.tos;
  path.ttl = options.ttl;
  return true;
}

void Engine::Impl::fill_header(Packet& frame, const Binding& binding, std::uint16_t to_port, PartialSum payload,
                               bool offload) const {
  auto& udp = wire::at<wire::Udp>(frame, 0);
  udp.source = binding.local.port;
  udp.destination = to_port;
  udp.length = static_cast<std::uint16_t>(frame.frame_len);
  udp.checksum = 0;
  const PartialSum pseudo =
      checksum_pseudo(binding.path.local, binding.path.remote, wire::kProtocolUdp, frame.frame_len);
  frame.l4_len = sizeof udp;
  if (offload) {
    frame.flags |= kTxL4Checksum;
    udp.checksum.set_raw(checksum_fold(pseudo));
    return;
  }
  const std::uint16_t sum = checksum_finish(checksum(&udp, sizeof udp) + pseudo + payload);
  udp.checksum.set_raw(sum == 0 ? 0xffff : sum);  // RFC 768: zero would say that there is none
}

Result<std::size_t> Engine::send(Context& ctx, Binding& endpoint, const Endpoint& remote, const IpAddress& source,
                                 std::span<const std::span<const std::byte>> bytes, const SendOptions& options) {
  if (endpoint.error != Error::kNone) return take_error(endpoint);
  std::size_t length = 0;
  for (const auto& piece : bytes) length += piece.size();
  const Result<bool> routed = impl_->route(endpoint, remote.address, source, options);
  if (!routed) return routed.error();
  Path& path = endpoint.path;
  if (length > kMaxPayload || length + sizeof(wire::Udp) + sizeof(wire::Ipv4) > path.mtu)
    return Error::kMessageTooLarge;

  const bool offload = impl_->network.offloads(ctx, path).l4_checksum;
  FrameWriter writer{impl_->network, ctx, path, sizeof(wire::Udp), !offload};
  if (!writer.ok()) return Error::kNoMemory;
  for (const auto& piece : bytes)
    if (!writer.append(piece)) return Error::kNoMemory;
  impl_->fill_header(*writer.frame(), endpoint, remote.port, writer.sum(), offload);
  Packet* frame = writer.take();
  const Result<bool> sent = impl_->network.send(ctx, path, frame, wire::kProtocolUdp);
  if (!sent) {
    if (sent.error() == Error::kWouldBlock) ctx.release(frame);
    return sent.error();
  }
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
  impl.current = nullptr;
  if (!sound) return;
  impl.bindings.for_each([&](Binding& binding) {
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
}

// Keeps the datagrams, or only gives the ports' frames among them back. A port's frames may be out of this process's
// sight: then what lies behind the first one is lost.
void Engine::Impl::rebuild_queue(Context& ctx, Binding& binding, bool give_up) {
  const PacketList old = binding.queue;
  const bool sees_frames = ctx.has_ports();
  binding.queue = {};
  binding.charged = 0;
  for (Packet* frame = old.front(); frame != nullptr;) {
    const bool in_arena = memory.contains(frame);
    if (!in_arena && !sees_frames) break;
    Packet* const next = frame->queue_next;
    if (give_up) {
      if (!in_arena) ctx.release(frame);
    } else {
      if (in_arena && !memory.mark_in_use(frame)) break;
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
