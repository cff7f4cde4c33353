// TCP_INFO (tcp(7)) of a connection within the host: what the rings carried is added to the kernel's own counts.
// Tests: tests/system/local.py (counted_in_tcp_info).
#include <linux/tcp.h>

#include <algorithm>
#include <cstring>

#include "socket/options/options.h"
#include "socket/shared/local_path.h"

namespace bypass::socket {

namespace {

struct Carried {
  std::uint64_t sent = 0, received = 0;
};

Carried carried_by_ring(const LocalEnd& end, const LocalLink* link) {
  const bool has_all = link == nullptr || end.stage != LocalEnd::Stage::kPaired || end.paths.has_stopped_reading();
  const std::uint64_t received =
      has_all ? end.consumer.consumed() : link->in.peer->produced.load(std::memory_order_relaxed);
  return {end.producer.published() - end.paths.returned(), received - end.paths.twice()};
}

std::uint32_t milliseconds_since(Instant then, Instant now) {
  return static_cast<std::uint32_t>(std::chrono::duration_cast<std::chrono::milliseconds>(now - then).count());
}

}  // namespace

void note_ring_traffic(const LocalEnd& end, LocalLink& link, Instant now) {
  const Carried carried = carried_by_ring(end, &link);
  if (carried.sent != link.noted_sent) link.noted_sent = carried.sent, link.sent_by = now;
  if (carried.received != link.noted_received) link.noted_received = carried.received, link.received_by = now;
}

void add_ring_to_tcp_info(Socket& socket, std::span<std::byte> out) {
  const LocalEnd& end = end_of(socket);
  LocalLink* const link = local_link(socket);
  const Carried carried = carried_by_ring(end, link);
  tcp_info info{};
  const std::size_t bytes = std::min(out.size(), sizeof info);
  std::memcpy(&info, out.data(), bytes);
  info.tcpi_bytes_sent += carried.sent;
  info.tcpi_bytes_acked += carried.sent;
  info.tcpi_notsent_bytes += end.producer.held();
  info.tcpi_bytes_received += carried.received;
  if (link != nullptr && end.stage == LocalEnd::Stage::kPaired) {
    const Instant now = shard().clock().now();
    note_ring_traffic(end, *link, now);
    if (carried.sent != 0) {
      const std::uint32_t ago = milliseconds_since(link->sent_by, now);
      info.tcpi_last_data_sent = std::min(info.tcpi_last_data_sent, ago);
      info.tcpi_last_ack_recv = std::min(info.tcpi_last_ack_recv, ago);
    }
    if (carried.received != 0)
      info.tcpi_last_data_recv = std::min(info.tcpi_last_data_recv, milliseconds_since(link->received_by, now));
  }
  std::memcpy(out.data(), &info, bytes);
}

}  // namespace bypass::socket
