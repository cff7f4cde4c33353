// Short copies between a program's buffers and the rings of its connection within the host, in one ShortHold each. They
// are for the usual case: both directions lie in their rings, no message must be acted on first, and no thread sleeps
// that waits for the connection.
// Everything else is in local_receive.cc and local_send.cc.
// Tests: tests/system/local.py (short_transfers_take_a_copy_and_no_more).
#include <algorithm>

#include "os/io_cursor.h"
#include "socket/at_once.h"
#include "socket/family/kin.h"
#include "socket/shared/local_path.h"
#include "socket/wait/kernel_half.h"
#include "socket/wait/socket_wait.h"

namespace bypass::socket {

namespace shm = fastpath::shm;
using Stage = LocalEnd::Stage;
using Tx = shm::CarrierSwitch::Tx;
using Rx = shm::CarrierSwitch::Rx;

namespace {

/// How often a blocking receive looks at the ring during one hold.
constexpr int kLooks = 32;

/// Null: something else must be done first.
[[gnu::always_inline]] inline LocalLink* usual_link(Socket& socket) {
  if (!socket.alive || socket.path.load(std::memory_order_relaxed) != Path::kLocal) return nullptr;
  const LocalEnd& end = end_of(socket);
  const bool heard = end.cut_heard || end.stop_heard || end.resume_heard || end.peer_gone || end.paths.is_ending();
  if (end.stage != Stage::kPaired || heard || socket.pending_error != 0) return nullptr;
  // If several processes have the socket, others may sleep for it.
  if ((shard().sleepers() != 0 || has_kin()) && is_to_be_armed(socket)) return nullptr;
  if (socket.leave_asked.load(std::memory_order_relaxed)) return nullptr;
  LocalLink* const link = local_links().find(end.id.index);
  if (link == nullptr || !link->active || link->generation != end.id.generation || link->half == nullptr)
    return nullptr;
  if (link->armed_in || link->armed_out) [[unlikely]]
    touch_link(socket, *link);  // no thread waits for it any more
  return link;
}

/// True if the kernel has no end and no error for us.
bool is_kernel_well(const LocalLink& link) {
  const KernelHalf& half = *link.half;
  return half.generation == link.generation && half.watched && !half.error && !half.hung_up;
}

// Calls usually have one buffer, and the bytes are in one piece.
template <typename Part>
[[nodiscard]] bool is_simple(std::span<const iovec> data, const shm::Parts<Part>& parts, std::size_t bytes) {
  return data.size() == 1 && bytes <= parts.part[0].size();
}

// False, here and below: the program's memory is not mapped.
bool copy_out(std::span<const iovec> data, const shm::Parts<const std::byte>& parts, std::size_t bytes) {
  if (is_simple(data, parts, bytes)) [[likely]]
    return copy_program_bytes(data[0].iov_base, parts.part[0].data(), bytes);
  IoCursor cursor(data);
  const std::size_t first = std::min(parts.part[0].size(), bytes);
  return cursor.write(parts.part[0].data(), first) && cursor.write(parts.part[1].data(), bytes - first);
}

bool copy_in(std::span<const iovec> data, const shm::Parts<std::byte>& parts, std::size_t bytes) {
  if (is_simple(data, parts, bytes)) [[likely]]
    return copy_program_bytes(parts.part[0].data(), data[0].iov_base, bytes);
  IoCursor cursor(data);
  const std::size_t first = std::min(parts.part[0].size(), bytes);
  return cursor.read(parts.part[0].data(), first) && cursor.read(parts.part[1].data(), bytes - first);
}

[[gnu::cold]] void wake_after(ShortHold& hold, const LocalLink& link) {
  wake_peer(link);
  hold.has_wakes();
}

}  // namespace

long local_receive_look(Socket& socket, std::span<const iovec> data, std::size_t total, int flags) {
  ShortHold hold(shard());
  if (!hold.held()) return kSlowPath;
  LocalLink* const link = usual_link(socket);
  if (link == nullptr || end_of(socket).paths.rx() != Rx::kRing || socket.has(kReading | kHoldsBack | kWantInq) ||
      socket.low_water > 1)
    return kSlowPath;
  const bool waits = !non_blocking(socket, flags);
  shm::Consumer& consumer = end_of(socket).consumer;
  shm::Parts<const std::byte> parts = consumer.peek(link->in, total);
  // The answer will go there, so its cache line is fetched while this waits.
  if (parts.size() == 0)
    __builtin_prefetch(link->out.bytes + (end_of(socket).producer.produced() & (link->out.size - 1)), 1);
  for (int i = 1; parts.size() == 0 && waits && i < kLooks; i++) parts = consumer.peek(link->in, total);
  const std::size_t bytes = std::min(parts.size(), total);
  if (bytes < total && (!is_kernel_well(*link) || link->half->in)) return kSlowPath;
  if (bytes == 0) return waits && consumer.broken() == shm::Refusal::kNone ? kWouldWait : kSlowPath;
  if (bytes > kCopyInLock) return kSlowPath;
  if (!copy_out(data, parts, bytes)) return kSlowPath;
  if (consumer.consume(link->in, bytes)) wake_after(hold, *link);
  at_once_counts.local++;
  return static_cast<long>(bytes);
}

long local_send_look(Socket& socket, std::span<const iovec> data, std::size_t total) {
  const std::uint64_t ticks = Clock::ticks();
  if (is_kernel_look_due(ticks)) [[unlikely]]
    look_at_kernel_halves(shard().clock().now(), true);  // the peer may have died
  ShortHold hold(shard());
  if (!hold.held()) return kSlowPath;
  LocalLink* const link = usual_link(socket);
  if (link == nullptr || end_of(socket).paths.tx() != Tx::kRing || socket.has(kShutSend | kWriting | kHoldsBack))
    return kSlowPath;
  if (!is_kernel_well(*link) || shm::is_reader_stopping(link->out)) return kSlowPath;  // the kernel has the answer
  const KernelHalf& half = *link->half;
  if (half.in && !half.unsure && !is_peer_shut(*link)) [[unlikely]]
    return kSlowPath;  // it may have died
  shm::Producer& producer = end_of(socket).producer;
  const shm::Parts<std::byte> room = producer.room(link->out, total);
  if (room.size() < total || has_other_buffer(*link)) return kSlowPath;
  if (!copy_in(data, room, total)) return kSlowPath;
  if (producer.publish(link->out, total, ticks)) wake_after(hold, *link);
  end_of(socket).seen_at_send = end_of(socket).consumer.seen();
  at_once_counts.local++;
  return static_cast<long>(total);
}

}  // namespace bypass::socket
