#include "backends/verbs/rc/device.h"

#include <fcntl.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "backends/packet/libc.h"
#include "backends/verbs/fork.h"
#include "backends/verbs/open_device.h"
#include "backends/verbs/problem.h"
#include "os/os.h"
#include "os/own/cancellation.h"

namespace bypass::verbs {
namespace {

using fastpath::Reason;
using packet::host;
using packet::libc;

std::uint64_t random_number() {
  std::uint64_t number = 0;
  return os::fill_random(&number, sizeof number) ? number : 0;
}

std::string text(const IpAddress& address) {
  if (address.is_v4()) {
    const std::uint32_t v4 = address.v4();
    return std::to_string(v4 >> 24) + "." + std::to_string(v4 >> 16 & 255) + "." + std::to_string(v4 >> 8 & 255) + "." +
           std::to_string(v4 & 255);
  }
  constexpr const char* kDigits = "0123456789abcdef";
  std::string made;
  for (std::size_t i = 0; i < address.bytes.size(); i++) {
    if (i != 0 && i % 2 == 0) made += ':';
    made += kDigits[address.bytes[i] >> 4];
    made += kDigits[address.bytes[i] & 15];
  }
  return made;
}

}  // namespace

// --- Opening

std::unique_ptr<RcDevice> RcDevice::open(const std::string& target, const fastpath::LinkDeviceSpec& spec,
                                         std::string& problem) {
  auto device = std::make_unique<RcDevice>();
  device->target_ = target;
  device->spec_ = spec;
  if (device->open_all(problem)) return device;
  problem = "RDMA links over " + target + ": " + problem;
  return nullptr;
}

bool RcDevice::open_all(std::string& problem) {
  return open_context(problem) && look(problem) && prepare(problem);
}

bool RcDevice::open_context(std::string& problem) {
  DeviceName wanted;
  if (!wanted.parse(target_, problem)) return false;
  name_ = wanted.name;
  context_.port = wanted.port;
  context_.verbs = verbs_for(name_, problem);
  if (context_.verbs == nullptr) return false;
  context_.soft = is_soft(name_);
  if (!context_.soft) prepare_for_fork(*context_.verbs, name_);
  context_.device = open_device(*context_.verbs, name_, problem);
  return context_.device != nullptr;
}

bool RcDevice::look(std::string& problem) {
  ibv_port_attr port;
  if (const int error = context_.verbs->look_at_port(context_.device, context_.port, port); error != 0)
    return say(problem, "the device's port does not answer", error);
  context_.mtu = port.active_mtu;
  if (port.link_layer != IBV_LINK_LAYER_ETHERNET) {
    problem = "its link layer is not Ethernet; links are RoCE v2";
    return false;
  }
  return find_gid(port.gid_tbl_len, problem);
}

// A card lists an address once for each version of RoCE, RoCEv2 second. A newer library tells which is which.
bool RcDevice::find_gid(int count, std::string& problem) {
  const IpAddress& address = spec_.address;
  int found = -1;
  for (int i = 0; i < count; i++) {
    ibv_gid gid{};
    if (context_.verbs->query_gid(context_.device, context_.port, i, &gid) != 0) continue;
    if (std::memcmp(gid.raw, address.bytes.data(), sizeof gid.raw) != 0) continue;
    ibv_gid_entry entry{};
    const bool told = context_.verbs->query_gid_ex != nullptr &&
                      context_.verbs->query_gid_ex(context_.device, context_.port, static_cast<std::uint32_t>(i),
                                                   &entry, 0, sizeof entry) == 0;
    if (!told || entry.gid_type == IBV_GID_TYPE_ROCE_V2) found = i;
  }
  context_.gid_index = static_cast<std::uint8_t>(std::max(found, 0));
  context_.gid = address;
  if (found < 0 || found > UINT8_MAX) problem = "it has not the address " + text(address) + " for RoCE v2";
  return found >= 0 && found <= UINT8_MAX;
}

bool RcDevice::prepare(std::string& problem) {
  context_.timeout = spec_.timeout;
  context_.retries = spec_.retries;
  context_.traffic_class = spec_.traffic_class;
  context_.depth = std::max(spec_.depth, 2 * RcLink::kSignalEvery);
  context_.domain = context_.verbs->alloc_pd(context_.device);
  if (context_.domain == nullptr) return say(problem, "no protection domain", errno);
  buffers_.use(*context_.verbs, context_.domain, context_.soft);
  const int events = context_.device->async_fd;
  const int flags = libc.fcntl(events, F_GETFL);
  if (flags < 0 || libc.fcntl(events, F_SETFL, flags | O_NONBLOCK) != 0 || !wakeup_.is_open())
    return say(problem, "no descriptors for it", errno);
  const std::array fds{context_.device->cmd_fd, events};
  for (std::size_t i = 0; i < fds.size(); i++) {
    host->own_descriptor(fds[i], true);
    owned_[i].store(fds[i], std::memory_order_relaxed);
  }
  wakeup_.add(events);
  const std::uint16_t window = std::clamp(spec_.window, fastpath::kLeastWindow, fastpath::kMostWindow);
  common_ = std::make_unique<RcSetup::Common>(RcSetup::Common{context_, buffers_, worker_, window, random_number});
  return true;
}

bool RcDevice::start_thread(std::string& problem) {
  const int error = worker_.start();
  return error == 0 || say(problem, "no thread for it", error);
}

RcDevice::~RcDevice() {
  ending_.store(true, std::memory_order_release);
  worker_.stop();
  setups_.clear();
  closing_.clear();
  close_all();
}

void RcDevice::close_all() {
  if (context_.device == nullptr) return;
  buffers_.clear();
  if (context_.domain != nullptr) (void)context_.verbs->dealloc_pd(context_.domain);
  if (owned_[1].load(std::memory_order_relaxed) >= 0 && !lost_) wakeup_.remove(context_.device->async_fd);
  // Done before the descriptors are closed: a child that is forked meanwhile must not close what has taken their
  // numbers.
  for (std::atomic<int>& each : owned_)
    if (const int fd = each.exchange(-1, std::memory_order_relaxed); fd >= 0) host->own_descriptor(fd, false);
  (void)context_.verbs->close_device(context_.device);
  context_.device = nullptr;
  context_.domain = nullptr;
}

// In a child, the software library closes its descriptors itself.
void RcDevice::drop_in_child() const {
  if (context_.soft) return;
  for (const std::atomic<int>& each : owned_)
    if (const int fd = each.load(std::memory_order_relaxed); fd >= 0) libc.close(fd);
}

// --- Memory

bool RcDevice::add_memory(std::span<const std::byte> range, const char*& problem) {
  const int error = lost_ ? 0 : buffers_.add(range);
  if (error == 0) {
    ranges_.push_back(range);
    return true;
  }
  const char* const known = strerrordesc_np(error);
  problem = known != nullptr ? known : "unknown error";
  return false;
}

void RcDevice::remove_memory(std::span<const std::byte> range) {
  std::erase_if(ranges_, [&](const auto& each) { return each.data() == range.data(); });
  if (!lost_) buffers_.remove(range);
}

// --- Links

RcSetup* RcDevice::make_setup(std::span<std::byte> memory, const IpAddress& peer, Instant now) {
  // Events so far are not about the new link: a port that came up was down before.
  if (take_events()) wakeup_.ring();
  sweep();
  if (lost_ || setups_.size() + closing_.size() >= kMostLinks) return nullptr;
  return setups_.emplace_back(std::make_unique<RcSetup>(*common_, memory, peer, now)).get();
}

fastpath::LinkSetup* RcDevice::request(std::uint32_t id, std::span<std::byte> memory, const IpAddress& peer,
                                       Instant now) {
  RcSetup* const setup = make_setup(memory, peer, now);
  if (setup != nullptr) setup->request(id);
  return setup;
}

fastpath::LinkSetup* RcDevice::answer(std::span<const std::byte> body, Reason refusal, std::span<std::byte> memory,
                                      const IpAddress& peer, Instant now) {
  RcSetup* const setup = make_setup(memory, peer, now);
  if (setup != nullptr) setup->answer(body, refusal);
  return setup;
}

void RcDevice::close(fastpath::LinkSetup* setup) {
  const auto at = std::find_if(setups_.begin(), setups_.end(), [&](const auto& each) { return each.get() == setup; });
  if (at == setups_.end()) return;
  (*at)->close();
  closing_.push_back(std::move(*at));
  setups_.erase(at);
  sweep();
}

void RcDevice::sweep() {
  std::erase_if(closing_, [](const auto& each) { return each->closed(); });
}

bool RcDevice::gone(std::span<const std::byte> memory) {
  sweep();
  return std::none_of(closing_.begin(), closing_.end(),
                      [&](const auto& each) { return each->memory().data() == memory.data(); });
}

// --- Events

void RcDevice::attend() {
  wakeup_.fetch();
  take_events();
  sweep();
  if (lost_) [[unlikely]]
    look_for_it();
}

// False: there were no events.
bool RcDevice::take_events() {
  const socket::CancellationOff off;  // libibverbs reads them with read(2), a cancellation point
  bool any = false;
  ibv_async_event event;
  while (!lost_) {
    if (context_.verbs->get_async_event(context_.device, &event) == 0) {
      any = true;
      handle(event);
      context_.verbs->ack_async_event(&event);
      continue;
    }
    if (errno == EINTR) continue;
    if (errno == EAGAIN) break;
    any = true;
    fail_all();
  }
  return any;
}

void RcDevice::handle(const ibv_async_event& event) {
  switch (event.event_type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
      for (const auto& each : setups_)
        if (each->pair() == event.element.qp) each->on_device_failure(false);
      return;
    case IBV_EVENT_CQ_ERR:
      for (const auto& each : setups_)
        if (each->completions() == event.element.cq) each->on_device_failure(true);
      return;
    case IBV_EVENT_PORT_ERR:
      if (event.element.port_num != context_.port) return;
      for (const auto& each : setups_) each->on_device_failure(false);
      return;
    case IBV_EVENT_DEVICE_FATAL:
      return fail_all();
    default:
      return;
  }
}

void RcDevice::fail_all() {
  if (!lost_)
    host->log(LogLevel::kError,
              ("rdma: " + name_ + ": the device has failed; connections go on by TCP until it is back").c_str());
  lost_ = true;
  wakeup_.remove(context_.device->async_fd);  // it would be readable for ever
  for (const auto& each : setups_) each->on_device_failure(true);
}

// --- Until it is back

void RcDevice::look_for_it() {
  if (looking_ && done()) {
    looking_ = false;
    if (std::exchange(back_, false)) return serve_again();
  }
  if (looking_ || !setups_.empty() || !closing_.empty()) return;
  looking_ = worker_.submit(*this);
}

bool RcDevice::come_back(std::string& problem) {
  close_all();  // what is left of the device, or of the last attempt
  return open_all(problem);
}

void RcDevice::run() {
  constexpr auto kFirst = std::chrono::milliseconds{10}, kLongest = std::chrono::milliseconds{1000};
  constexpr auto kSlice = std::chrono::milliseconds{10};  // an end is noticed within this time
  std::string said;
  for (auto pause = kFirst; !ending_.load(std::memory_order_acquire); pause = std::min(2 * pause, kLongest)) {
    std::string problem;
    back_ = come_back(problem);
    if (back_ || !worker_.runs()) return;
    if (problem != said)
      host->log(LogLevel::kWarn, ("rdma: " + name_ + ": the device is not back yet: " + problem).c_str());
    said = problem;
    for (auto left = pause; left > left.zero() && !ending_.load(std::memory_order_acquire); left -= kSlice)
      (void)libc.poll(nullptr, 0, static_cast<int>(kSlice.count()));
  }
}

// Registers the ranges again. A range that the device does not take now is left out: a write from there fails its link.
void RcDevice::serve_again() {
  lost_ = false;
  std::erase_if(ranges_, [this](const auto& range) { return buffers_.add(range) != 0; });
  host->log(LogLevel::kInfo, ("rdma: " + name_ + ": the device is back").c_str());
  wakeup_.ring();
}

}  // namespace bypass::verbs
