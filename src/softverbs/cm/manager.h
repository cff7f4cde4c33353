// Manager: the connection manager of a process. It has the ids of rdma_cm and their states, and speaks with the
// managers of peers (InfiniBand specification, volume 1, chapter 12; Linux's cma.c and cm.c decide where the
// specification does not).
//
// Pure: it makes no system call, reads no clock and takes no lock. What it needs of devices comes through Surroundings.
// Errors of calls are errno values, and 0 is success, as the kernel's rdma_cm returns them. Whatever comes in a message
// is a peer's word: numbers are looked up, and nothing is kept for a peer but ids that a listener has room for.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "softverbs/cm/mad.h"
#include "stack/address.h"
#include "stack/time.h"

namespace bypass::cm {

using IdNumber = std::uint32_t;

/// Port spaces: rdma_port_space of rdma_cma.h.
inline constexpr std::uint16_t kSpaceIpoib = 0x0002, kSpaceTcp = 0x0106, kSpaceUdp = 0x0111, kSpaceIb = 0x013f;
/// librdmacm's table of ids has so many places.
inline constexpr std::size_t kMostIds = 65'536;

/// The Q_Key of datagrams in RDMA_PS_UDP.
inline constexpr std::uint32_t kDatagramQkey = 0x01234567;

/// rdma_cm_event_type of rdma_cma.h.
enum class Event : std::uint32_t {
  kAddressResolved,
  kAddressError,
  kRouteResolved,
  kRouteError,
  kConnectRequest,
  kConnectResponse,
  kConnectError,
  kUnreachable,
  kRejected,
  kEstablished,
  kDisconnected,
  kDeviceRemoval,
  kMulticastJoin,
  kMulticastError,
  kAddressChange,
  kTimewaitExit,
};

/// What rdma_connect and rdma_accept pass, and what events bring.
struct Parameters {
  std::uint32_t qpn = 0, qkey = 0;
  std::uint8_t responder_resources = 0, initiator_depth = 0, retry_count = 0, rnr_retry_count = 0;
  bool flow_control = false, srq = false;
  std::array<std::byte, 256> data{};
  std::size_t data_bytes = 0;
};

struct Happened {
  Event event{};
  IdNumber id = 0;
  IdNumber listener = 0;  // of a connect request, for which `id` is new
  int status = 0;         // a negative errno, or a rejection's reason
  Parameters parameters;
};

/// A device as connections see it.
struct DeviceInfo {
  std::uint64_t guid = 0;  // network order, as ibv_get_device_guid returns it
  std::vector<IpAddress> gids;
  std::vector<Prefix> addresses;
  IpAddress gateway;     // IPv4; unset: no gateway
  std::uint8_t mtu = 0;  // ibv_mtu
};

enum class Neighbour : std::uint8_t { kKnown, kAsked };

/// What the manager needs of the process. Called while a call of Manager's is running.
class Surroundings {
 public:
  virtual void send(std::size_t device, const IpAddress& from, const IpAddress& to, const Mad& mad) = 0;
  virtual Neighbour resolve(std::size_t device, const IpAddress& address) = 0;
  virtual std::uint32_t random() = 0;
  virtual void happened(const Happened& what) = 0;
  /// False: nobody takes this request (the listener's backlog is used up).
  virtual bool has_room(IdNumber listener) = 0;

 protected:
  ~Surroundings() = default;
};

enum class State : std::uint8_t {
  kIdle,
  kBound,
  kAddressQuery,
  kAddressResolved,
  kRouteResolved,
  kListening,
  kRequestSent,
  kReplyReceived,
  kRequestReceived,
  kReplySent,
  kEstablished,
  kDisconnectSent,
  kDisconnectReceived,
  kTimeWait,
  kClosed,  // refused, failed or over: only good for being destroyed
};

struct Id {
  IdNumber number = 0;
  std::uint32_t local = 0, remote = 0;  // as the connection's messages number it
  std::uint16_t space = 0;
  std::uint8_t qp_type = 0;  // ibv_qp_type
  State state = State::kIdle;
  bool passive = false;
  bool reuse_address = false, v6_only = false;
  bool prolonged = false;      // the peer has said MRA
  bool bound_address = false;  // the program chose the source, not the route
  bool has_device = false, has_route = false;
  std::size_t device = 0;
  Endpoint source, destination;
  std::uint64_t transaction = 0;
  std::uint64_t service = 0;
  std::uint32_t own_psn = 0, peer_psn = 0;  // from where the peer counts, and from where we do
  std::uint32_t qpn = 0, peer_qpn = 0;
  std::uint32_t qkey = 0;
  std::uint8_t responder_resources = 0, initiator_depth = 0, retry_count = 0, rnr_retry_count = 0;
  std::uint8_t mtu = 0, ack_timeout = 0;
  std::uint8_t type_of_service = 0;
  // What is sent again until it is answered.
  Mad sent{};
  unsigned sends_left = 0;
  Duration interval{};
  Instant due = kNever, deadline = kNever;

  [[nodiscard]] bool is_datagram() const { return space == kSpaceUdp || space == kSpaceIpoib; }
};

class Manager {
 public:
  explicit Manager(Surroundings& surroundings);

  /// Devices keep their index.
  void set_device(std::size_t index, const DeviceInfo& info);

  // --- What rdma_cm's calls do. ENOENT: no such id.

  /// EPROTONOSUPPORT: an unknown port space. ENOMEM: there are 65,536 ids.
  int create(std::uint16_t space, std::uint8_t qp_type, IdNumber& number);
  int destroy(IdNumber number, Instant now);
  /// EADDRNOTAVAIL: no device has the address. EADDRINUSE: another id has the port.
  int bind(IdNumber number, const Endpoint& source);
  int resolve_address(IdNumber number, const Endpoint* source, const Endpoint& destination, Duration patience,
                      Instant now);
  int resolve_route(IdNumber number);
  int listen(IdNumber number);
  int connect(IdNumber number, const Parameters& parameters, Instant now);
  /// Null: the program's own queue pair is ready for what the reply said (rdma_establish).
  int accept(IdNumber number, const Parameters* parameters, Instant now);
  int reject(IdNumber number, std::span<const std::byte> data, std::uint16_t reason, Instant now);
  int disconnect(IdNumber number, Instant now);
  /// The queue pair has had a packet before the peer's RTU came (IBV_EVENT_COMM_EST).
  int note_established(IdNumber number, Instant now);
  int set_reuse_address(IdNumber number, bool on);
  int set_v6_only(IdNumber number, bool on);
  int set_ack_timeout(IdNumber number, std::uint8_t timeout);
  int set_type_of_service(IdNumber number, std::uint8_t value);

  /// The other end of a wire in memory has ended without a word, and its connections with it. (A kernel says goodbye
  /// for a process that it kills.)
  void on_peer_lost(std::size_t device, Instant now);

  /// Null: no such id.
  [[nodiscard]] const Id* find(IdNumber number) const;
  [[nodiscard]] const DeviceInfo& device(std::size_t index) const { return devices_[index]; }
  [[nodiscard]] std::size_t count() const { return ids_.size(); }

  // --- The wire and the time

  void on_mad(std::size_t device, const IpAddress& from, const IpAddress& to, const Mad& mad, Instant now);
  void run(Instant now);
  [[nodiscard]] Instant next_timeout() const;

 private:
  struct Arrival {
    std::size_t device;
    IpAddress from, to;
    MadHead head;
    Instant now;
  };

  Id* get(IdNumber number);
  Id& add(std::uint16_t space, std::uint8_t qp_type);
  void remove(Id& id);
  void schedule(Id& id, Instant due);
  void report(const Id& id, Event event, int status = 0, const Parameters& parameters = {});

  // Addresses and ports (addresses.cc)
  int choose_device(Id& id, const IpAddress& destination);
  bool bind_device(Id& id, const IpAddress& address);
  int take_port(Id& id, std::uint16_t port);
  bool conflicts(const Id& id, std::uint16_t port) const;
  void look_for_neighbour(Id& id, Instant now);
  Id* find_listener(std::size_t device, std::uint64_t service, const IpAddress& to);

  // Messages out (connections.cc)
  MadHead head_for(Id& id, Message message);
  void send(const Id& id, const Mad& mad);
  void send_until_answered(Id& id, const Mad& mad, Instant now);
  void stop_sending(Id& id);
  void give_up(Id& id, Instant now);
  void enter_time_wait(Id& id, Instant now);
  void send_rejection(Id& id, std::uint8_t of, Reason reason, std::span<const std::byte> data = {});
  void refuse(const Arrival& arrival, std::uint8_t of, Reason reason);
  int request_service(Id& id, const Parameters& parameters, Instant now);
  void answer_service(Id& id, std::uint8_t status, const Parameters& parameters);
  void say_goodbye(Id& id);

  // Messages in (messages.cc, services.cc)
  Id* find_peer(const Arrival& arrival);
  Id* find_passive(const Arrival& arrival);
  [[nodiscard]] bool has_room_for(const Id& listener) const;
  Id& add_passive(const Id& listener, const Arrival& arrival, const IpHeader& header);
  void forget_predecessor(const Arrival& arrival, std::uint32_t qpn);
  void on_request(const Arrival& arrival, const Mad& mad);
  void on_repeated_request(Id& id);
  void on_reply(const Arrival& arrival, const Mad& mad);
  void on_repeated_reply(Id& id);
  void on_ready(const Arrival& arrival);
  void on_rejection(const Arrival& arrival, const Mad& mad);
  void on_prolongation(const Arrival& arrival, const Mad& mad);
  void on_disconnect_request(const Arrival& arrival, const Mad& mad);
  void on_disconnect_reply(const Arrival& arrival);
  void on_service_request(const Arrival& arrival, const Mad& mad);
  void on_service_reply(const Arrival& arrival, const Mad& mad);

  Surroundings& surroundings_;
  std::vector<DeviceInfo> devices_;
  std::map<IdNumber, std::unique_ptr<Id>> ids_;
  std::map<std::pair<IpAddress, std::uint32_t>, IdNumber> passive_;  // by the peer's address and its number
  std::set<std::pair<Instant, IdNumber>> timers_;
  std::uint32_t mask_;  // what numbers on the wire are mixed with, so that a process's do not meet its predecessor's
  std::uint32_t generation_ = 0;
  IdNumber next_ = 0;
};

}  // namespace bypass::cm
