// The answers of poll(), FIONREAD and SIOCATMARK for a connection within the host.
// Tests: tests/system/local.py (poll_bits).
#include "socket/shared/local_condition.h"
#include "socket/shared/local_kernel.h"
#include "socket/wait/readiness.h"

namespace bypass::socket {

namespace shm = fastpath::shm;
using Stage = LocalEnd::Stage;
using Tx = shm::CarrierSwitch::Tx;
using Rx = shm::CarrierSwitch::Rx;

namespace {

/// Acts on the peer's messages. `hears`: reads new ones first. Null: there is no shared memory, or no longer.
LocalLink* settled_link(Socket& socket, bool hears) {
  if (LocalLink* const link = paired_link(socket); link != nullptr && hears) hear_channel(socket, *link);
  if (LocalLink* const link = paired_link(socket)) settle(socket, *link);
  return paired_link(socket);
}

/// The link of a connection in its usual state: both directions lie in their rings, no message must be acted on, and
/// the kernel has no news. Null: it is in another state. A set asks this for each event that it reports.
LocalLink* quiet_link(const Socket& socket) {
  const LocalEnd& end = end_of(socket);
  const bool heard = end.cut_heard || end.stop_heard || end.resume_heard || end.peer_gone || end.paths.is_ending();
  const bool in_rings = end.paths.rx() == Rx::kRing && end.paths.tx() == Tx::kRing;
  if (end.stage != Stage::kPaired || heard || !in_rings) return nullptr;
  if (socket.pending_error != 0 || socket.has(kShutReceive | kShutSend) || socket.low_water > 1) return nullptr;
  LocalLink* const link = local_links().find(end.id.index);
  if (link == nullptr || !link->used || link->generation != end.id.generation || link->half == nullptr) return nullptr;
  const KernelHalf& half = *link->half;
  const bool well = half.generation == link->generation && half.watched && half.taking == 0 && !has_news(half);
  return well && !is_peer_shut(*link) ? link : nullptr;
}

/// For a connection in its usual state.
bool has_unread(const Socket& socket, const LocalLink& link) {
  return link.in.peer->produced.load(std::memory_order_seq_cst) != end_of(socket).consumer.consumed();
}

std::uint64_t unread_in_ring(const LocalEnd& end, const LocalLink& link) {
  const std::uint64_t there = link.in.peer->produced.load(std::memory_order_seq_cst) - end.consumer.consumed();
  return end.paths.from_ring(std::min(there, link.in.size), end.consumer);
}

// True while some of the bytes that the kernel must carry before the ring's are still on their way: the ring's cannot
// be read yet.
bool is_gap_before_ring(const LocalEnd& end, int in_kernel) {
  constexpr auto kAll = ~std::uint64_t{0};
  return end.paths.rx() == Rx::kKernel && static_cast<std::uint64_t>(in_kernel) < end.paths.from_kernel(kAll);
}

// Less than the low-water mark in each of the two carriers may be enough together.
bool enough_in_both(const Socket& socket, const LocalLink& link, int number) {
  const LocalEnd& end = end_of(socket);
  int in_kernel = 0;
  if (!end.paths.is_bounded() && !end.paths.is_ending()) return false;
  if (os::call(SYS_ioctl, number, SIOCINQ, os::address(&in_kernel)) != 0) return false;
  if (is_gap_before_ring(end, in_kernel)) return false;
  return static_cast<std::uint64_t>(in_kernel) + unread_in_ring(end, link) >= socket.low_water;
}

}  // namespace

std::optional<long> local_unread(Socket& socket, int fd) {
  if (!is_local(socket)) return std::nullopt;  // it has gone to the kernel meanwhile
  LocalEnd& end = end_of(socket);
  LocalLink* const link = settled_link(socket, kernel_has_news(socket) || end.paths.rx() == Rx::kKernel);
  if (link == nullptr) return std::nullopt;
  if (kernel_has_news(socket)) (void)take_held_of_dead(socket, *link);
  if (end.paths.is_skipping()) return 0;
  int in_kernel = 0;
  if (end.paths.rx() == Rx::kKernel && !end.paths.is_bounded()) return std::nullopt;
  if (os::call(SYS_ioctl, fd, SIOCINQ, os::address(&in_kernel)) != 0) return std::nullopt;
  if (is_gap_before_ring(end, in_kernel)) return in_kernel;
  const auto in_ring = static_cast<long>(unread_in_ring(end, *link));
  const bool to_the_ring = end.paths.rx() == Rx::kRing && in_ring != 0 && kernel_is_at_mark(fd);
  const bool both = end.paths.rx() == Rx::kKernel || (end.paths.is_ending() && !to_the_ring);
  return (both ? in_kernel : 0) + in_ring;
}

namespace {

/// FIONREAD.
std::optional<long> readable(Socket& socket, int fd) {
  Guard guard(shard());
  return local_unread(socket, fd);
}

/// SIOCATMARK, if the kernel's answer is wrong: the kernel is at the mark, but bytes before the mark lie in the ring.
bool is_before_mark(Socket& socket, int fd) {
  if (!kernel_is_at_mark(fd)) return false;
  Guard guard(shard());
  LocalLink* const link = local_link(socket);
  LocalEnd& end = end_of(socket);
  if (link == nullptr || end.stage != Stage::kPaired) return false;
  settle(socket, *link);
  return is_paired(socket) && end.paths.rx() == Rx::kRing && unread_in_ring(end, *link) != 0;
}

}  // namespace

std::optional<long> local_number(Socket& socket, int fd, unsigned long request) {
  constexpr auto kZero = std::optional(0L);
  switch (request) {
    case FIONREAD:
      return readable(socket, fd);
    case SIOCATMARK:
      return is_before_mark(socket, fd) ? kZero : std::nullopt;
    case SIOCOUTQ:  // what reset_in_kernel() leaves counts as unacknowledged
      return is_closed_in_kernel(fd) ? kZero : std::nullopt;
    default:
      return std::nullopt;
  }
}

bool local_is_quiet(const Socket& socket) {
  const LocalLink* const link = quiet_link(socket);
  return link != nullptr && !has_unread(socket, *link);
}

std::uint32_t local_bits(const Socket& constant) {
  auto& socket = const_cast<Socket&>(constant);
  if (LocalLink* const link = quiet_link(socket); link != nullptr && has_ring_room(socket, *link)) [[likely]]
    return kOut | (has_unread(socket, *link) ? kIn : 0U);
  LocalEnd& end = end_of(socket);
  KernelHalf* const half = kernel_half(socket);
  if (half == nullptr || !half->watched) return 0;
  LocalLink* const link = settled_link(socket, end.paths.rx() == Rx::kRing && kernel_has_news(socket));
  const bool reads_ring = link != nullptr && end.paths.rx() == Rx::kRing;
  const bool writes_ring = link != nullptr && end.paths.tx() != Tx::kKernel;
  std::uint32_t bits = socket.pending_error != 0 ? kError | kIn : 0U;
  // An end whose event may not have been heard yet.
  const bool shut = socket.has(kShutReceive | kShutSend) || (reads_ring && is_peer_shut(*link));
  if (!reads_ring || !writes_ring || shut || half->taking != 0 || has_news(*half)) {
    const auto now = static_cast<std::uint32_t>(os::poll_now(half->number, POLLIN | POLLOUT | POLLRDHUP | POLLPRI));
    half->in = (now & POLLIN) != 0;
    half->error = (now & POLLERR) != 0;
    half->hung_up = (now & POLLHUP) != 0;
    bits |= now & (POLLRDHUP | POLLHUP | POLLERR | POLLPRI);
    if (half->in && (link == nullptr || !end.paths.is_skipping())) bits |= kIn;
    const bool ended = (now & (POLLHUP | POLLERR)) != 0 || socket.has(kShutSend);
    if ((now & POLLOUT) != 0 && (!writes_ring || ended)) bits |= kOut;
    if ((now & POLLOUT) == 0 && !writes_ring) want_kernel_out(socket);
  }
  if (reads_ring && (bits & kPeerShut) != 0) {
    (void)take_held_of_dead(socket, *link);
    release_if_ended(socket, *link);
  }
  if (reads_ring) {
    const std::uint64_t unread = end.paths.from_ring(
        link->in.peer->produced.load(std::memory_order_seq_cst) - end.consumer.consumed(), end.consumer);
    if (unread >= socket.low_water) bits |= kIn;
  }
  const bool short_of = (bits & kIn) == 0 && socket.low_water > 1;
  if (short_of && link != nullptr && is_paired(socket) && enough_in_both(socket, *link, half->number)) bits |= kIn;
  if (writes_ring && end.paths.tx() == Tx::kRing) {
    if (has_ring_room(socket, *link))
      bits |= kOut;
    else
      want_room(socket, *link);
  }
  return bits;
}

}  // namespace bypass::socket
