// Exit through libc: what was written is delivered before the process is gone.
#include <poll.h>

#include <algorithm>
#include <array>

#include "runtime/log.h"
#include "runtime/process_graph.h"
#include "socket/kernel.h"
#include "socket/objects.h"

namespace bypass::runtime {

namespace {

/// The kernel closes every descriptor of a process that ends: so do we, sockets first.
void end_all_sockets(socket::Shard& shard) {
  if (socket::objects == nullptr) return;
  socket::Guard guard(shard);
  socket::objects->sockets.for_each([&](socket::Socket& s) {
    if (s.alive && s.path != socket::Path::kUndecided) socket::end_socket(guard, s);
  });
}

/// Sleeps until a frame comes, a timer is due, or `deadline`.
void sleep_on_wire(socket::Shard& shard, Instant deadline) {
  std::array<int, Context::kMaxPorts> wires{};
  std::array<pollfd, Context::kMaxPorts> set{};
  const bool quiet = shard.arm();
  const std::size_t count = shard.wait_descriptors(wires);
  for (std::size_t i = 0; i < count; i++) set[i] = {wires[i], POLLIN, 0};
  const Instant until = std::min(deadline, shard.next_timeout());
  const std::int64_t left = std::max<std::int64_t>(0, (until - shard.clock().now()).count());
  const timespec time{left / 1'000'000'000, left % 1'000'000'000};
  if (quiet) socket::kernel->ppoll(set.data(), count, &time, nullptr);
  shard.disarm();
}

}  // namespace

void deliver_rest(Process& p) {
  end_all_sockets(p.shard);
  if (!p.ports.opened()) return;
  const Instant deadline = p.clock.now() + p.config.exit_linger;
  for (;;) {
    std::size_t left = 0;
    {
      socket::Guard guard(p.shard);
      p.shard.poll_locked();
      left = p.shard.stack().tcp().orphans_with_data();
    }
    if (left == 0) return;
    if (p.clock.now() >= deadline) {
      BYPASS_LOG_WARN("exit: %zu connection(s) still had unacknowledged data after the time of exit_linger", left);
      return;
    }
    sleep_on_wire(p.shard, deadline);
  }
}

}  // namespace bypass::runtime
