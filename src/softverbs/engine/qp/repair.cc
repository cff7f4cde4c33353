// Repair between two ends of ours: only what is lost is sent again (docs/roce.md). With other peers the requester goes
// back to the oldest unanswered packet (requester_timer.cc).
#include "softverbs/engine/engine.h"

namespace bypass::rdma {
namespace {

std::uint32_t buffers_of(const Packet& frame) {
  std::uint32_t n = 0;
  for (const Packet* p = &frame; p != nullptr; p = p->next_segment) n++;
  return n;
}

bool is_near(const Requester& req, Psn psn) {
  const std::int32_t ahead = psn - req.una;
  return ahead > 0 && ahead < static_cast<std::int32_t>(kHoldAhead);
}
bool is_there(const Requester& req, Psn psn) {
  return is_near(req, psn) && req.there.has(psn);
}
bool is_here(const Requester& req, Psn psn) {
  return is_near(req, psn) && req.here.has(psn);
}

// How many packets from `nxt` on need not be sent again; 0: this one must be. The peer expects the oldest unanswered
// packet, whatever it said it holds.
std::uint32_t settled(const Engine& e, const Qp& qp, const SendWqe& w) {
  const Requester& req = qp.req;
  const bool arrived = before(req.nxt, req.arrived);
  if (!w.wants_data()) return arrived || is_there(req, req.nxt) ? 1 : 0;
  if (is_here(req, req.nxt)) return 1;
  if (arrived || !is_there(req, req.nxt)) return 0;
  return w.is_read() ? read_part(e, w, static_cast<std::uint32_t>(req.nxt - w.first)) : 1;
}

}  // namespace

// --- Packets before their turn

bool hold(Engine& e, HeldPackets& held, const RocePacket& packet, Psn expected) {
  const std::int32_t ahead = packet.psn - expected;
  const std::uint32_t buffers = buffers_of(*packet.frame);
  if (!packet.ours || ahead <= 0 || ahead >= static_cast<std::int32_t>(kHoldAhead)) return false;
  if (e.held_buffers + buffers > e.most_held || !held.insert(*packet.frame, packet.psn)) return false;
  e.held_buffers += buffers;
  e.kept = true;
  e.counters.rx_held++;
  return true;
}

Packet* take_held(Engine& e, HeldPackets& held) {
  Packet* const frame = held.pop();
  e.held_buffers -= buffers_of(*frame);
  return frame;
}

void drop_held(Engine& e, HeldPackets& held) {
  while (!held.empty()) e.tx.free(take_held(e, held));
}

// --- The requester

void note_arrived(Requester& req, Psn end) {
  if (before(req.arrived, end)) req.arrived = end;
}

void note_there(Requester& req, Psn expected, const RocePacket& nak, Psn& end) {
  std::array<std::uint8_t, kHoldAhead / 8> map;
  if (nak.payload_len != map.size()) return;
  FrameReader(*nak.frame, nak.payload).copy(map.data(), map.size());
  for (std::uint32_t i = 0; i < kHoldAhead; i++) {
    const Psn psn = expected + (1 + i);
    if (!before(psn, req.max)) return;
    if ((map[i / 8] >> (i % 8) & 1) == 0 || !is_near(req, psn)) continue;
    req.there.add(psn);
    end = psn;
  }
}

void resend(Engine& e, Qp& qp, Psn end) {
  Requester& req = qp.req;
  const bool under_way = before(req.nxt, req.repair_end);
  if (!under_way || before(req.repair_end, end)) req.repair_end = end;
  req.round = (req.round + 1) & kRounds;
  req.nxt = req.una;
  qp.sq.cursor = qp.sq.head;
  wake(e, qp);
}

void repair(Engine& e, Qp& qp, Psn end, std::uint8_t round) {
  if (round == qp.req.round && !qp.req.rnr_wait) resend(e, qp, end);
}

void skip_settled(const Engine& e, Qp& qp) {
  Requester& req = qp.req;
  SendQueue& sq = qp.sq;
  while (before(req.nxt, req.repair_end)) {
    const SendWqe& w = sq.at(sq.cursor);
    if (w.is_local()) {
      sq.cursor++;
      continue;
    }
    const std::uint32_t numbers = settled(e, qp, w);
    if (numbers == 0) return;
    req.nxt = req.nxt + numbers;
    if (before(w.last(), req.nxt)) sq.cursor++;
  }
  req.nxt = req.max;  // everything between is on its way
  while (sq.cursor != sq.begun && before(sq.at(sq.cursor).last(), req.nxt)) sq.cursor++;
}

std::uint32_t missing_answers(const Qp& qp, std::uint32_t part) {
  const Requester& req = qp.req;
  if (!before(req.nxt, req.arrived)) return part;  // the peer has not seen this request
  part = std::min(part, static_cast<std::uint32_t>(req.arrived - req.nxt));
  std::uint32_t n = 1;
  while (n < part && !is_here(req, req.nxt + n)) n++;
  return n;
}

// --- The responder

std::array<std::uint8_t, kHoldAhead / 8> held_map(const Responder& r) {
  std::array<std::uint8_t, kHoldAhead / 8> map{};
  r.held.each([&](Psn psn) {
    const auto i = static_cast<std::uint32_t>(psn - r.expected) - 1;
    if (i < kHoldAhead) map[i / 8] |= static_cast<std::uint8_t>(1U << (i % 8));
  });
  return map;
}

}  // namespace bypass::rdma
