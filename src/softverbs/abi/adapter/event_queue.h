// EventQueue: events for readers that may wait for them with poll(). In the kernel these are a completion channel and a
// context's asynchronous events.
//
// `descriptor()` is readable exactly while there are events. It is written and read only under the adapter's lock,
// through another descriptor of the same file: the program may close it, or give its number to a file of its own. A
// blocked reader waits in a read() on a descriptor of its own. So signals, restarts and cancellation are handled by the
// kernel.
#pragma once

#include <cstdint>
#include <deque>

namespace bypass::softverbs {

class Adapter;

/// The part that does not know the events' type. All members except wait() need the adapter's lock.
class EventSignal {
 public:
  EventSignal() = default;
  EventSignal(const EventSignal&) = delete;
  EventSignal& operator=(const EventSignal&) = delete;
  ~EventSignal();

  /// kPipe: the descriptor's file has an inode of its own, by which it can be told from others (os::inode_of).
  enum class Kind : std::uint8_t { kEventFd, kPipe };
  /// False: no descriptors could be made; errno says why.
  bool open(Kind kind = Kind::kEventFd);
  /// For the program's poll() and O_NONBLOCK; the program must never read it.
  [[nodiscard]] int descriptor() const { return fd_; }

  /// The program has closed it.
  void forget_descriptor() { fd_ = -1; }
  /// Our own number of the descriptor's file.
  [[nodiscard]] int own_descriptor() const { return own_fd_; }
  /// True if the program has not set O_NONBLOCK.
  [[nodiscard]] bool is_blocking() const;

 protected:
  void raise() const;  // there are events now
  void lower() const;  // there are no events left
  void wake_sleeper();
  /// Counts the caller as a sleeper. False, errno EAGAIN: the program does not want to wait.
  bool begin_wait();
  /// Called without the lock. False: errno says why, usually EINTR.
  [[nodiscard]] bool wait() const;
  /// To be called after a failed wait: takes back a wake-up that was meant for the caller.
  void abandon_wait();

 private:
  int fd_ = -1;
  int own_fd_ = -1;        // our own number of the same file
  int raise_fd_ = -1;      // the file's writing end: the same, or a pipe's other end
  int sleep_fd_ = -1;      // a semaphore
  unsigned sleepers_ = 0;  // sleepers without a wake-up under way
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

  /// Takes the next event and calls `on_taken` for it with the lock held. Looks at the wire for as long as a wait may
  /// spin, then sleeps. The lock must be free. False: errno says why. (adapter.h)
  template <typename OnTaken>
  bool take(Adapter& adapter, Event& event, OnTaken on_taken);

 private:
  struct Sleep;

  std::deque<Event> events_;
};

}  // namespace bypass::softverbs
