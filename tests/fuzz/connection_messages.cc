// Messages of connection managers for one that listens and has connections: any fields, with numbers that are right now
// and then.
#include <algorithm>
#include <optional>

#include "fuzz/check.h"
#include "softverbs/cm/manager.h"

namespace {

using namespace bypass;
using namespace bypass::cm;

const IpAddress kOwn = IpAddress::from_v4(0x0a090001), kPeer = IpAddress::from_v4(0x0a090002);
constexpr std::uint32_t kOwnIds = 4, kMostRequests = 8;

/// A program that accepts, refuses or leaves alone, as the input says.
struct Program final : Surroundings {
  void send(std::size_t /*device*/, const IpAddress& /*from*/, const IpAddress& /*to*/, const Mad& mad) override {
    // Everything that is sent can be read.
    fuzz::expect(read_head(mad).has_value(), "a message of ours cannot be read");
    last = mad;
  }
  Neighbour resolve(std::size_t /*device*/, const IpAddress& /*address*/) override { return Neighbour::kKnown; }
  std::uint32_t random() override { return 0; }
  void happened(const Happened& what) override {
    fuzz::expect(what.parameters.data_bytes <= what.parameters.data.size(), "an event has more data than room");
    if (what.event == Event::kConnectRequest) requested = what.id;
    if (what.event == Event::kConnectRequest) requests++;
  }
  bool has_room(IdNumber /*listener*/) override { return requests < kMostRequests; }

  Mad last{};
  std::optional<IdNumber> requested;
  std::uint32_t requests = 0;
};

/// Whatever the manager reads of private data, it is the input's.
template <std::size_t kBytes>
void fill(std::array<std::byte, kBytes>& data, fuzz::Input& input, std::size_t offset = 0) {
  const auto value = static_cast<std::byte>(input.byte());
  std::fill(data.begin() + static_cast<std::ptrdiff_t>(offset), data.end(), value);
}

/// A message of that kind, with fields that are right or nearly so. `about`: the id that it is about.
Mad make(const MadHead& head, const Id& about, fuzz::Input& input) {
  switch (head.message) {
    case Message::kRequest: {
      Request request;
      request.service = service_of(kSpaceTcp, 7);
      request.mtu = 3;
      request.qpn = input.byte();
      request.local_gid = kPeer;
      request.remote_gid = kOwn;
      write_ip_header(request.data, {kPeer, kOwn, 99});
      return make_request(head, request);
    }
    case Message::kReply: {
      Reply reply;
      reply.qpn = input.byte();
      fill(reply.data, input);
      return make_reply(head, reply);
    }
    case Message::kReject: {
      Rejection rejection;
      rejection.of = input.byte() & 3;
      rejection.reason = input.byte();
      fill(rejection.data, input);
      return make_rejection(head, rejection);
    }
    case Message::kProlong:
      return make_prolongation(head, 0, input.byte() & 31);
    case Message::kDisconnectRequest:
      return make_disconnect_request(head, about.qpn + (input.byte() & 1));
    case Message::kServiceRequest: {
      ServiceRequest request;
      request.service = service_of(kSpaceUdp, 7);
      fill(request.data, input, kIpHeaderBytes);
      write_ip_header(request.data, {kPeer, kOwn, 99});
      return make_service_request(head, request);
    }
    case Message::kServiceReply: {
      ServiceReply reply;
      reply.status = input.byte() & 3;
      reply.service = service_of(kSpaceUdp, 7);
      fill(reply.data, input);
      return make_service_reply(head, reply);
    }
    default:  // RTU, DREP, and numbers that no message has, or one that is not served (LAP, APR)
      return make_plain(head);
  }
}

void put(Mad& mad, std::size_t offset, std::uint32_t value) {
  for (std::size_t i = 0; i < 4; i++) mad[offset + i] = static_cast<std::byte>(value >> (24 - 8 * i));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Program program;
  Manager manager(program);
  DeviceInfo info;
  info.gids = {kOwn};
  info.addresses = {{kOwn, 24}};
  info.mtu = 3;
  manager.set_device(0, info);
  Instant now{};
  IdNumber listener = 0, service = 0, client = 0, asker = 0;
  manager.create(kSpaceTcp, 2, listener);
  manager.bind(listener, {IpAddress::from_v4(0), 7});
  manager.listen(listener);
  manager.create(kSpaceUdp, 4, service);
  manager.bind(service, {IpAddress::from_v4(0), 7});
  manager.listen(service);
  manager.create(kSpaceTcp, 2, client);
  manager.create(kSpaceUdp, 4, asker);
  Parameters parameters;
  parameters.qpn = 17;
  for (const IdNumber id : {client, asker}) {
    manager.resolve_address(id, nullptr, {kPeer, 7}, std::chrono::seconds(1), now);
    manager.run(now);
    manager.resolve_route(id);
    manager.connect(id, parameters, now);
  }

  fuzz::Input input(data, size);
  for (int messages = 0; !input.empty() && messages < 64; messages++) {
    const std::uint8_t how = input.byte();
    Mad mad{};
    MadHead head{1, static_cast<Message>(0x10 + (how & 15)), input.byte(), manager.find(client)->local};
    const IdNumber about = program.requested.value_or(client);
    if (const Id* const id = manager.find(about); id != nullptr && (how & 0x10) != 0) head.remote = id->local;
    if (head.message == Message::kServiceReply) head.local = manager.find(asker)->local;
    const Id* const meant = manager.find(about);
    mad = make(head, meant != nullptr ? *meant : *manager.find(client), input);
    for (int n = how >> 5; n > 0; n--) {
      const std::uint8_t at = input.byte();
      mad[at] = static_cast<std::byte>(input.byte());
    }
    if ((how & 0x30) == 0x30) put(mad, 24 + 4, head.remote);
    manager.on_mad(0, kPeer, kOwn, mad, now);
    if (program.requested && (how & 0x40) != 0) {
      if ((how & 0x80) != 0)
        manager.accept(*program.requested, &parameters, now);
      else
        manager.reject(*program.requested, {}, 0, now);
    }
    if ((how & 0x20) != 0) manager.accept(client, nullptr, now);
    if ((how & 0x88) == 0x88) manager.disconnect(about, now);
    now += std::chrono::milliseconds(input.byte()) * 16;
    manager.run(now);
    fuzz::expect(manager.count() <= kOwnIds + kMostRequests, "a peer has made more ids than the backlog allows");
  }
  for (IdNumber id = 0; id < kOwnIds + kMostRequests; id++) manager.destroy(id, now);
  fuzz::expect(manager.count() == 0 && manager.next_timeout() == kNever, "an id or a timer is left");
  return 0;
}
