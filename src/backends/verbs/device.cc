#include "backends/verbs/device.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "backends/packet/descriptor.h"
#include "backends/packet/libc.h"
#include "backends/verbs/fork.h"
#include "backends/verbs/open_device.h"
#include "backends/verbs/problem.h"

namespace bypass::verbs {
namespace {

using packet::Descriptor;
using packet::host;
using packet::libc;

constexpr std::uint32_t kInlineBytes = 64;  // a bare ACK
constexpr int kNotSupportedInKernel = 524;  // ENOTSUPP, which drivers pass on by mistake

bool is_refusal(int error) {
  return error == EINVAL || error == EOPNOTSUPP || error == ENOSYS || error == kNotSupportedInKernel;
}

// The same, for memory that the kernel locks: a process has a limit for it.
bool say_locked(std::string& problem, const std::string& what, int error) {
  say(problem, what, error);
  if (error != ENOMEM && error != EAGAIN && error != EPERM) return false;
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return false;
  problem += "; the limit of locked memory is " + std::to_string(limit.rlim_cur >> 10) +
             " KiB: raise it (ulimit -l unlimited, or LimitMEMLOCK=infinity of a service) or ask for less "
             "(BYPASS_PORT_MEMORY)";
  return false;
}

// RFC 4291 §A: a link-local address holds the interface's identifier.
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
  DeviceName wanted;
  if (!wanted.parse(target, problem)) return false;
  name_ = wanted.name;
  number_ = wanted.port;
  verbs_ = verbs_for(name_, problem);
  if (verbs_ == nullptr) return false;
  if (!is_soft(name_)) prepare_for_fork(*verbs_, name_);
  return find(problem) && look(problem);
}

bool Device::remake(std::string& problem) {
  const Abilities could = can_;
  if (find(problem) && look(problem) && make_queues(frames_, wanted_depth_, problem)) {
    if (!can_.include(could))
      problem = "it can do less than before (checksums, cutting of large segments)";
    else if (steer_again(problem))
      return true;
  }
  close();
  can_ = could;
  return false;
}

bool Device::find(std::string& problem) {
  context_ = open_device(*verbs_, name_, problem);
  if (context_ == nullptr) return false;
  own_descriptor(0, context_->cmd_fd);
  own_descriptor(1, context_->async_fd);
  return true;
}

bool Device::look(std::string& problem) {
  ibv_device_attr_ex device{};
  const verbs_context* const extended = verbs_get_ctx_op(context_, query_device_ex);
  if (extended != nullptr && extended->query_device_ex(context_, nullptr, &device, sizeof device) == 0) {
    timed_ = clock_.start(context_, device);
  } else if (const int error = verbs_->query_device(context_, &device.orig_attr); error != 0) {
    return say(problem, "the device does not answer", error);
  }
  note_abilities(device);
  if (number_ > device.orig_attr.phys_port_cnt) {
    problem = "the device has no port " + std::to_string(number_) + "; accepted is 1" +
              (device.orig_attr.phys_port_cnt > 1 ? " to " + std::to_string(device.orig_attr.phys_port_cnt) : "");
    return false;
  }
  depth_ = static_cast<std::uint32_t>(std::min(device.orig_attr.max_qp_wr, device.orig_attr.max_cqe));
  ibv_port_attr port;
  if (const int error = verbs_->look_at_port(context_, number_, port); error != 0)
    return say(problem, "the device's port does not answer", error);
  if (port.link_layer != IBV_LINK_LAYER_ETHERNET) {
    const std::string number = std::to_string(number_);
    problem =
        "port " + number + "'s link layer is " +
        (port.link_layer == IBV_LINK_LAYER_INFINIBAND ? "InfiniBand" : "not known") +
        ", which carries no frames; needed is Ethernet (a card that can be either is told so by its vendor's tool: "
        "mlxconfig set LINK_TYPE_P" +
        number + "=2)";
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

void Device::note_abilities(const ibv_device_attr_ex& device) {
  can_ = {};
  can_.checksums = (device.raw_packet_caps & IBV_RAW_PACKET_CAP_IP_CSUM) != 0 ||
                   (device.orig_attr.device_cap_flags & IBV_DEVICE_RAW_IP_CSUM) != 0;
  const bool cuts = can_.checksums && (device.tso_caps.supported_qpts & (1U << IBV_QPT_RAW_PACKET)) != 0;
  if (cuts && device.orig_attr.max_sge >= static_cast<int>(SendQueue::kMostSegments))
    can_.tso_bytes = device.tso_caps.max_tso;
}

// --- Queues

bool Device::make_queues(std::span<std::byte> memory, std::uint32_t depth, std::string& problem) {
  frames_ = memory;
  wanted_depth_ = depth;
  depth_ = std::min(depth_, depth);
  domain_ = verbs_->alloc_pd(context_);
  if (domain_ == nullptr) return say(problem, "no protection domain", errno);
  memory_ = verbs_->reg_mr(domain_, memory.data(), memory.size(), IBV_ACCESS_LOCAL_WRITE);
  if (memory_ == nullptr)
    return say_locked(problem, std::to_string(memory.size() >> 20) + " MiB of frames cannot be registered", errno);
  if (!is_soft(name_)) keep_in_children(memory);  // children read what was received before the fork
  channel_ = verbs_->create_comp_channel(context_);
  if (channel_ != nullptr) own_descriptor(2, channel_->fd);
  if (channel_ == nullptr || !set_nonblocking(channel_->fd) || !set_nonblocking(context_->async_fd))
    return say(problem, "no completion channel", errno);
  return make_completion_queues(problem) && make_queue_pair(problem) && enter_service(problem);
}

bool Device::make_completion_queues(std::string& problem) {
  using Of = CompletionQueue::Of;
  if (received_.create(*verbs_, context_, Of::kReceiving, depth_, channel_, timed_) &&
      sent_.create(*verbs_, context_, Of::kSending, depth_, nullptr, false))
    return true;
  return say_locked(problem, "no completion queue", errno);
}

bool Device::make_queue_pair(std::string& problem) {
  ibv_qp_cap cap{};
  queue_ = create_queue_pair(cap);
  if (queue_ != nullptr) {
    ibv_qp_ex* const extended = verbs_->qp_to_qp_ex != nullptr ? verbs_->qp_to_qp_ex(queue_) : nullptr;
    sender_.use(queue_, extended, memory_->lkey,
                {std::min(cap.max_send_sge, SendQueue::kMostSegments), cap.max_inline_data});
    return true;
  }
  const int error = errno;
  if (!is_refusal(error) && error != EPERM) return say_locked(problem, "no raw-packet queue pair", error);
  if (error == EPERM) {
    say(problem, "no raw-packet queue pair", error);
    problem += "; the process needs CAP_NET_RAW (run it as root, or as a service with AmbientCapabilities=CAP_NET_RAW)";
    return false;
  }
  say(problem, "the device has no raw-packet queue pairs", error);
  problem +=
      "; needed is a device that has them (a ConnectX card, say, or a software device: BYPASS_SOFT=WIRE and "
      "verbs:soft0)";
  return false;
}

// Takes the best queue pair that the device has: requests built call by call with large segments, else requests in
// lists, else no large segments.
ibv_qp* Device::create_queue_pair(ibv_qp_cap& cap) {
  const bool cuts = can_.tso_bytes != 0;
  ibv_qp_init_attr_ex wanted{};
  wanted.send_cq = sent_.get();
  wanted.recv_cq = received_.get();
  wanted.qp_type = IBV_QPT_RAW_PACKET;
  wanted.pd = domain_;
  wanted.max_tso_header = kTsoHeaders;
  wanted.send_ops_flags = IBV_QP_EX_WITH_SEND | (cuts ? IBV_QP_EX_WITH_TSO : 0);
  const std::uint32_t tso = cuts ? IBV_QP_INIT_ATTR_MAX_TSO_HEADER : 0;
  const ibv_qp_cap asked = {depth_, depth_, cuts ? SendQueue::kMostSegments : 1, 1, kInlineBytes};
  const verbs_context* const extended = verbs_get_ctx_op(context_, create_qp_ex);
  for (const std::uint32_t operations : {std::uint32_t{IBV_QP_INIT_ATTR_SEND_OPS_FLAGS}, std::uint32_t{0}}) {
    if (extended == nullptr || (operations == 0 && !cuts)) break;
    if (operations != 0 && verbs_->qp_to_qp_ex == nullptr) continue;
    wanted.comp_mask = IBV_QP_INIT_ATTR_PD | tso | operations;
    wanted.cap = asked;
    ibv_qp* const made = extended->create_qp_ex(context_, &wanted);
    cap = wanted.cap;
    if (made != nullptr || !is_refusal(errno)) return made;
  }
  can_.tso_bytes = 0;
  // The newer call's attributes begin with the older call's.
  wanted.cap = {depth_, depth_, 1, 1, kInlineBytes};
  ibv_qp* const made = verbs_->create_qp(domain_, reinterpret_cast<ibv_qp_init_attr*>(&wanted));
  cap = wanted.cap;
  return made;
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
  log(LogLevel::kError, "after a failure " + problem);
  return false;
}

// A reset takes back what was posted, but leaves what lies in the completion queues. Those completions are for requests
// whose numbers are about to be used again.
void Device::discard_completions() {
  std::array<Completion, 16> completions;
  for (CompletionQueue* const each : {&received_, &sent_})
    while (each->poll(completions) > 0) {
    }
}

bool Device::steer(const MacAddress& mac, std::string& problem) {
  all_of_ = mac;
  return add_rule(mac, problem) && add_rule(MacAddress::broadcast(), problem);
}

void Device::steer_flows(const MacAddress& mac) {
  flows_of_ = mac;
  const std::size_t lost = flows_.begin(queue_, number_, mac);
  lost_flows_ += lost;
  if (lost != 0) log(LogLevel::kWarn, std::to_string(lost) + " flows cannot be steered here any more");
}

bool Device::steer(const FlowSpec& flow, bool add) {
  if (!add) return flows_.remove(flow);
  if (flows_.add(flow)) return true;
  if (refused_++ == 0)
    log(LogLevel::kWarn, "a flow cannot be steered here, the kernel keeps it (" + reason(errno) +
                             "); more of them are counted as steer_lost");
  return false;
}

bool Device::steer_again(std::string& problem) {
  if (all_of_) return steer(*all_of_, problem);
  steer_flows(flows_of_);
  return true;
}

bool Device::add_rule(const MacAddress& destination, std::string& problem) {
  struct Rule {
    ibv_flow_attr attributes;
    ibv_flow_spec_eth ethernet;  // the call expects it right behind `attributes`
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
  verbs_->ack_cq_events(received_.get(), events);
}

void Device::arm() {
  fetch();
  // It is armed again each time: this tells a software device that nobody polls any more.
  (void)ibv_req_notify_cq(received_.get(), 0);
}

// For a software device whose wire refuses this process. A card's port gives the same state where there is no carrier.
bool Device::is_forbidden() const {
  if (!is_soft(name_)) return false;
  constexpr std::uint8_t kDisabled = 3;  // PortPhysicalState, InfiniBand §14.2.5.6
  ibv_port_attr port;
  return verbs_->look_at_port(context_, number_, port) == 0 && port.phys_state == kDisabled;
}

// --- Events

bool Device::has_link() const {
  ibv_port_attr port;
  return verbs_->look_at_port(context_, number_, port) == 0 && port.state == IBV_PORT_ACTIVE;
}

void Device::log(LogLevel level, const std::string& text) const {
  host->log(level, ("verbs:" + name_ + ": " + text).c_str());
}

// Called at once: a child that is forked in the next moment would keep the descriptor, and with it what belongs to a
// process that may have died.
void Device::own_descriptor(std::size_t which, int fd) {
  host->own_descriptor(fd, true);
  owned_[which].store(fd, std::memory_order_relaxed);
}

// Called before the descriptors are closed: a child that is forked meanwhile must not close what has taken their
// numbers.
void Device::disown_descriptors() {
  for (std::atomic<int>& each : owned_) {
    const int fd = each.exchange(-1, std::memory_order_relaxed);
    if (fd >= 0) host->own_descriptor(fd, false);
  }
}

// --- Closing

void Device::close() {
  if (context_ == nullptr) return;
  disown_descriptors();
  for (ibv_flow* const rule : rules_) (void)ibv_destroy_flow(rule);
  rules_.clear();
  flows_.destroy();
  if (queue_ != nullptr) (void)verbs_->destroy_qp(queue_);
  if (received_.get() != nullptr) fetch();
  received_.destroy(*verbs_);
  sent_.destroy(*verbs_);
  if (channel_ != nullptr) (void)verbs_->destroy_comp_channel(channel_);
  if (memory_ != nullptr) (void)verbs_->dereg_mr(memory_);
  if (domain_ != nullptr) (void)verbs_->dealloc_pd(domain_);
  (void)verbs_->close_device(context_);
  queue_ = nullptr;
  channel_ = nullptr;
  memory_ = nullptr;
  domain_ = nullptr;
  context_ = nullptr;
  timed_ = false;
}

void Device::drop_in_child() const {
  if (is_soft(name_)) return;  // the software library does so itself
  for (const std::atomic<int>& each : owned_)
    if (const int fd = each.load(std::memory_order_relaxed); fd >= 0) libc.close(fd);
}

}  // namespace bypass::verbs
