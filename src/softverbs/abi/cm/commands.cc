#include "softverbs/abi/cm/commands.h"

#include <netinet/in.h>
#include <rdma/rdma_user_cm.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "os/log/log.h"
#include "os/own/cancellation.h"
#include "softverbs/abi/cm/channel_table.h"
#include "softverbs/abi/cm/conversions.h"

namespace bypass::softverbs {
namespace {

constexpr std::size_t kLargestCommand = 1'024;

/// The kernel's default of net.rdma_ucm.max_backlog.
constexpr std::uint32_t kMostBacklog = 1'024;

/// A command's structure. What the program's version of it does not have is zero.
template <typename T>
T take(std::span<const std::byte> in) {
  T command{};
  std::memcpy(static_cast<void*>(&command), in.data(), std::min(in.size(), sizeof command));
  return command;
}

void say_that_groups_are_missing() {
  static const bool said = [] {
    BYPASS_LOG_WARN(
        "rdma_join_multicast: software RDMA devices have no subnet manager or IGMP that would join a group; "
        "ibv_attach_mcast receives what is sent to a group's address");
    return true;
  }();
  (void)said;
}

}  // namespace

// --- One command

long Commands::run(const void* data, std::size_t bytes) {
  rdma_ucm_cmd_hdr header;
  if (bytes < sizeof header) return -EINVAL;
  std::unique_lock lock(service_.mutex_);
  const auto at = service_.channels_.find(fd_);
  // Closed by another thread meanwhile, or the parent's in a forked child.
  if (at == service_.channels_.end()) return ChannelTable::has(fd_) ? -EIO : -EBADF;
  channel_ = at->second;
  std::array<std::byte, sizeof header + kLargestCommand> copy;
  const std::size_t length = std::min(bytes, copy.size());
  if (!service_.memory_.copy(copy.data(), data, length)) return -EFAULT;
  std::memcpy(&header, copy.data(), sizeof header);
  if (header.in + sizeof header > bytes) return -EINVAL;
  const std::span<const std::byte> in(copy.data() + sizeof header, std::min<std::size_t>(header.in, kLargestCommand));
  const long error = dispatch(header.cmd, in, header.out, lock);
  return error != 0 ? error : static_cast<long>(bytes);
}

// Writes an answer to the program's memory: as much as it has room for.
template <typename T>
long Commands::answer(std::uint64_t to, std::size_t room, const T& response) {
  auto* const at = reinterpret_cast<void*>(static_cast<std::uintptr_t>(to));
  return service_.memory_.copy(at, &response, std::min(room, sizeof response)) ? 0 : -EFAULT;
}

long Commands::dispatch(std::uint32_t command, std::span<const std::byte> in, std::size_t out,
                        std::unique_lock<std::mutex>& lock) {
  if (command == RDMA_USER_CM_CMD_GET_EVENT) {
    lock.unlock();
    return get_event(in, out);
  }
  const socket::CancellationOff uncancelled;
  const long result = [&]() -> long {
    switch (command) {
      case RDMA_USER_CM_CMD_CREATE_ID:
        return create_id(in, out);
      case RDMA_USER_CM_CMD_DESTROY_ID:
        return destroy_id(in, out);
      case RDMA_USER_CM_CMD_BIND_IP:
        return bind_ip(in);
      case RDMA_USER_CM_CMD_RESOLVE_IP:
        return resolve_ip(in);
      case RDMA_USER_CM_CMD_RESOLVE_ROUTE:
        return resolve_route(in);
      case RDMA_USER_CM_CMD_QUERY_ROUTE:
        return query_route(in, out);
      case RDMA_USER_CM_CMD_CONNECT:
        return connect(in);
      case RDMA_USER_CM_CMD_LISTEN:
        return listen(in);
      case RDMA_USER_CM_CMD_ACCEPT:
        return accept(in);
      case RDMA_USER_CM_CMD_REJECT:
        return reject(in);
      case RDMA_USER_CM_CMD_DISCONNECT:
        return disconnect(in);
      case RDMA_USER_CM_CMD_INIT_QP_ATTR:
        return init_qp_attr(in, out);
      case RDMA_USER_CM_CMD_SET_OPTION:
        return set_option(in);
      case RDMA_USER_CM_CMD_NOTIFY:
        return notify(in);
      case RDMA_USER_CM_CMD_MIGRATE_ID:
        return migrate_id(in, out);
      case RDMA_USER_CM_CMD_JOIN_IP_MCAST:
      case RDMA_USER_CM_CMD_JOIN_MCAST:
      case RDMA_USER_CM_CMD_LEAVE_MCAST:
        say_that_groups_are_missing();
        return -ENOSYS;
      case RDMA_USER_CM_CMD_BIND:
        return -EAFNOSUPPORT;  // AF_IB: librdmacm then uses the commands for IP
      case RDMA_USER_CM_CMD_QUERY:
      case RDMA_USER_CM_CMD_RESOLVE_ADDR:
      case RDMA_USER_CM_CMD_GET_OPTION:
        return -ENOSYS;
      default:
        return -EINVAL;
    }
  }();
  service_.settle();
  return result;
}

// Null: the id is unknown (ENOENT), or another channel's (EINVAL).
Service::Owner* Commands::find(cm::IdNumber number, long& error) {
  const auto at = service_.owners_.find(number);
  error = at == service_.owners_.end() ? -ENOENT : -EINVAL;
  return at != service_.owners_.end() && at->second.channel == channel_ ? &at->second : nullptr;
}

// --- Ids

long Commands::create_id(std::span<const std::byte> in, std::size_t out) {
  const auto command = take<rdma_ucm_create_id>(in);
  rdma_ucm_create_id_resp response{};
  if (out < sizeof response) return -ENOSPC;
  cm::IdNumber number = 0;
  if (const int error = service_.manager_.create(command.ps, command.qp_type, number)) return -error;
  Service::Owner& owner = service_.owners_[number];
  owner.channel = channel_;
  owner.uid = command.uid;
  response.id = number;
  const long error = answer(command.response, out, response);
  if (error != 0) service_.destroy(number);
  return error;
}

long Commands::destroy_id(std::span<const std::byte> in, std::size_t out) {
  const auto command = take<rdma_ucm_destroy_id>(in);
  rdma_ucm_destroy_id_resp response{};
  if (out < sizeof response) return -ENOSPC;
  long error = 0;
  if (find(command.id, error) == nullptr) return error;
  response.events_reported = service_.destroy(command.id);
  return answer(command.response, out, response);
}

long Commands::migrate_id(std::span<const std::byte> in, std::size_t out) {
  const auto command = take<rdma_ucm_migrate_id>(in);
  const auto from = service_.channels_.find(static_cast<int>(command.fd));
  if (from == service_.channels_.end()) return -EINVAL;
  const auto at = service_.owners_.find(command.id);
  if (at == service_.owners_.end()) return -ENOENT;
  Service::Owner& owner = at->second;
  if (owner.channel != from->second) return -EINVAL;
  for (const Channel::Entry& entry : owner.channel->take_events_of(command.id)) {
    if (entry.what.event == cm::Event::kConnectRequest) service_.owners_[entry.what.id].channel = channel_;
    channel_->push(entry);
  }
  owner.channel = channel_;
  return answer(command.response, out, rdma_ucm_migrate_resp{owner.events_reported});
}

long Commands::set_option(std::span<const std::byte> in) {
  const auto command = take<rdma_ucm_set_option>(in);
  long error = 0;
  if (find(command.id, error) == nullptr) return error;
  if (command.level != RDMA_OPTION_ID) return -ENOSYS;
  const auto* const at = reinterpret_cast<const void*>(static_cast<std::uintptr_t>(command.optval));
  std::int32_t value = 0;
  const bool byte = command.optname == RDMA_OPTION_ID_TOS || command.optname == RDMA_OPTION_ID_ACK_TIMEOUT;
  const std::size_t bytes = byte ? 1 : sizeof value;
  if (command.optlen != bytes) return -EINVAL;
  if (!service_.memory_.copy(&value, at, bytes)) return -EFAULT;
  switch (command.optname) {
    case RDMA_OPTION_ID_TOS:
      return -service_.manager_.set_type_of_service(command.id, static_cast<std::uint8_t>(value));
    case RDMA_OPTION_ID_REUSEADDR:
      return -service_.manager_.set_reuse_address(command.id, value != 0);
    case RDMA_OPTION_ID_AFONLY:
      return -service_.manager_.set_v6_only(command.id, value != 0);
    case RDMA_OPTION_ID_ACK_TIMEOUT:
      return -service_.manager_.set_ack_timeout(command.id, static_cast<std::uint8_t>(value));
    default:
      return -ENOSYS;
  }
}

// --- Addresses

long Commands::bind_ip(std::span<const std::byte> in) {
  const auto command = take<rdma_ucm_bind_ip>(in);
  long error = 0;
  if (find(command.id, error) == nullptr) return error;
  Endpoint source;
  if (!read_address(command.addr, source)) return -EINVAL;
  service_.open_devices();
  return -service_.manager_.bind(command.id, source);
}

long Commands::resolve_ip(std::span<const std::byte> in) {
  const auto command = take<rdma_ucm_resolve_ip>(in);
  long error = 0;
  if (find(command.id, error) == nullptr) return error;
  Endpoint source, destination;
  const bool bound = command.src_addr.sin6_family != AF_UNSPEC;
  if (!read_address(command.dst_addr, destination) || (bound && !read_address(command.src_addr, source)))
    return -EINVAL;
  service_.open_devices();
  return -service_.manager_.resolve_address(command.id, bound ? &source : nullptr, destination,
                                            std::chrono::milliseconds(command.timeout_ms), Service::now());
}

long Commands::resolve_route(std::span<const std::byte> in) {
  const auto command = take<rdma_ucm_resolve_route>(in);
  long error = 0;
  return find(command.id, error) == nullptr ? error : -service_.manager_.resolve_route(command.id);
}

long Commands::query_route(std::span<const std::byte> in, std::size_t out) {
  const auto command = take<rdma_ucm_query>(in);
  long error = 0;
  if (find(command.id, error) == nullptr) return error;
  const cm::Id& id = *service_.manager_.find(command.id);
  return answer(command.response, out,
                describe_route(id, id.has_device ? &service_.manager_.device(id.device) : nullptr));
}

// --- Connections

long Commands::connect(std::span<const std::byte> in) {
  const auto command = take<rdma_ucm_connect>(in);
  long error = 0;
  if (find(command.id, error) == nullptr) return error;
  if (command.conn_param.valid == 0) return -EINVAL;
  return -service_.manager_.connect(command.id, read_parameters(command.conn_param), Service::now());
}

long Commands::listen(std::span<const std::byte> in) {
  const auto command = take<rdma_ucm_listen>(in);
  long error = 0;
  Service::Owner* const owner = find(command.id, error);
  if (owner == nullptr) return error;
  service_.open_devices();
  // A negative backlog is a large one here, as in the kernel.
  owner->backlog = command.backlog == 0 || command.backlog > kMostBacklog ? kMostBacklog : command.backlog;
  const int refused = service_.manager_.listen(command.id);
  if (refused == 0)
    BYPASS_LOG_DEBUG("rdma_cm: id %u listens at port %u", command.id, service_.manager_.find(command.id)->source.port);
  return -refused;
}

long Commands::accept(std::span<const std::byte> in) {
  const auto command = take<rdma_ucm_accept>(in);
  long error = 0;
  Service::Owner* const owner = find(command.id, error);
  if (owner == nullptr) return error;
  if (command.conn_param.valid == 0) return -service_.manager_.accept(command.id, nullptr, Service::now());
  const cm::Parameters parameters = read_parameters(command.conn_param);
  error = -service_.manager_.accept(command.id, &parameters, Service::now());
  if (error == 0) owner->uid = command.uid;
  return error;
}

long Commands::reject(std::span<const std::byte> in) {
  const auto command = take<rdma_ucm_reject>(in);
  long error = 0;
  if (find(command.id, error) == nullptr) return error;
  const auto* const data = reinterpret_cast<const std::byte*>(command.private_data);
  return -service_.manager_.reject(command.id, {data, command.private_data_len}, command.reason, Service::now());
}

long Commands::disconnect(std::span<const std::byte> in) {
  const auto command = take<rdma_ucm_disconnect>(in);
  long error = 0;
  return find(command.id, error) == nullptr ? error : -service_.manager_.disconnect(command.id, Service::now());
}

long Commands::notify(std::span<const std::byte> in) {
  constexpr std::uint32_t kCommunicationEstablished = 4;  // IBV_EVENT_COMM_EST
  const auto command = take<rdma_ucm_notify>(in);
  long error = 0;
  if (find(command.id, error) == nullptr) return error;
  if (command.event != kCommunicationEstablished) return -EINVAL;
  return -service_.manager_.note_established(command.id, Service::now());
}

long Commands::init_qp_attr(std::span<const std::byte> in, std::size_t out) {
  const auto command = take<rdma_ucm_init_qp_attr>(in);
  long error = 0;
  if (find(command.id, error) == nullptr) return error;
  const cm::Id& id = *service_.manager_.find(command.id);
  if (!id.has_device) return -EINVAL;
  ib_uverbs_qp_attr attr{};
  if (!describe_queue_pair(id, service_.manager_.device(id.device), command.qp_state, attr)) return -EINVAL;
  return answer(command.response, out, attr);
}

// --- Events

long Commands::get_event(std::span<const std::byte> in, std::size_t out) {
  const auto command = take<rdma_ucm_get_event>(in);
  rdma_ucm_event_resp response{};
  if (out < sizeof response - sizeof response.reserved - sizeof response.ece) return -ENOSPC;
  for (;;) {
    {
      const std::lock_guard lock(service_.mutex_);
      Channel::Entry entry;
      if (channel_->pop(entry)) {
        const cm::Id* const id = service_.manager_.find(entry.what.id);
        response = describe_event(entry.what, entry.uid, id,
                                  id != nullptr && id->has_device ? &service_.manager_.device(id->device) : nullptr);
        const auto owner = service_.owners_.find(entry.owner);
        if (owner != service_.owners_.end()) {
          owner->second.events_reported++;
          if (entry.what.event == cm::Event::kConnectRequest) owner->second.backlog++;
        }
        return answer(command.response, out, response);
      }
      if (!channel_->begin_wait()) return -EAGAIN;
    }
    if (!channel_->wait_for_event()) {
      const int error = errno;
      const std::lock_guard lock(service_.mutex_);
      channel_->abandon_wait();
      return -error;
    }
  }
}

}  // namespace bypass::softverbs
