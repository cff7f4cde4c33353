// What a program asks of a connection, and what is sent again until a peer answers.
#include <algorithm>
#include <cerrno>

#include "softverbs/cm/manager.h"

namespace bypass::cm {
namespace {

// Linux's values: cma.c and cm.c.
constexpr std::uint8_t kResponseTimeout = 20, kPacketLifeTime = 16;
constexpr unsigned kRepeats = 15;

/// A time of 4.096 us times 2 to this power, as Linux rounds it.
Duration duration_of(std::uint8_t exponent) {
  return std::chrono::milliseconds(std::int64_t{1} << (exponent > 8 ? std::min(exponent - 8, 23) : 0));
}

const Duration kInterval = duration_of(kPacketLifeTime) * 2 + duration_of(kResponseTimeout);

std::uint64_t guid_of(const DeviceInfo& device) {
  return __builtin_bswap64(device.guid);
}

template <std::size_t kBytes>
void put_data(std::array<std::byte, kBytes>& out, std::size_t offset, const Parameters& from) {
  std::copy_n(from.data.begin(), from.data_bytes, out.begin() + static_cast<std::ptrdiff_t>(offset));
}

}  // namespace

// --- Timers

void Manager::schedule(Id& id, Instant due) {
  if (id.due != kNever) timers_.erase({id.due, id.number});
  id.due = due;
  if (due != kNever) timers_.insert({due, id.number});
}

Instant Manager::next_timeout() const {
  return timers_.empty() ? kNever : timers_.begin()->first;
}

void Manager::run(Instant now) {
  while (!timers_.empty() && timers_.begin()->first <= now) {
    Id& id = *get(timers_.begin()->second);
    schedule(id, kNever);
    switch (id.state) {
      case State::kAddressQuery:
        look_for_neighbour(id, now);
        break;
      case State::kTimeWait:
        id.state = State::kClosed;
        report(id, Event::kTimewaitExit);
        break;
      default:
        if (id.sends_left == 0) {
          give_up(id, now);
          break;
        }
        id.sends_left--;
        id.prolonged = false;
        send(id, id.sent);
        schedule(id, now + id.interval);
    }
  }
}

// The peer has not answered the last repetition either.
void Manager::give_up(Id& id, Instant now) {
  switch (id.state) {
    case State::kRequestSent:
      if (!id.is_datagram()) send_rejection(id, 0, Reason::kTimeout);
      id.state = State::kClosed;
      return report(id, Event::kUnreachable, -ETIMEDOUT);
    case State::kReplySent:
      send_rejection(id, 1, Reason::kTimeout);
      id.state = State::kClosed;
      return report(id, Event::kUnreachable, -ETIMEDOUT);
    case State::kDisconnectSent:
      enter_time_wait(id, now);
      return report(id, Event::kDisconnected, -ETIMEDOUT);
    default:
      return;
  }
}

void Manager::enter_time_wait(Id& id, Instant now) {
  stop_sending(id);
  id.state = State::kTimeWait;
  schedule(id, now + duration_of(id.ack_timeout));
}

void Manager::report(const Id& id, Event event, int status, const Parameters& parameters) {
  surroundings_.happened({event, id.number, 0, status, parameters});
}

// --- Sending

MadHead Manager::head_for(Id& id, Message message) {
  return {id.transaction, message, id.local, id.remote};
}

void Manager::send(const Id& id, const Mad& mad) {
  surroundings_.send(id.device, id.source.address, id.destination.address, mad);
}

void Manager::send_until_answered(Id& id, const Mad& mad, Instant now) {
  id.sent = mad;
  id.sends_left = kRepeats;
  id.interval = kInterval;
  id.prolonged = false;
  send(id, mad);
  schedule(id, now + id.interval);
}

void Manager::stop_sending(Id& id) {
  id.sends_left = 0;
  schedule(id, kNever);
}

void Manager::send_rejection(Id& id, std::uint8_t of, Reason reason, std::span<const std::byte> data) {
  Rejection rejection;
  rejection.of = of;
  rejection.reason = static_cast<std::uint16_t>(reason);
  std::copy(data.begin(), data.end(), rejection.data.begin());
  send(id, make_rejection(head_for(id, Message::kReject), rejection));
}

// --- Calls

int Manager::connect(IdNumber number, const Parameters& parameters, Instant now) {
  Id* const id = get(number);
  if (id == nullptr) return ENOENT;
  if (id->state != State::kRouteResolved) return EINVAL;
  id->qpn = parameters.qpn;
  id->service = service_of(id->space, id->destination.port);
  if (id->is_datagram()) return request_service(*id, parameters, now);
  if (parameters.data_bytes > kRequestData - kIpHeaderBytes) return EINVAL;
  id->responder_resources = parameters.responder_resources;
  id->initiator_depth = parameters.initiator_depth;
  id->retry_count = std::min<std::uint8_t>(parameters.retry_count, 7);
  Request request;
  request.service = id->service;
  request.guid = guid_of(devices_[id->device]);
  request.qpn = id->qpn;
  request.starting_psn = id->own_psn;
  request.responder_resources = id->responder_resources;
  request.initiator_depth = id->initiator_depth;
  request.remote_response_timeout = request.local_response_timeout = kResponseTimeout;
  request.retry_count = id->retry_count;
  request.rnr_retry_count = std::min<std::uint8_t>(parameters.rnr_retry_count, 7);
  request.max_cm_retries = kRepeats;
  request.mtu = id->mtu;
  request.ack_timeout = id->ack_timeout;
  request.flow_control = parameters.flow_control;
  request.srq = parameters.srq;
  request.local_gid = id->source.address;
  request.remote_gid = id->destination.address;
  write_ip_header(request.data, {id->source.address, id->destination.address, id->source.port});
  put_data(request.data, kIpHeaderBytes, parameters);
  id->state = State::kRequestSent;
  send_until_answered(*id, make_request(head_for(*id, Message::kRequest), request), now);
  return 0;
}

int Manager::accept(IdNumber number, const Parameters* parameters, Instant now) {
  Id* const id = get(number);
  if (id == nullptr) return ENOENT;
  if (parameters == nullptr) {
    if (id->state != State::kReplyReceived) return EINVAL;
    id->state = State::kEstablished;
    send(*id, make_plain(head_for(*id, Message::kReady)));
    return 0;
  }
  if (id->state != State::kRequestReceived) return EINVAL;
  id->qpn = parameters->qpn;
  if (id->is_datagram()) {
    if (parameters->data_bytes > kServiceReplyData) return EINVAL;
    id->qkey = parameters->qkey != 0 ? parameters->qkey : kDatagramQkey;
    answer_service(*id, 0, *parameters);
    return 0;
  }
  if (parameters->data_bytes > kReplyData) return EINVAL;
  id->responder_resources = parameters->responder_resources;
  id->initiator_depth = parameters->initiator_depth;
  Reply reply;
  reply.guid = guid_of(devices_[id->device]);
  reply.qpn = id->qpn;
  reply.starting_psn = id->own_psn;
  reply.responder_resources = id->responder_resources;
  reply.initiator_depth = id->initiator_depth;
  reply.rnr_retry_count = std::min<std::uint8_t>(parameters->rnr_retry_count, 7);
  reply.flow_control = parameters->flow_control;
  reply.srq = parameters->srq;
  put_data(reply.data, 0, *parameters);
  id->state = State::kReplySent;
  send_until_answered(*id, make_reply(head_for(*id, Message::kReply), reply), now);
  return 0;
}

int Manager::reject(IdNumber number, std::span<const std::byte> data, std::uint16_t reason, Instant now) {
  constexpr std::uint8_t kServiceRejected = 2;
  Id* const id = get(number);
  if (id == nullptr) return ENOENT;
  if (id->is_datagram()) {
    if (id->state != State::kRequestReceived || data.size() > kServiceReplyData) return EINVAL;
    Parameters parameters;
    std::copy(data.begin(), data.end(), parameters.data.begin());
    parameters.data_bytes = data.size();
    answer_service(*id, kServiceRejected, parameters);
    return 0;
  }
  if (data.size() > kRejectData) return EINVAL;
  const Reason why = reason != 0 ? static_cast<Reason>(reason) : Reason::kConsumerDefined;
  switch (id->state) {
    case State::kRequestReceived:
      send_rejection(*id, 0, why, data);
      break;
    case State::kReplyReceived:
      send_rejection(*id, 1, why, data);
      break;
    case State::kReplySent:
      send_rejection(*id, 2, why, data);
      break;
    default:
      return EINVAL;
  }
  stop_sending(*id);
  id->state = State::kClosed;
  static_cast<void>(now);
  return 0;
}

int Manager::disconnect(IdNumber number, Instant now) {
  Id* const id = get(number);
  if (id == nullptr) return ENOENT;
  if (id->state < State::kRequestSent) return EINVAL;
  if (id->is_datagram()) return 0;
  switch (id->state) {
    case State::kEstablished:
      id->state = State::kDisconnectSent;
      send_until_answered(*id, make_disconnect_request(head_for(*id, Message::kDisconnectRequest), id->peer_qpn), now);
      return 0;
    case State::kDisconnectReceived:
      send(*id, make_plain(head_for(*id, Message::kDisconnectReply)));
      enter_time_wait(*id, now);
      return 0;
    default:  // there is nothing to end, which Linux does not call an error
      return 0;
  }
}

int Manager::note_established(IdNumber number, Instant now) {
  Id* const id = get(number);
  if (id == nullptr) return ENOENT;
  if (id->state == State::kEstablished) return EISCONN;
  if (id->state != State::kReplySent) return EINVAL;
  static_cast<void>(now);
  stop_sending(*id);
  id->state = State::kEstablished;
  report(*id, Event::kEstablished);
  return 0;
}

// --- The end of an id

void Manager::on_peer_lost(std::size_t device, Instant now) {
  for (auto& [number, entry] : ids_) {
    Id& id = *entry;
    const bool own = id.source.address == id.destination.address;
    if (!id.has_device || id.device != device || id.is_datagram() || own) continue;
    switch (id.state) {
      case State::kReplySent:
      case State::kReplyReceived:
      case State::kRequestReceived:
        stop_sending(id);
        id.state = State::kClosed;
        report(id, Event::kRejected, static_cast<int>(Reason::kConsumerDefined));
        break;
      case State::kEstablished:
      case State::kDisconnectSent:
        enter_time_wait(id, now);
        report(id, Event::kDisconnected);
        break;
      case State::kDisconnectReceived:
        enter_time_wait(id, now);
        break;
      default:
        break;
    }
  }
}

// What the peer has to know of an id that goes.
void Manager::say_goodbye(Id& id) {
  constexpr std::uint8_t kServiceRejected = 2;
  switch (id.state) {
    case State::kRequestSent:
      if (!id.is_datagram()) send_rejection(id, 0, Reason::kTimeout);
      return;
    case State::kRequestReceived:
      if (id.is_datagram()) return answer_service(id, kServiceRejected, {});
      return send_rejection(id, 0, Reason::kConsumerDefined);
    case State::kReplyReceived:
      return send_rejection(id, 1, Reason::kConsumerDefined);
    case State::kReplySent:
      return send_rejection(id, 2, Reason::kConsumerDefined);
    case State::kEstablished:
      if (id.is_datagram()) return;
      return send(id, make_disconnect_request(head_for(id, Message::kDisconnectRequest), id.peer_qpn));
    case State::kDisconnectReceived:
      return send(id, make_plain(head_for(id, Message::kDisconnectReply)));
    default:
      return;
  }
}

int Manager::destroy(IdNumber number, Instant now) {
  Id* const id = get(number);
  if (id == nullptr) return ENOENT;
  static_cast<void>(now);
  say_goodbye(*id);
  remove(*id);
  return 0;
}

}  // namespace bypass::cm
