// EventQueue: events for readers who may wait for them with poll(): what a completion channel and a context's
// asynchronous events are in the kernel.
//
// `descriptor()` is readable exactly while there are events, and is written and read under the adapter's lock only, by
// another descriptor of the same: the program may close it, or give its number to a file of its own. A blocked reader
// waits in a read() of a descriptor of its own, so that its signals, restarts and cancellation are the kernel's.
#pragma once

#include <cstdint>
#include <deque>

namespace bypass::softverbs {

class Adapter;

/// The part that knows nothing of the events' type. All members but wait() with the adapter's lock held.
class EventSignal {
 public:
  EventSignal() = default;
  EventSignal(const EventSignal&) = delete;
  EventSignal& operator=(const EventSignal&) = delete;
  ~EventSignal();

  /// False: no descriptors, errno says why.
  bool open();
  /// The program's to poll, to set O_NONBLOCK on, and never to read.
  [[nodiscard]] int descriptor() const { return fd_; }

  /// The program has not set O_NONBLOCK.
  [[nodiscard]] bool is_blocking() const;

 protected:
  void raise() const;  // there are events now
  void lower() const;  // there are none left
  void wake_sleeper();
  /// Counts the caller as a sleeper; false, errno EAGAIN: the program wants no waiting.
  bool begin_wait();
  /// Without the lock. False: errno says why, EINTR as a rule.
  [[nodiscard]] bool wait() const;
  /// After a wait that failed: a wake-up that was meant for the caller is taken back.
  void abandon_wait();

 private:
  int fd_ = -1;
  int own_fd_ = -1;        // the same one
  int sleep_fd_ = -1;      // a semaphore
  unsigned sleepers_ = 0;  // that have no wake-up on its way
};

template <typename Event>
class EventQueue : public EventSignal {
 public:
  void push(const Event& event) {
    events_.push_back(event);
    if (events_.size() == 1) raise();
    wake_sleeper();
  }

  bool pop(Event& event) {
    if (events_.empty()) return false;
    event = events_.front();
    events_.pop_front();
    if (events_.empty()) lower();
    return true;
  }

  template <typename Condition>
  void forget(Condition condition) {
    if (std::erase_if(events_, condition) != 0 && events_.empty()) lower();
  }

  /// The next event, and `on_taken` of it with the lock held. Looks at the wire for as long as a wait may spin, then
  /// sleeps. The lock must be free. False: errno says why. (adapter.h)
  template <typename OnTaken>
  bool take(Adapter& adapter, Event& event, OnTaken on_taken);

 private:
  struct Sleep;

  std::deque<Event> events_;
};

}  // namespace bypass::softverbs
