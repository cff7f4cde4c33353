// DeviceWatch: a device's thread. It sleeps until the device tells of an asynchronous event (link up and down, a queue
// pair that failed, the device's loss). A lost device is looked for until one of its name is there again, and
// everything is made anew.
//
// Nothing of that takes the shard's lock. One word says who may touch the device and its queues:
//
//   kServing  the data path (the holder of the shard's lock)
//   kLost     the data path still, which is asked to leave
//   kLeft     the thread, which gives everything back
//   kGone     the thread, which looks for the device; the frames that the device had are the port's again
//   kBack     the thread, which has made everything anew; the data path is asked to take over: kServing
//
// What is to be steered the data path says at any time (flow_rules.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "backends/packet/descriptor.h"
#include "backends/verbs/device.h"

namespace bypass::verbs {

/// Whom a DeviceWatch tells. On its thread.
class DeviceEvents {
 public:
  virtual ~DeviceEvents() = default;
  virtual void on_link(bool up) = 0;
  /// The queue pair takes no more requests; Device::restart() makes it usable again.
  virtual void on_queue_failure() = 0;
  /// stage() is kLost, kGone or kBack now.
  virtual void on_stage() = 0;
  /// While the device is lost: whether what it has to come back to is there. False: `problem`.
  virtual bool can_come_back(std::string& problem) = 0;
};

class DeviceWatch {
 public:
  enum class Stage : std::uint8_t { kServing, kLost, kLeft, kGone, kBack };

  DeviceWatch(Device& device, DeviceEvents& events) : device_(device), events_(events) {}
  DeviceWatch(const DeviceWatch&) = delete;
  DeviceWatch& operator=(const DeviceWatch&) = delete;
  ~DeviceWatch() { stop(); }

  /// Has the thread look at the link, and then listen. False: `problem`.
  bool start(std::string& problem);
  void stop();

  [[nodiscard]] Stage stage() const { return stage_.load(std::memory_order_acquire); }
  /// The data path touches nothing of the device from here on (kServing, kLost or kBack before).
  void leave() { pass_on(Stage::kLeft); }
  /// The data path has taken over (kBack before). The thread then tells of the link.
  void resume() { pass_on(Stage::kServing); }

 private:
  static void run(void* self);
  bool sleep(int most_ms);
  int step();
  int serve();
  int look_again();
  bool take_events();
  bool handle(const ibv_async_event& event);
  void pass_on(Stage next);
  void tell(Stage now);
  void call() const;

  Device& device_;
  DeviceEvents& events_;
  std::atomic<Stage> stage_{Stage::kServing};  // each side gives away what it has: release, met by stage()'s acquire
  std::atomic<bool> stopping_{false};
  packet::Descriptor call_;  // makes the thread look at both
  std::uint64_t thread_ = 0;
  // The thread's own
  bool told_link_ = false;
  int pause_ms_ = 0;  // before the next look for a lost device; 0 once it has served for a while
  std::string said_;  // why it does not come back
};

}  // namespace bypass::verbs
