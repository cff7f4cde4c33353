#include "backends/verbs/device_watch.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "backends/packet/libc.h"
#include "os/poll_by_parts.h"

namespace bypass::verbs {
namespace {

using packet::host;
using packet::libc;

// A card that its driver restarts takes seconds to come back. A look at the list of devices takes some hundred
// microseconds.
constexpr int kFirstPauseMs = 10, kLongestPauseMs = 1000;

}  // namespace

bool DeviceWatch::start(std::string& problem) {
  call_ = packet::Descriptor(libc.eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  int error = errno;
  if (call_.is_open()) error = host->run_thread("bypass-verbs", run, this, &thread_);
  if (error != 0) problem = std::string("no thread for the device's events: ") + std::strerror(error);
  return error == 0;
}

void DeviceWatch::stop() {
  if (thread_ == 0) return;
  stopping_.store(true, std::memory_order_release);
  call();
  host->join_thread(thread_);
  thread_ = 0;
}

void DeviceWatch::call() const {
  const std::uint64_t one = 1;
  if (libc.write(call_.get(), &one, sizeof one) < 0) return;  // never full: nobody counts to 2^64
}

void DeviceWatch::pass_on(Stage next) {
  stage_.store(next, std::memory_order_release);
  call();
}

void DeviceWatch::tell(Stage now) {
  stage_.store(now, std::memory_order_release);
  events_.on_stage();
}

// --- The thread

void DeviceWatch::run(void* self) {
  auto& watch = *static_cast<DeviceWatch*>(self);
  while (watch.sleep(watch.step())) {
  }
}

// False: the thread is to end.
bool DeviceWatch::sleep(int most_ms) {
  const bool listens = stage() == Stage::kServing;
  pollfd items[2] = {{call_.get(), POLLIN, 0}, {listens ? device_.event_descriptor() : -1, POLLIN, 0}};
  const timespec limit{most_ms / 1000, most_ms % 1000 * 1'000'000L};
  int ready = libc.poll(items, 2, most_ms);
  if (ready < 0 && errno != EINTR) ready = socket::poll_by_parts(items, most_ms < 0 ? nullptr : &limit);
  if (ready == 0 && listens) pause_ms_ = 0;
  std::uint64_t calls = 0;
  if (items[0].revents != 0 && libc.read(call_.get(), &calls, sizeof calls) < 0) return false;
  return !stopping_.load(std::memory_order_acquire);
}

// Returns how long the thread may sleep then, in ms; -1: until it is called.
int DeviceWatch::step() {
  switch (stage()) {
    case Stage::kServing:
      return serve();
    case Stage::kLeft:
      events_.on_link(false);  // what this thread told last may be older than the leaving
      device_.close();
      tell(Stage::kGone);
      if (pause_ms_ == 0) return look_again();
      return pause_ms_ = std::min(2 * pause_ms_, kLongestPauseMs);  // the device did not last
    case Stage::kGone:
      return look_again();
    case Stage::kLost:
    case Stage::kBack:
      break;
  }
  return -1;
}

int DeviceWatch::serve() {
  if (!told_link_) events_.on_link(device_.has_link());
  told_link_ = true;
  if (take_events()) return pause_ms_ == 0 ? -1 : kLongestPauseMs;
  Stage serving = Stage::kServing;  // the stage, unless the data path has left meanwhile
  (void)stage_.compare_exchange_strong(serving, Stage::kLost, std::memory_order_acq_rel);
  events_.on_link(false);
  events_.on_stage();
  return -1;
}

int DeviceWatch::look_again() {
  std::string problem;
  if (events_.can_come_back(problem) && device_.remake(problem)) {
    pause_ms_ = std::max(pause_ms_, kFirstPauseMs);
    told_link_ = false;
    said_.clear();
    device_.log(LogLevel::kInfo, "the device is back");
    tell(Stage::kBack);
    return -1;
  }
  if (problem != said_) device_.log(LogLevel::kWarn, "the device is not back yet: " + problem);
  said_ = problem;
  return pause_ms_ = std::clamp(2 * pause_ms_, kFirstPauseMs, kLongestPauseMs);
}

// False: the device is lost. When a device is taken away, the kernel ends its descriptor, which is readable from then
// on.
bool DeviceWatch::take_events() {
  ibv_async_event event{};
  while (device_.next_event(event)) {
    const bool goes_on = handle(event);
    device_.acknowledge(event);
    if (!goes_on) return false;
  }
  if (errno == EAGAIN || errno == EINTR) return true;
  device_.log(LogLevel::kError, "the device is lost; it is looked for until it is back");
  return false;
}

bool DeviceWatch::handle(const ibv_async_event& event) {
  switch (event.event_type) {
    case IBV_EVENT_PORT_ACTIVE:
    case IBV_EVENT_PORT_ERR:
      if (event.element.port_num == device_.number()) events_.on_link(event.event_type == IBV_EVENT_PORT_ACTIVE);
      return true;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
      device_.log(LogLevel::kWarn, "the queue pair has failed, and is made ready again");
      events_.on_queue_failure();
      return true;
    case IBV_EVENT_CQ_ERR:  // nothing brings a completion queue back to life
      device_.log(LogLevel::kWarn, "a completion queue has failed; all queues are made anew");
      return false;
    case IBV_EVENT_DEVICE_FATAL:
      device_.log(LogLevel::kError, "the device has failed; it is looked for until it works again");
      return false;
    default:
      return true;
  }
}

}  // namespace bypass::verbs
