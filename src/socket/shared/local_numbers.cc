// Each connection in shared memory uses one of the process's descriptor numbers, for its channel. RLIMIT_NOFILE limits
// their count.
// Tests: tests/preload/programs/numbers.c.
#include <atomic>

#include "socket/shared/local_path.h"
#include "socket/wait/readiness.h"
#include "socket/wait/socket_wait.h"

namespace bypass::socket {

using Stage = LocalEnd::Stage;

namespace {

/// The program has run out of numbers: until then no connection takes another one.
std::atomic<std::int64_t> no_more_until{0};

/// A link that is not among the latest in use, and that no thread copies with.
LocalLink* link_to_spare() {
  LocalLink* found = nullptr;
  for_each_local_link([&](LocalLink& link) {
    const Socket& socket = *link.socket;
    const bool can = socket.alive && end_of(socket).stage == Stage::kPaired && !socket.has(kReading | kWriting);
    if (can && (found == nullptr || (found->active && !link.active))) found = &link;
  });
  return found;
}

}  // namespace

bool has_numbers_for_link(Instant now) {
  if (now.time_since_epoch().count() < no_more_until.load(std::memory_order_relaxed)) return false;
  return local_link_count() < local_policy.most_links();
}

// Frees several at once: the program's next files need numbers, too, in calls that we do not see.
bool spare_numbers() {
  constexpr int kAtOnce = 8;
  constexpr Duration kForAWhile = std::chrono::seconds(10);
  if (!has_shard() || !has_local_links()) return false;
  Guard guard(shard());
  no_more_until.store((guard.context().now + kForAWhile).time_since_epoch().count(), std::memory_order_relaxed);
  const std::uint32_t before = local_link_count();
  for (int i = 0; i < kAtOnce; i++) {
    LocalLink* const link = link_to_spare();
    if (link == nullptr) break;
    Socket& socket = *link->socket;
    hold(socket);
    local_leave(guard, socket);
    hold_end(socket);
    const bool stays = local_link(socket) == link;
    end_leaving(guard, socket);
    if (stays) break;
  }
  return local_link_count() < before;
}

}  // namespace bypass::socket
