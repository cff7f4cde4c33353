#include "softverbs/abi/cm/service.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <utility>

#include "os/os.h"
#include "os/own/cancellation.h"
#include "os/own/own_work.h"
#include "softverbs/abi/adapter/setup.h"
#include "softverbs/abi/cm/channel_table.h"
#include "softverbs/abi/cm/commands.h"

namespace bypass::softverbs {
namespace {

pthread_mutex_t g_mutex = PTHREAD_MUTEX_INITIALIZER;
Service* g_service = nullptr;  // never destroyed: its thread outlives static destructors

}  // namespace

// --- Channels

void Channel::push(const Entry& entry) {
  entries_.push_back(entry);
  if (entries_.size() == 1) raise();
  wake_sleeper();
}

bool Channel::pop(Entry& entry) {
  if (entries_.empty()) return false;
  entry = entries_.front();
  entries_.pop_front();
  if (entries_.empty()) lower();
  return true;
}

std::vector<Channel::Entry> Channel::take_events_of(cm::IdNumber owner) {
  std::vector<Entry> taken;
  if (entries_.empty()) return taken;
  const auto at = std::stable_partition(entries_.begin(), entries_.end(),
                                        [owner](const Entry& entry) { return entry.owner != owner; });
  taken.assign(at, entries_.end());
  entries_.erase(at, entries_.end());
  if (entries_.empty()) lower();
  return taken;
}

bool Channel::wait_for_event() {
  return wait();
}

// --- Making it

Service::Service() : manager_(*this) {}

Service* Service::get() {
  const socket::CancellationOff uncancelled;
  const runtime::Inside inside;
  pthread_mutex_lock(&g_mutex);
  if (g_service == nullptr) {
    auto* const made = new Service;
    if (made->start())
      g_service = made;
    else
      delete made;
  }
  Service* const service = g_service;
  pthread_mutex_unlock(&g_mutex);
  return service;
}

Service* Service::existing() {
  return g_service;
}

bool Service::start() {
  static const int hooks = pthread_atfork(nullptr, nullptr, forget_in_child);
  (void)hooks;
  wake_fd_ = own_high(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (wake_fd_ >= 0 && memory_.open() && host().run_thread("soft-cm", work, this, &thread_) == 0) return true;
  report("no connection management: no thread or descriptors for it");
  close_own(wake_fd_);
  return false;
}

void Service::open_devices() {
  if (std::exchange(devices_opened_, true)) return;
  const runtime::Inside inside;
  const std::size_t count = setup().soft.size();
  ports_.resize(count);
  for (std::size_t i = 0; i < count; i++) {
    ports_[i] = ManagementPort::open(i, wake_fd_);
    manager_.set_device(i, ports_[i] != nullptr ? ports_[i]->describe() : cm::DeviceInfo{});
  }
  // After the devices' own, so that it runs before theirs.
  static const int hook = atexit(before_exit);
  (void)hook;
}

// Peers hear that the program's connections are over, as they do when a kernel closes its descriptors.
void Service::before_exit() {
  Service* const service = g_service;
  if (service == nullptr) return;
  const std::lock_guard lock(service->mutex_);
  while (!service->owners_.empty()) service->destroy(service->owners_.begin()->first);
}

// The channels' descriptors stay known, so that they answer EIO.
void Service::forget_in_child() {
  g_mutex = PTHREAD_MUTEX_INITIALIZER;
  g_service = nullptr;
}

// --- The thread

Instant Service::now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return Instant(std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec));
}

void Service::work(void* self) {
  Service& service = *static_cast<Service*>(self);
  for (;;) {
    Instant until;
    {
      const std::lock_guard lock(service.mutex_);
      service.receive();
      service.manager_.run(now());
      until = service.sleeps_until_ = service.next_look();
    }
    const Duration left = until == kNever ? Duration::zero() : std::max(until - now(), Duration::zero());
    const timespec timeout{static_cast<time_t>(left / std::chrono::seconds(1)),
                           static_cast<long>((left % std::chrono::seconds(1)).count())};
    pollfd item{service.wake_fd_, POLLIN, 0};
    ppoll(&item, 1, until == kNever ? nullptr : &timeout, nullptr);
    if (item.revents != 0) os::eventfd_take(service.wake_fd_);
  }
}

void Service::receive() {
  for (std::size_t i = 0; i < ports_.size(); i++) {
    if (ports_[i] == nullptr) continue;
    received_.clear();
    ports_[i]->receive(received_);
    const Instant at = now();
    for (const ManagementPort::Received& message : received_)
      manager_.on_mad(i, message.from, message.to, message.mad, at);
    if (ports_[i]->take_peer_lost()) manager_.on_peer_lost(i, at);
    ports_[i]->send_waiting();
  }
}

Instant Service::next_look() const {
  const bool waits = std::any_of(ports_.begin(), ports_.end(), [](const auto& port) { return port && port->waits(); });
  const Instant next = manager_.next_timeout();
  return waits ? std::min(next, now() + ManagementPort::kLook) : next;
}

void Service::settle() {
  manager_.run(now());
  if (const Instant next = next_look(); next < sleeps_until_) {
    sleeps_until_ = next;
    os::eventfd_add(wake_fd_, 1);
  }
}

// --- What the manager needs

void Service::send(std::size_t device, const IpAddress& from, const IpAddress& to, const cm::Mad& mad) {
  if (ports_[device] != nullptr) ports_[device]->send(from, to, mad);
}

cm::Neighbour Service::resolve(std::size_t device, const IpAddress& address) {
  return ports_[device] == nullptr ? cm::Neighbour::kAsked : ports_[device]->resolve(address);
}

std::uint32_t Service::random() {
  std::uint32_t value = 0;
  static_cast<void>(os::fill_random(&value, sizeof value));
  return value;
}

bool Service::has_room(cm::IdNumber listener) {
  const auto at = owners_.find(listener);
  return at != owners_.end() && at->second.backlog > 0;
}

void Service::happened(const cm::Happened& what) {
  const bool request = what.event == cm::Event::kConnectRequest;
  const cm::IdNumber number = request ? what.listener : what.id;
  const auto at = owners_.find(number);
  if (at == owners_.end()) return;
  Owner& owner = at->second;
  if (request) {
    owner.backlog--;
    owners_[what.id].channel = owner.channel;
  } else if (owner.uid == 0) {
    return;  // a new connection that the program has not accepted yet: accepting it fails
  }
  owner.channel->push({what, owner.uid, number});
}

// --- Ids and channels

std::uint32_t Service::destroy(cm::IdNumber number) {
  const auto at = owners_.find(number);
  if (at == owners_.end()) return 0;
  const Owner owner = at->second;
  owners_.erase(at);
  for (const Channel::Entry& entry : owner.channel->take_events_of(number))
    if (entry.what.event == cm::Event::kConnectRequest) destroy(entry.what.id);
  manager_.destroy(number, now());
  return owner.events_reported;
}

int Service::open_channel() {
  const socket::CancellationOff uncancelled;
  const runtime::Inside inside;
  auto channel = std::make_shared<Channel>();
  if (!channel->open(EventSignal::Kind::kPipe)) return -1;
  const int fd = channel->descriptor();
  const std::lock_guard lock(mutex_);
  if (!ChannelTable::add(fd, channel->own_descriptor())) {
    errno = EMFILE;
    return -1;
  }
  channels_[fd] = std::move(channel);
  return fd;
}

bool Service::close_channel(int fd) {
  const socket::CancellationOff uncancelled;
  const runtime::Inside inside;
  const std::lock_guard lock(mutex_);
  const auto at = channels_.find(fd);
  if (at == channels_.end()) return false;
  ChannelTable::remove(fd);
  const std::shared_ptr<Channel> channel = std::move(at->second);
  channels_.erase(at);
  std::vector<cm::IdNumber> ids;
  for (const auto& [number, owner] : owners_)
    if (owner.channel == channel) ids.push_back(number);
  for (const cm::IdNumber number : ids) destroy(number);
  channel->forget_descriptor();
  return true;
}

long Service::command(int fd, const void* data, std::size_t bytes) {
  const runtime::Inside inside;
  return Commands(*this, fd).run(data, bytes);
}

}  // namespace bypass::softverbs
