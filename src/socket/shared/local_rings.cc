// The rings of a connection within the host as polls and sleepers see them: what has changed, whether there is room,
// and when the peer wakes us.
// Tests: tests/system/local_bounded.py, tests/system/local_room.py.
#include "socket/family/kin.h"
#include "socket/shared/local_path.h"
#include "socket/wait/epoll.h"

namespace bypass::socket {

namespace shm = fastpath::shm;
using Stage = LocalEnd::Stage;

bool has_ring_room(const Socket& socket, LocalLink& link) {
  shm::Producer& producer = end_of(socket).producer;
  const std::uint64_t third = producer.most(link.out) / 3;
  return producer.room(link.out, third).size() >= third || producer.broken() != shm::Refusal::kNone;
}

bool look_at_rings(Socket& socket, LocalLink& link) {
  LocalEnd& end = end_of(socket);
  if (end.stage != Stage::kPaired) return false;
  std::uint32_t bits = 0;
  const std::uint64_t produced = link.in.peer->produced.load(std::memory_order_seq_cst);
  if (produced != link.seen_produced) {
    link.seen_produced = produced;
    bits |= kIn;
    if (socket.has(kHoldsBack)) release_if_answered(socket, link);
  }
  if (end.wants_room) {
    const std::uint64_t consumed = link.out.peer->consumed.load(std::memory_order_seq_cst);
    if (consumed != link.seen_consumed) {
      link.seen_consumed = consumed;
      if (has_ring_room(socket, link)) {
        end.wants_room = false;
        bits |= kOut;
      }
    }
  }
  if (bits == 0) return false;
  signal(socket, bits);
  return true;
}

void want_room(Socket& socket, LocalLink& link) {
  LocalEnd& end = end_of(socket);
  if (end.most_unsent != 0) bound_ring(socket, link);  // by the values known now
  end.wants_room = true;
  link.seen_consumed = link.out.peer->consumed.load(std::memory_order_seq_cst);
  arm_where_needed(socket, link);
}

bool is_to_be_armed(const Socket& socket) {
  if (is_waited_for(socket)) return true;
  if (!has_kin()) return false;
  if (is_shared(socket)) return true;
  for (const EpollItem* item = socket.items; item != nullptr; item = item->target_next)
    if (is_shared(*item->set)) return true;
  return false;
}

void ask_for_wakes(Socket& socket, LocalLink& link) {
  LocalEnd& end = end_of(socket);
  if (end.stage != Stage::kPaired || end.peer_gone) return;
  if (!link.armed_in) end.consumer.want(link.in);
  link.armed_in = true;
  if (end.wants_room) {
    if (!link.armed_out) end.producer.want(link.out);
    link.armed_out = true;
    // Any change counts as new, however small.
    link.seen_consumed = ~std::uint64_t{0};
  }
}

bool arm_link(Socket& socket, LocalLink& link) {
  const LocalEnd& end = end_of(socket);
  if (end.stage != Stage::kPaired || end.peer_gone) return false;
  ask_for_wakes(socket, link);
  return look_at_rings(socket, link);
}

void arm_where_needed(Socket& socket, LocalLink& link) {
  if (!link.active || is_to_be_armed(socket)) (void)arm_link(socket, link);
}

void touch_link(Socket& socket, LocalLink& link) {
  LocalEnd& end = end_of(socket);
  if (end.stage != Stage::kPaired) return;
  if (LocalLink* const old = active_links.add(link)) (void)arm_link(*old->socket, *old);
  if (is_to_be_armed(socket)) {
    (void)arm_link(socket, link);
    return;
  }
  if (link.armed_in) end.consumer.disarm(link.in);
  if (link.armed_out) end.producer.disarm(link.out);
  link.armed_in = link.armed_out = false;
}

}  // namespace bypass::socket
