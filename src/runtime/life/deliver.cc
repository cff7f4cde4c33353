// Exit through libc: what was written is delivered before the process ends.
#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <span>

#include "os/kernel.h"
#include "os/log/log.h"
#include "os/poll_by_parts.h"
#include "runtime/process_graph.h"
#include "socket/api.h"
#include "socket/family/kin.h"
#include "socket/objects.h"

namespace bypass::runtime {

namespace {

/// Most peers close as soon as they have read our end. Those that do not get an RST after this time.
constexpr Duration kForThePeersEnd = std::chrono::milliseconds(50);

/// How long a keeper that is asked for the ports goes on delivering, and how soon it finds that out.
constexpr Duration kOnceHurried = std::chrono::milliseconds(250);
constexpr Duration kHurriedLook = std::chrono::milliseconds(20);

/// A peer that lives takes the frames in the wire as soon as it gets a processor.
constexpr Duration kForTheLastFrames = std::chrono::milliseconds(200);

/// The kernel closes every descriptor of a process that ends, and so does this function, sockets first. Objects that
/// other processes of the family refer to continue. Lock held.
void end_all_sockets(socket::Shard& shard) {
  if (socket::objects == nullptr) return;
  socket::thread_signals.serves_the_end = true;
  socket::Guard guard(shard);
  shard.end_for_others();
  if (socket::has_kin()) return socket::leave_family(guard);
  socket::objects->sockets.for_each([&](socket::Socket& s) {
    if (s.alive && s.path != socket::Path::kUndecided) socket::end_socket(guard, s);
  });
}

/// Sleeps until a frame comes, a timer is due, or `deadline`.
void sleep_on_wire(socket::Shard& shard, Instant deadline) {
  std::array<int, socket::Shard::kMostWaitDescriptors> wires{};
  std::array<pollfd, socket::Shard::kMostWaitDescriptors> set{};
  bool quiet = false;
  {
    // A frame that came before the port was armed wakes nobody: look once more.
    socket::Guard guard(shard);
    quiet = shard.arm_locked() && shard.poll_locked() == 0;
  }
  const std::size_t count = shard.wait_descriptors(wires);
  for (std::size_t i = 0; i < count; i++) set[i] = {wires[i], POLLIN, 0};
  const Instant until = std::min(deadline, shard.next_timeout());
  const std::int64_t left = std::max<std::int64_t>(0, (until - shard.clock().now()).count());
  const timespec time{left / 1'000'000'000, left % 1'000'000'000};
  const std::span<pollfd> asked = std::span(set).first(count);
  if (quiet && socket::kernel->ppoll(set.data(), count, &time, nullptr) < 0 && errno != EINTR)
    socket::poll_by_parts(asked, &time);
  shard.disarm();
}

/// What was written and has not arrived yet.
struct Rest {
  tcp::Engine::Orphans tcp;
  std::size_t packets = 0;  // mostly datagrams, that wait for a neighbour's address or for room

  [[nodiscard]] bool nothing() const { return only_ends() && tcp.closing == 0; }
  [[nodiscard]] bool only_ends() const { return tcp.with_data == 0 && packets == 0; }
};

Rest rest_now(socket::Shard& shard, socket::Guard& guard) {
  return {shard.stack().tcp().orphans(), shard.stack().undelivered(guard.context())};
}

/// `last`: no other process of the family remains. If one remains and nothing is left to deliver, this was the last
/// look at what others leave: a process that leaves bytes later knows that this one will not deliver them.
Rest look_at_rest(socket::Shard& shard, bool last) {
  socket::Guard guard(shard);
  shard.poll_locked();
  guard.context().flush();
  const Rest rest = rest_now(shard, guard);
  if (!last && rest.nothing()) shard.wires().leaving.store(true, std::memory_order_relaxed);
  return rest;
}

/// The last datagrams and RSTs are not acknowledged, and frames in a device are lost when it is closed. So this waits
/// until they are taken.
void await_taken(socket::Shard& shard, Instant deadline, bool (*awaits)(const Stack&)) {
  for (;;) {
    {
      const socket::Guard guard(shard);
      shard.poll_locked();
      if (!awaits(shard.stack())) return;
    }
    if (shard.clock().now() >= deadline) return;
    sleep_on_wire(shard, deadline);
  }
}

bool awaits_answer(const Stack& stack) {
  return stack.asked() != 0 || stack.unresolved() != 0;
}

/// For a keeper, whose wire has just come up: in its first moments it may lose an RST, which nothing else repeats
/// (stack/tcp/recent_resets.h). They are sent again, until a neighbour has answered behind them.
void repeat_resets(Process& p) {
  constexpr int kRounds = 5, kRoundsHurried = 2;
  for (int round = 1; round <= (p.hurries() ? kRoundsHurried : kRounds); round++) {
    {
      socket::Guard guard(p.shard);
      Context& context = guard.context();
      for (std::uint16_t port = 0; port < context.ports; port++) p.shard.stack().on_link_up(context, port);
      p.shard.stack().ask_behind(context);
      context.flush();
    }
    await_taken(p.shard, p.clock.now() + kForTheLastFrames, awaits_answer);
    const socket::Guard guard(p.shard);
    if (round > 1 && !awaits_answer(p.shard.stack())) return;
  }
}

/// True: this process must deliver its bytes itself, as it has the ports, and keeps them meanwhile. An owner that lives
/// delivers them, unless it ends or has ended: then the progress thread of this process, or of another, takes the ports
/// over.
bool has_ports(Process& p, Instant deadline) {
  constexpr timespec kLook{0, 1'000'000};
  const auto own = [&p] { return p.ports.opened() && !p.ports.following(); };
  const auto left_alone = [&p] {
    socket::Guard guard(p.shard);
    const socket::Wires& wires = p.shard.wires();
    const bool opening = wires.owner_slot() == p.shard.family().slot();
    const bool left = wires.leaving.load(std::memory_order_relaxed) || !p.ports.owner_lives(p.shard);
    return (opening || left) && !rest_now(p.shard, guard).nothing();
  };
  const auto may_come = [&p] { return p.progress.runs() && !p.ports.failed(); };
  while (!own() && may_come() && left_alone() && p.clock.now() < deadline)
    socket::kernel->ppoll(nullptr, 0, &kLook, nullptr);
  return p.ports.keep_to_the_end();
}

}  // namespace

void deliver_rest(Process& p) {
  end_all_sockets(p.shard);
  Instant deadline = p.clock.now() + p.config.exit_linger;
  if (!has_ports(p, deadline)) return p.shard.await_steering();
  const bool last = !socket::has_kin();  // otherwise another process of the family answers from now on
  Instant latest = deadline;
  for (;;) {
    if (p.hurries != nullptr && p.hurries()) deadline = std::min(deadline, p.clock.now() + kOnceHurried);
    const Rest rest = look_at_rest(p.shard, last);
    // If the other ends of all wires are gone, no peer could want our FIN. If a link comes up again, the FIN is sent
    // once more.
    if (rest.only_ends() && !p.ports.any_link_is_up() && !p.ports.any_link_is_expected(p.clock.now())) return;
    if (rest.nothing()) {
      latest = std::min(latest, p.clock.now() + kForThePeersEnd);
      if (!last || rest.tcp.half_closed == 0 || p.clock.now() >= latest) break;
    } else if (p.clock.now() >= deadline) {
      BYPASS_LOG_WARN(
          "exit: after the time of exit_linger %zu connection(s) still had unacknowledged data, %zu an "
          "unacknowledged end, and %zu packet(s) had not left",
          rest.tcp.with_data, rest.tcp.closing, rest.packets);
      break;
    }
    const Instant until = rest.nothing() ? latest : deadline;
    sleep_on_wire(p.shard, p.hurries == nullptr ? until : std::min(until, p.clock.now() + kHurriedLook));
  }
  if (!last) {
    const socket::Guard guard(p.shard);
    p.shard.wires().leaving.store(true, std::memory_order_relaxed);
    return;
  }
  {
    socket::Guard guard(p.shard);
    p.shard.stack().tcp().abort_orphans(guard.context());
    p.shard.stack().ask_behind(guard.context());
    guard.context().flush();
  }
  await_taken(p.shard, p.clock.now() + kForTheLastFrames, [](const Stack& stack) { return stack.asked() != 0; });
  if (p.hurries != nullptr) repeat_resets(p);
}

}  // namespace bypass::runtime
