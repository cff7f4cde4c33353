// What a peer's manager says about connections.
#include <algorithm>
#include <cerrno>

#include "softverbs/cm/manager.h"

namespace bypass::cm {
namespace {

constexpr std::uint8_t kLongestMtu = 5;       // ibv_mtu: 4096
constexpr std::uint8_t kProgramTimeout = 24;  // how long Linux lets a program think about a request or a reply
constexpr std::uint8_t kConnected = 2;        // IBV_QPT_RC
constexpr std::uint8_t kLongestProlongation = 24;

template <std::size_t kBytes>
void take_data(Parameters& to, const std::array<std::byte, kBytes>& from, std::size_t offset = 0) {
  to.data_bytes = kBytes - offset;
  std::copy(from.begin() + static_cast<std::ptrdiff_t>(offset), from.end(), to.data.begin());
}

}  // namespace

void Manager::on_mad(std::size_t device, const IpAddress& from, const IpAddress& to, const Mad& mad, Instant now) {
  const auto head = read_head(mad);
  if (!head || device >= devices_.size()) return;
  const Arrival arrival{device, from, to, *head, now};
  switch (head->message) {
    case Message::kRequest:
      return on_request(arrival, mad);
    case Message::kReply:
      return on_reply(arrival, mad);
    case Message::kReady:
      return on_ready(arrival);
    case Message::kReject:
      return on_rejection(arrival, mad);
    case Message::kProlong:
      return on_prolongation(arrival, mad);
    case Message::kDisconnectRequest:
      return on_disconnect_request(arrival, mad);
    case Message::kDisconnectReply:
      return on_disconnect_reply(arrival);
    case Message::kServiceRequest:
      return on_service_request(arrival, mad);
    case Message::kServiceReply:
      return on_service_reply(arrival, mad);
  }
}

// --- Which connection a message is about

// By our number, which the peer repeats. Only the peer itself may speak of it.
Id* Manager::find_peer(const Arrival& arrival) {
  Id* const id = get((arrival.head.remote ^ mask_) & 0xffff);
  if (id == nullptr || id->local != arrival.head.remote) return nullptr;
  if (id->device != arrival.device || id->destination.address != arrival.from) return nullptr;
  return id->source.address == arrival.to ? id : nullptr;
}

// By the peer's number of a request that we have got.
Id* Manager::find_passive(const Arrival& arrival) {
  const auto at = passive_.find({arrival.from, arrival.head.local});
  return at == passive_.end() ? nullptr : get(at->second);
}

void Manager::refuse(const Arrival& arrival, std::uint8_t of, Reason reason) {
  Rejection rejection;
  rejection.of = of;
  rejection.reason = static_cast<std::uint16_t>(reason);
  const MadHead head{arrival.head.transaction, Message::kReject, 0, arrival.head.local};
  surroundings_.send(arrival.device, arrival.to, arrival.from, make_rejection(head, rejection));
}

// --- REQ

// A request that finds no room is lost: the peer sends it again.
bool Manager::has_room_for(const Id& listener) const {
  return ids_.size() < kMostIds && surroundings_.has_room(listener.number);
}

Id& Manager::add_passive(const Id& listener, const Arrival& arrival, const IpHeader& header) {
  Id& id = add(listener.space, listener.qp_type);
  id.passive = true;
  id.remote = arrival.head.local;
  id.transaction = arrival.head.transaction;
  id.has_device = id.has_route = true;
  id.device = arrival.device;
  id.source = {arrival.to, listener.source.port};
  id.destination = {arrival.from, header.source_port};
  id.service = listener.service;
  id.state = State::kRequestReceived;
  passive_[{arrival.from, id.remote}] = id.number;
  return id;
}

// A peer that died without a word, and was started again, may use the number of a queue pair that is still connected
// here. That connection is over.
void Manager::forget_predecessor(const Arrival& arrival, std::uint32_t qpn) {
  for (auto& [number, entry] : ids_) {
    Id& id = *entry;
    const bool connected =
        id.state == State::kEstablished || id.state == State::kDisconnectSent || id.state == State::kDisconnectReceived;
    if (!connected || id.is_datagram() || id.peer_qpn != qpn || id.destination.address != arrival.from) continue;
    const bool told = id.state == State::kDisconnectReceived;
    enter_time_wait(id, arrival.now);
    if (!told) report(id, Event::kDisconnected);
  }
}

void Manager::on_request(const Arrival& arrival, const Mad& mad) {
  if (Id* const known = find_passive(arrival); known != nullptr) return on_repeated_request(*known);
  const Request request = read_request(mad);
  const auto header = read_ip_header(request.data);
  Id* const listener = find_listener(arrival.device, request.service, arrival.to);
  if (!header || listener == nullptr || listener->is_datagram()) return refuse(arrival, 0, Reason::kInvalidServiceId);
  if (request.local_gid != arrival.from || request.remote_gid != arrival.to || header->source != arrival.from)
    return refuse(arrival, 0, Reason::kInvalidGid);
  if (request.transport != 0 || listener->qp_type != kConnected || request.mtu == 0 || request.mtu > kLongestMtu)
    return refuse(arrival, 0, Reason::kInvalidServiceId);
  if (!has_room_for(*listener)) return;
  forget_predecessor(arrival, request.qpn);
  const IdNumber listens = listener->number;
  Id& id = add_passive(*listener, arrival, *header);
  id.peer_qpn = request.qpn;
  id.peer_psn = request.starting_psn;
  id.responder_resources = request.initiator_depth;
  id.initiator_depth = request.responder_resources;
  id.retry_count = request.retry_count;
  id.rnr_retry_count = request.rnr_retry_count;
  id.mtu = request.mtu;
  id.ack_timeout = request.ack_timeout;
  Happened happened{Event::kConnectRequest, id.number, listens, 0, {}};
  Parameters& told = happened.parameters;
  told.qpn = request.qpn;
  told.responder_resources = id.responder_resources;
  told.initiator_depth = id.initiator_depth;
  told.retry_count = request.retry_count;
  told.rnr_retry_count = request.rnr_retry_count;
  told.flow_control = request.flow_control;
  told.srq = request.srq;
  take_data(told, request.data, kIpHeaderBytes);
  surroundings_.happened(happened);
}

// The peer's patience ends before the program's: it is asked for more. A reply is repeated by itself.
void Manager::on_repeated_request(Id& id) {
  if (id.state == State::kRequestReceived && !id.is_datagram())
    send(id, make_prolongation(head_for(id, Message::kProlong), 0, kProgramTimeout));
}

// --- REP and RTU

void Manager::on_reply(const Arrival& arrival, const Mad& mad) {
  Id* const id = find_peer(arrival);
  if (id == nullptr || id->passive || id->is_datagram()) return;
  if (id->state != State::kRequestSent) {
    if (id->remote == arrival.head.local) on_repeated_reply(*id);
    return;
  }
  const Reply reply = read_reply(mad);
  stop_sending(*id);
  id->remote = arrival.head.local;
  id->peer_qpn = reply.qpn;
  id->peer_psn = reply.starting_psn;
  id->responder_resources = reply.initiator_depth;
  id->initiator_depth = reply.responder_resources;
  id->rnr_retry_count = reply.rnr_retry_count;
  id->state = State::kReplyReceived;
  Parameters told;
  told.qpn = reply.qpn;
  told.responder_resources = reply.initiator_depth;
  told.initiator_depth = reply.responder_resources;
  told.flow_control = reply.flow_control;
  told.rnr_retry_count = reply.rnr_retry_count;
  told.srq = reply.srq;
  take_data(told, reply.data);
  report(*id, Event::kConnectResponse, 0, told);
}

void Manager::on_repeated_reply(Id& id) {
  if (id.state == State::kEstablished) return send(id, make_plain(head_for(id, Message::kReady)));
  if (id.state == State::kReplyReceived)
    send(id, make_prolongation(head_for(id, Message::kProlong), 1, kProgramTimeout));
}

void Manager::on_ready(const Arrival& arrival) {
  Id* const id = find_peer(arrival);
  if (id == nullptr || id->state != State::kReplySent || id->remote != arrival.head.local) return;
  stop_sending(*id);
  id->state = State::kEstablished;
  report(*id, Event::kEstablished);
}

// --- REJ and MRA

void Manager::on_rejection(const Arrival& arrival, const Mad& mad) {
  Id* const id = find_peer(arrival);
  const bool by_number = id != nullptr;
  // A peer that gave up has no number of ours yet.
  Id* const at = by_number ? id : arrival.head.remote == 0 ? find_passive(arrival) : nullptr;
  if (at == nullptr || at->is_datagram()) return;
  if (at->state != State::kRequestSent && at->remote != arrival.head.local) return;
  const Rejection rejection = read_rejection(mad);
  switch (at->state) {
    case State::kRequestSent:
    case State::kReplySent:
    case State::kReplyReceived:
    case State::kRequestReceived: {
      stop_sending(*at);
      at->state = State::kClosed;
      Parameters told;
      take_data(told, rejection.data);
      return report(*at, Event::kRejected, rejection.reason, told);
    }
    case State::kDisconnectSent:
      enter_time_wait(*at, arrival.now);
      return report(*at, Event::kDisconnected);
    default:
      return;
  }
}

void Manager::on_prolongation(const Arrival& arrival, const Mad& mad) {
  Id* const id = find_peer(arrival);
  if (id == nullptr || id->sends_left == 0 || id->prolonged) return;
  if (id->state != State::kRequestSent && id->state != State::kReplySent) return;
  const std::uint8_t exponent = std::min(read_prolongation(mad), kLongestProlongation);
  id->prolonged = true;
  schedule(*id, arrival.now + std::chrono::milliseconds(1U << (exponent > 8 ? exponent - 8 : 0)) + id->interval);
}

// --- DREQ and DREP

void Manager::on_disconnect_request(const Arrival& arrival, const Mad& mad) {
  Id* const id = find_peer(arrival);
  const bool ours =
      id != nullptr && !id->is_datagram() && id->remote == arrival.head.local && id->qpn == read_disconnected_qpn(mad);
  if (!ours) {
    // The peer need not ask again: there is nothing to disconnect.
    const MadHead head{arrival.head.transaction, Message::kDisconnectReply, arrival.head.remote, arrival.head.local};
    return surroundings_.send(arrival.device, arrival.to, arrival.from, make_plain(head));
  }
  id->transaction = arrival.head.transaction;
  switch (id->state) {
    case State::kReplySent:
    case State::kEstablished:
      stop_sending(*id);
      id->state = State::kDisconnectReceived;
      return report(*id, Event::kDisconnected);
    case State::kDisconnectSent:  // both ends at once
      send(*id, make_plain(head_for(*id, Message::kDisconnectReply)));
      enter_time_wait(*id, arrival.now);
      return report(*id, Event::kDisconnected);
    case State::kTimeWait:
    case State::kClosed:
      return send(*id, make_plain(head_for(*id, Message::kDisconnectReply)));
    default:
      return;
  }
}

void Manager::on_disconnect_reply(const Arrival& arrival) {
  Id* const id = find_peer(arrival);
  if (id == nullptr || id->state != State::kDisconnectSent || id->remote != arrival.head.local) return;
  enter_time_wait(*id, arrival.now);
  report(*id, Event::kDisconnected);
}

}  // namespace bypass::cm
