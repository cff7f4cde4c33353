// Datagrams (RDMA_PS_UDP): a service tells its queue pair's number (SIDR, 12.11).
#include <algorithm>
#include <cerrno>

#include "softverbs/cm/manager.h"

namespace bypass::cm {
namespace {

constexpr std::uint8_t kUnsupported = 1;

template <std::size_t kBytes>
void copy_data(Parameters& to, const std::array<std::byte, kBytes>& from, std::size_t offset) {
  to.data_bytes = kBytes - offset;
  std::copy(from.begin() + static_cast<std::ptrdiff_t>(offset), from.end(), to.data.begin());
}

}  // namespace

int Manager::request_service(Id& id, const Parameters& parameters, Instant now) {
  if (parameters.data_bytes > kServiceRequestData - kIpHeaderBytes) return EINVAL;
  ServiceRequest request;
  request.service = id.service;
  write_ip_header(request.data, {id.source.address, id.destination.address, id.source.port});
  std::copy_n(parameters.data.begin(), parameters.data_bytes, request.data.begin() + kIpHeaderBytes);
  id.state = State::kRequestSent;
  send_until_answered(id, make_service_request(head_for(id, Message::kServiceRequest), request), now);
  return 0;
}

void Manager::on_service_request(const Arrival& arrival, const Mad& mad) {
  if (Id* const known = find_passive(arrival); known != nullptr) {
    if (known->is_datagram() && known->state != State::kRequestReceived) send(*known, known->sent);
    return;
  }
  const ServiceRequest request = read_service_request(mad);
  const auto header = read_ip_header(request.data);
  Id* const listener = find_listener(arrival.device, request.service, arrival.to);
  if (!header || listener == nullptr || !listener->is_datagram() || header->source != arrival.from) {
    ServiceReply reply;
    reply.status = kUnsupported;
    reply.service = request.service;
    const MadHead head{arrival.head.transaction, Message::kServiceReply, arrival.head.local, 0};
    return surroundings_.send(arrival.device, arrival.to, arrival.from, make_service_reply(head, reply));
  }
  if (!has_room_for(*listener)) return;
  const IdNumber listens = listener->number;
  Id& id = add_passive(*listener, arrival, *header);
  Happened happened{Event::kConnectRequest, id.number, listens, 0, {}};
  copy_data(happened.parameters, request.data, kIpHeaderBytes);
  surroundings_.happened(happened);
}

// If the answer is lost, the peer's request comes again, and gets it again.
void Manager::answer_service(Id& id, std::uint8_t status, const Parameters& parameters) {
  ServiceReply reply;
  reply.status = status;
  reply.service = id.service;
  if (status == 0) {
    reply.qpn = id.qpn;
    reply.qkey = id.qkey;
  }
  std::copy_n(parameters.data.begin(), parameters.data_bytes, reply.data.begin());
  MadHead head = head_for(id, Message::kServiceReply);
  head.local = id.remote;
  id.sent = make_service_reply(head, reply);
  send(id, id.sent);
  id.state = status == 0 ? State::kEstablished : State::kClosed;
}

void Manager::on_service_reply(const Arrival& arrival, const Mad& mad) {
  Arrival ours = arrival;
  ours.head.remote = arrival.head.local;  // the request's number is ours
  Id* const id = find_peer(ours);
  if (id == nullptr || id->passive || !id->is_datagram() || id->state != State::kRequestSent) return;
  const ServiceReply reply = read_service_reply(mad);
  if (reply.service != id->service) return;
  stop_sending(*id);
  Parameters told;
  copy_data(told, reply.data, 0);
  if (reply.status != 0) {
    id->state = State::kClosed;
    return report(*id, Event::kUnreachable, reply.status, told);
  }
  id->state = State::kEstablished;
  id->peer_qpn = told.qpn = reply.qpn;
  id->qkey = told.qkey = reply.qkey;
  report(*id, Event::kEstablished, 0, told);
}

}  // namespace bypass::cm
