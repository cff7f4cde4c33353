#include "socket/family/steering.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>

#include "os/errno_map.h"
#include "os/kernel.h"
#include "os/os.h"
#include "socket/objects.h"
#include "socket/policy.h"
#include "socket/socket.h"
#include "stack/frame/flow_log.h"
#include "stack/ip/route.h"
#include "stack/tcp/tcb.h"

namespace bypass::socket {
namespace {

constexpr int kTries = 64;  // so many numbers may be in use by others in the kernel; then the kernel chooses

struct Kept {
  int fd = -1;
  Endpoint local, remote;
};

// A ring; the oldest entry is at `first`. What a connection leaves lasts equally long (TIME-WAIT), so the oldest ends
// first. If there are more, the kernel may give the oldest number to another socket. Only a connection to the very same
// peer and port could then be mistaken for the old connection.
struct KeptNumbers {
  static constexpr std::size_t kMost = 256;  // of the descriptors that the process protects from the program
  std::array<Kept, kMost> all;
  std::size_t first = 0;
  std::atomic<std::size_t> count{0};  // written with the lock held
};
KeptNumbers g_kept;  // of this process

void drop_oldest() {
  const Kept& oldest = g_kept.all[g_kept.first];
  policy.disown_descriptor(oldest.fd);
  os::close(oldest.fd);
  g_kept.first = (g_kept.first + 1) % KeptNumbers::kMost;
  g_kept.count--;
}

Result<Endpoint> bound_to(const Socket& socket, int fd, const Endpoint& wanted) {
  SocketName name;
  const socklen_t length = write_name(wanted, socket.domain, name);
  if (kernel->bind(fd, &name.base, length) != 0)
    return errno == EADDRINUSE ? Error::kAddressInUse : Error::kAddressNotAvailable;
  const std::uint16_t port = wanted.port != 0 ? wanted.port : kernel_name(fd).port;
  if (port == 0) return Error::kAddressNotAvailable;  // before connect(), the program has asked for no number (ip(7))
  return Endpoint{wanted.address, port};
}

bool tell(Port& port, const FlowChange& change, std::uint32_t address) {
  FlowSpec flow = change.flow;
  flow.local.address = IpAddress::from_v4(address);
  return port.steer(flow, change.add);
}

void tell(Stack& stack, Context& context, std::uint16_t port, const FlowChange& change) {
  const IpAddress& local = change.flow.local.address;
  for (const InterfaceAddress& own : stack.network().addresses(port))
    if (local.is_any() || local == IpAddress::from_v4(own.address))
      if (!tell(*context.queue(port).port(), change, own.address) && change.add) stack.counters().steer_lost++;
}

}  // namespace

namespace {

// The flows at one address that the stack serves.
struct AddressFlows {
  Stack& stack;
  Port& device;
  IpAddress address;
  bool add;

  static void tell(void* self, const FlowSpec& flow) {
    const auto& that = *static_cast<const AddressFlows*>(self);
    if (!flow.local.address.is_any() && flow.local.address != that.address) return;
    FlowSpec at = flow;
    at.local.address = that.address;
    if (!that.device.steer(at, that.add) && that.add) that.stack.counters().steer_lost++;
  }
};

bool has(std::span<const InterfaceAddress> all, std::uint32_t address) {
  return std::ranges::any_of(all, [&](const InterfaceAddress& each) { return each.address == address; });
}

// Tells the device of the flows at addresses that are in `all` and not in `others`.
void tell_of_rest(Stack& stack, Port& device, std::span<const InterfaceAddress> all,
                  std::span<const InterfaceAddress> others, bool add) {
  for (const InterfaceAddress& each : all) {
    if (has(others, each.address)) continue;
    AddressFlows flows{stack, device, IpAddress::from_v4(each.address), add};
    stack.for_each_steered(AddressFlows::tell, &flows);
  }
}

}  // namespace

Result<bool> change_interface(Stack& stack, Context& context, std::uint16_t port, const InterfaceConfig& interface) {
  steer_noted_flows(stack, context);  // the notes speak of the addresses before the change
  const std::span<const InterfaceAddress> now = stack.network().addresses(port);
  std::array<InterfaceAddress, Interface::kMaxAddresses> kept{};
  const std::span before(kept.data(),
                         static_cast<std::size_t>(std::ranges::copy(now, kept.begin()).out - kept.begin()));
  const Result<bool> changed = stack.change_interface(context, port, interface);
  if (!changed || !context.queue(port).caps().steering) return changed;
  Port& device = *context.queue(port).port();
  const std::span<const InterfaceAddress> after = stack.network().addresses(port);
  tell_of_rest(stack, device, before, after, false);
  tell_of_rest(stack, device, after, before, true);
  return changed;
}

void steer_noted_flows(Stack& stack, Context& context) {
  FlowLog& flows = stack.network().flows();
  for (const FlowChange& change : flows.pending())
    for (std::uint16_t port = 0; port < context.ports; port++)
      if (context.queue(port).caps().steering) tell(stack, context, port, change);
  const bool ended = std::ranges::any_of(flows.pending(), [](const FlowChange& change) { return !change.add; });
  flows.clear();
  if (ended) give_numbers_back();
}

Result<Endpoint> reserve_endpoint(Guard& guard, const Socket& socket, int fd, const Endpoint& local,
                                  const Endpoint& remote) {
  std::uint16_t port = 0;
  const Network& network = shard().stack().network();
  if (local.port != 0 || !network.routes(remote.address, &port) || !network.is_steered(port)) return local;
  if (const Endpoint bound = kernel_name(fd); bound.port != 0) return bound;  // an earlier attempt has bound it
  for (int i = 0;; i++) {
    Result<Endpoint> choice = tcp_engine().choose_endpoint(guard.context(), local.address, remote);
    if (!choice) return choice;
    if (i == kTries) choice->port = 0;
    const Result<Endpoint> bound = bound_to(socket, fd, *choice);
    if (bound || bound.error() != Error::kAddressInUse) return bound;
    if (i == kTries) return Error::kAddressNotAvailable;
  }
}

NumberKeeper::NumberKeeper(const Socket& socket) {
  if (connection_of(socket) == nullptr || !socket.tcb->has(tcp::kSteered)) return;
  steered_ = true;
  local_ = tcp_engine().local(*socket.tcb);
  remote_ = tcp_engine().remote(*socket.tcb);
}

void NumberKeeper::keep(int fd) const {
  if (!steered_ || fd < 0 || !tcp_engine().serves(local_, remote_)) return;
  give_numbers_back();
  if (g_kept.count == KeptNumbers::kMost) {
    drop_oldest();
    shard().stack().counters().numbers_lost++;
  }
  const int high = policy.own_copy(fd);
  if (high < 0) {
    shard().stack().counters().numbers_lost++;
    return;
  }
  g_kept.all[(g_kept.first + g_kept.count) % KeptNumbers::kMost] = {high, local_, remote_};
  g_kept.count++;
}

void give_numbers_back() {
  while (g_kept.count != 0) {
    const Kept& oldest = g_kept.all[g_kept.first];
    if (tcp_engine().serves(oldest.local, oldest.remote)) return;
    drop_oldest();
  }
}

bool keeps_numbers() {
  return g_kept.count.load(std::memory_order_relaxed) != 0;
}

void forget_numbers() {
  g_kept.first = 0;
  g_kept.count = 0;
}

}  // namespace bypass::socket
