// DeviceWatch: a device's thread. It sleeps until the device tells of an asynchronous event (link up and down, a queue
// pair that failed, the device's loss). It looks for a lost device until one with the same name is there again. Then it
// makes everything anew.
//
// The thread never takes the shard's lock. The stage says which side may touch the device and its queues:
//
//   kServing  the data path (the holder of the shard's lock)
//   kLost     still the data path, which is asked to leave
//   kLeft     the thread, which gives everything back
//   kGone     the thread, which looks for the device; the frames that the device had are the port's again
//   kBack     the thread, which has made everything anew; the data path is asked to take over: kServing
//
// The data path may say at any time what is to be steered (flow_rules.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "backends/packet/descriptor.h"
#include "backends/verbs/device.h"

namespace bypass::verbs {

/// What a DeviceWatch tells. It calls these on its own thread.
class DeviceEvents {
 public:
  virtual ~DeviceEvents() = default;
  virtual void on_link(bool up) = 0;
  /// The queue pair takes no more requests. Device::restart() makes it usable again.
  virtual void on_queue_failure() = 0;
  /// stage() is kLost, kGone or kBack now.
  virtual void on_stage() = 0;
  /// Called while the device is lost: whether the interface that it needs is there. False: `problem` says why.
  virtual bool can_come_back(std::string& problem) = 0;
};

class DeviceWatch {
 public:
  enum class Stage : std::uint8_t { kServing, kLost, kLeft, kGone, kBack };

  DeviceWatch(Device& device, DeviceEvents& events) : device_(device), events_(events) {}
  DeviceWatch(const DeviceWatch&) = delete;
  DeviceWatch& operator=(const DeviceWatch&) = delete;
  ~DeviceWatch() { stop(); }

  /// Lets the thread look at the link, and then listen. False: `problem` says why.
  bool start(std::string& problem);
  void stop();

  [[nodiscard]] Stage stage() const { return stage_.load(std::memory_order_acquire); }
  /// The data path touches nothing of the device from here on. The stage was kServing, kLost or kBack.
  void leave() { pass_on(Stage::kLeft); }
  /// The data path has taken over. The stage was kBack. The thread then tells the link's state.
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
  // each side passes on what it has: a release that meets stage()'s acquire
  std::atomic<Stage> stage_{Stage::kServing};
  std::atomic<bool> stopping_{false};
  packet::Descriptor call_;  // wakes the thread, which then looks at the stage and the device
  std::uint64_t thread_ = 0;
  // Only the thread uses these
  bool told_link_ = false;
  int pause_ms_ = 0;  // before the next look for a lost device; 0 once it has served for a while
  std::string said_;  // why the device does not come back, as logged last
};

}  // namespace bypass::verbs
