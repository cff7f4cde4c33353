#include "backends/verbs/device.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "backends/packet/libc.h"

namespace bypass::verbs {
namespace {

using packet::Descriptor;
using packet::host;
using packet::libc;

constexpr std::uint32_t kInlineBytes = 64;  // a bare ACK

bool say(std::string& problem, const std::string& what, int error) {
  problem = what + ": " + strerrordesc_np(error);
  return false;
}

// RFC 4291 §A: the interface's half of a link-local address.
MacAddress mac_of(const ibv_gid& link_local) {
  const std::uint8_t* const id = link_local.raw + 8;
  MacAddress mac;
  mac.bytes = {static_cast<std::uint8_t>(id[0] ^ 2), id[1], id[2], id[5], id[6], id[7]};
  return mac;
}

bool set_nonblocking(int fd) {
  const int flags = libc.fcntl(fd, F_GETFL);
  return flags >= 0 && libc.fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0;
}

}  // namespace

// --- Opening

bool Device::open(const std::string& target, std::string& problem) {
  name_ = target.substr(0, target.find(':'));
  if (const auto colon = target.find(':'); colon != std::string::npos) {
    const char* const end = target.data() + target.size();
    const auto read = std::from_chars(target.data() + colon + 1, end, number_);
    if (read.ec != std::errc{} || read.ptr != end || number_ == 0) {
      problem = "'" + target.substr(colon + 1) + "' is no port of a device; accepted is a number from 1 on";
      return false;
    }
  }
  verbs_ = verbs_for(name_, problem);
  return verbs_ != nullptr && find(name_, problem) && look(problem);
}

bool Device::find(const std::string& name, std::string& problem) {
  int count = 0;
  ibv_device** const devices = verbs_->get_device_list(&count);
  std::string known;
  int error = 0;
  for (int i = 0; devices != nullptr && i < count; i++) {
    const std::string each = verbs_->get_device_name(devices[i]);
    known += (known.empty() ? "" : ", ") + each;
    if (each != name) continue;
    context_ = verbs_->open_device(devices[i]);
    error = errno;
  }
  if (devices != nullptr) verbs_->free_device_list(devices);
  if (context_ != nullptr) return true;
  if (error != 0) return say(problem, "the device cannot be opened", error);
  problem = "no RDMA device of that name; there " + (known.empty() ? "is none" : "are: " + known);
  if (is_soft(name)) problem += "; a software device is made by BYPASS_SOFT=WIRE";
  return false;
}

bool Device::look(std::string& problem) {
  ibv_device_attr_ex device{};
  const verbs_context* const extended = verbs_get_ctx_op(context_, query_device_ex);
  if (extended != nullptr && extended->query_device_ex(context_, nullptr, &device, sizeof device) == 0) {
    checksums_ = (device.raw_packet_caps & IBV_RAW_PACKET_CAP_IP_CSUM) != 0;
    const bool cuts = checksums_ && (device.tso_caps.supported_qpts & (1U << IBV_QPT_RAW_PACKET)) != 0;
    if (cuts && device.orig_attr.max_sge >= static_cast<int>(kMostSegments)) tso_bytes_ = device.tso_caps.max_tso;
  } else if (const int error = verbs_->query_device(context_, &device.orig_attr); error != 0) {
    return say(problem, "the device does not answer", error);
  }
  if (number_ > device.orig_attr.phys_port_cnt) {
    problem = "the device has " + std::to_string(device.orig_attr.phys_port_cnt) + " ports";
    return false;
  }
  depth_ = static_cast<std::uint32_t>(std::min(device.orig_attr.max_qp_wr, device.orig_attr.max_cqe));
  ibv_port_attr port;
  if (const int error = verbs_->look_at_port(context_, number_, port); error != 0)
    return say(problem, "the device's port does not answer", error);
  if (port.link_layer != IBV_LINK_LAYER_ETHERNET) {
    problem = "the port's link layer is not Ethernet (see: ibv_devinfo): it carries no frames";
    return false;
  }
  ibv_gid gid{};
  if (verbs_->query_gid(context_, number_, 0, &gid) != 0) return say(problem, "the port has no address", errno);
  mac_ = mac_of(gid);
  return true;
}

bool Device::has_interface() const {
  const std::string path = "/sys/class/infiniband/" + name_ + "/device/net";
  const Descriptor folder(libc.open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return folder.is_open();
}

// --- Queues

bool Device::make_queues(std::span<std::byte> memory, std::uint32_t depth, std::string& problem) {
  depth_ = std::min(depth_, depth);
  domain_ = verbs_->alloc_pd(context_);
  if (domain_ == nullptr) return say(problem, "no protection domain", errno);
  memory_ = verbs_->reg_mr(domain_, memory.data(), memory.size(), IBV_ACCESS_LOCAL_WRITE);
  if (memory_ == nullptr) {
    say(problem, std::to_string(memory.size() >> 20) + " MiB of frames cannot be registered", errno);
    if (errno == ENOMEM || errno == EAGAIN || errno == EPERM)
      problem += "; raise the limit of locked memory (ulimit -l unlimited) or ask for less (BYPASS_PORT_MEMORY)";
    return false;
  }
  channel_ = verbs_->create_comp_channel(context_);
  if (channel_ == nullptr || !set_nonblocking(channel_->fd)) return say(problem, "no completion channel", errno);
  received_ = verbs_->create_cq(context_, static_cast<int>(depth_), nullptr, channel_, 0);
  sent_ = verbs_->create_cq(context_, static_cast<int>(depth_), nullptr, nullptr, 0);
  if (received_ == nullptr || sent_ == nullptr) return say(problem, "no completion queue", errno);
  return make_queue_pair(problem) && enter_service(problem);
}

bool Device::make_queue_pair(std::string& problem) {
  ibv_qp_init_attr_ex wanted{};
  wanted.send_cq = sent_;
  wanted.recv_cq = received_;
  wanted.qp_type = IBV_QPT_RAW_PACKET;
  wanted.cap = {depth_, depth_, tso_bytes_ != 0 ? kMostSegments : 1, 1, kInlineBytes};
  wanted.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_MAX_TSO_HEADER;
  wanted.pd = domain_;
  wanted.max_tso_header = kTsoHeaders;
  const verbs_context* const extended = verbs_get_ctx_op(context_, create_qp_ex);
  if (tso_bytes_ != 0 && extended != nullptr) {
    queue_ = extended->create_qp_ex(context_, &wanted);
  } else {  // the older call's attributes are the newer one's first ones
    tso_bytes_ = 0;
    queue_ = verbs_->create_qp(domain_, reinterpret_cast<ibv_qp_init_attr*>(&wanted));
  }
  if (queue_ == nullptr && (errno == EINVAL || errno == EOPNOTSUPP || errno == ENOSYS)) {
    problem = "the device has no raw-packet queue pairs";
    return false;
  }
  if (queue_ == nullptr) {
    say(problem, "no raw-packet queue pair", errno);
    if (errno == EPERM) problem += "; it needs CAP_NET_RAW";
    return false;
  }
  inline_bytes_ = wanted.cap.max_inline_data;
  return true;
}

bool Device::enter_service(std::string& problem) {
  ibv_qp_attr to{};
  to.qp_state = IBV_QPS_INIT;
  to.port_num = number_;
  int error = verbs_->modify_qp(queue_, &to, IBV_QP_STATE | IBV_QP_PORT);
  for (const ibv_qp_state next : {IBV_QPS_RTR, IBV_QPS_RTS}) {
    to.qp_state = next;
    if (error == 0) error = verbs_->modify_qp(queue_, &to, IBV_QP_STATE);
  }
  return error == 0 || say(problem, "the queue pair does not start", error);
}

bool Device::restart() {
  ibv_qp_attr to{};
  to.qp_state = IBV_QPS_RESET;
  std::string problem;
  const int error = verbs_->modify_qp(queue_, &to, IBV_QP_STATE);
  if (error == 0) {
    discard_completions();
    if (enter_service(problem)) return true;
  } else {
    say(problem, "the queue pair cannot be reset", error);
  }
  host->log(LogLevel::kError, ("verbs:" + name_ + ": after a failure " + problem).c_str());
  return false;
}

// A reset takes back what was posted, and leaves what lies in the completion queues. That speaks of requests whose
// numbers are about to be used again.
void Device::discard_completions() const {
  ibv_wc completions[16];
  for (ibv_cq* const each : {received_, sent_})
    while (ibv_poll_cq(each, 16, completions) > 0) {
    }
}

bool Device::steer(const MacAddress& mac, std::string& problem) {
  return add_rule(mac, problem) && add_rule(MacAddress::broadcast(), problem);
}

bool Device::steer(const MacAddress& mac, const FlowSpec& flow, bool add) {
  if (!add) return flows_.remove(flow);
  if (flows_.add(queue_, number_, mac, flow)) return true;
  if (refused_++ == 0)
    host->log(LogLevel::kWarn, ("verbs:" + name_ + ": a flow cannot be steered here, the kernel keeps it (" +
                                strerrordesc_np(errno) + "); more of them are counted as steer_lost")
                                   .c_str());
  return false;
}

bool Device::add_rule(const MacAddress& destination, std::string& problem) {
  struct Rule {
    ibv_flow_attr attributes;
    ibv_flow_spec_eth ethernet;  // the call looks for it right behind
  } rule{};
  static_assert(sizeof(Rule) == sizeof(ibv_flow_attr) + sizeof(ibv_flow_spec_eth));
  rule.attributes.type = IBV_FLOW_ATTR_NORMAL;
  rule.attributes.size = sizeof rule;
  rule.attributes.num_of_specs = 1;
  rule.attributes.port = number_;
  rule.ethernet.type = IBV_FLOW_SPEC_ETH;
  rule.ethernet.size = sizeof rule.ethernet;
  std::memcpy(rule.ethernet.val.dst_mac, destination.bytes.data(), destination.bytes.size());
  std::memset(rule.ethernet.mask.dst_mac, 0xff, sizeof rule.ethernet.mask.dst_mac);
  ibv_flow* const made = ibv_create_flow(queue_, &rule.attributes);
  if (made == nullptr) return say(problem, "no steering of frames to this queue pair", errno);
  rules_.push_back(made);
  return true;
}

// --- Waiting

void Device::fetch() {
  ibv_cq* told = nullptr;
  void* user = nullptr;
  unsigned events = 0;
  while (verbs_->get_cq_event(channel_, &told, &user) == 0) events++;
  if (events == 0) return;
  verbs_->ack_cq_events(received_, events);
  armed_ = false;
}

void Device::arm() {
  fetch();
  if (!armed_) armed_ = ibv_req_notify_cq(received_, 0) == 0;
}

// A card's port says the same where there is no carrier.
bool Device::is_forbidden() const {
  if (!is_soft(name_)) return false;
  constexpr std::uint8_t kDisabled = 3;  // PortPhysicalState, InfiniBand §14.2.5.6
  ibv_port_attr port;
  return verbs_->look_at_port(context_, number_, port) == 0 && port.phys_state == kDisabled;
}

// --- Events

void Device::own_descriptors(bool own) const {
  for (const int fd : {context_->cmd_fd, context_->async_fd, channel_->fd}) host->own_descriptor(fd, own);
}

bool Device::watch(std::string& problem) {
  stop_ = packet::Descriptor(libc.eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop_.is_open() || !set_nonblocking(context_->async_fd)) return say(problem, "no descriptor", errno);
  own_descriptors(true);
  const int error = host->run_thread("bypass-verbs", run, this, &thread_);
  return error == 0 || say(problem, "no thread for the device's events", error);
}

void Device::run(void* self) {
  auto& device = *static_cast<Device*>(self);
  ibv_port_attr port;
  if (device.verbs_->look_at_port(device.context_, device.number_, port) == 0)
    device.events_.on_link(port.state == IBV_PORT_ACTIVE);
  pollfd items[2] = {{device.stop_.get(), POLLIN, 0}, {device.context_->async_fd, POLLIN, 0}};
  for (;;) {
    if (items[1].fd >= 0 && !device.take_events()) items[1].fd = -1;
    if (libc.poll(items, 2, -1) < 0 && errno != EINTR) return;
    if (items[0].revents != 0) return;
  }
}

// False: there will be no more. The kernel ends the descriptor of a device that is taken away, which is readable from
// then on.
bool Device::take_events() {
  ibv_async_event event{};
  while (verbs_->get_async_event(context_, &event) == 0) {
    handle(event);
    verbs_->ack_async_event(&event);
  }
  if (errno == EAGAIN || errno == EINTR) return true;
  tell_loss();
  return false;
}

void Device::tell_loss() {
  host->log(LogLevel::kError, ("verbs:" + name_ + ": the device is lost").c_str());
  events_.on_device_lost();
}

void Device::handle(const ibv_async_event& event) {
  switch (event.event_type) {
    case IBV_EVENT_PORT_ACTIVE:
    case IBV_EVENT_PORT_ERR:
      if (event.element.port_num == number_) events_.on_link(event.event_type == IBV_EVENT_PORT_ACTIVE);
      return;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_CQ_ERR:
      host->log(LogLevel::kWarn, ("verbs:" + name_ + ": the queue pair has failed, and is made ready again").c_str());
      return events_.on_queue_failure();
    case IBV_EVENT_DEVICE_FATAL:
      return tell_loss();
    default:
      return;
  }
}

// --- Closing

void Device::close() {
  if (context_ == nullptr) return;
  if (thread_ != 0) {
    const std::uint64_t one = 1;
    (void)libc.write(stop_.get(), &one, sizeof one);
    host->join_thread(thread_);
  }
  if (channel_ != nullptr) own_descriptors(false);
  for (ibv_flow* const rule : rules_) (void)ibv_destroy_flow(rule);
  flows_.destroy();
  if (queue_ != nullptr) (void)verbs_->destroy_qp(queue_);
  if (received_ != nullptr) fetch();
  for (ibv_cq* const each : {received_, sent_})
    if (each != nullptr) (void)verbs_->destroy_cq(each);
  if (channel_ != nullptr) (void)verbs_->destroy_comp_channel(channel_);
  if (memory_ != nullptr) (void)verbs_->dereg_mr(memory_);
  if (domain_ != nullptr) (void)verbs_->dealloc_pd(domain_);
  (void)verbs_->close_device(context_);
  context_ = nullptr;
}

void Device::drop_in_child() const {
  if (is_soft(name_) || channel_ == nullptr) return;  // its library does so itself
  for (const int fd : {context_->cmd_fd, context_->async_fd, channel_->fd}) libc.close(fd);
}

}  // namespace bypass::verbs
