// Service: the process's connection manager, as the kernel's module rdma_ucm is for a machine.
//
// Its calls are the commands that librdmacm writes to /dev/infiniband/rdma_cm (linux/rdma_user_cm.h). A thread of its
// own takes what peers send, and looks after the times. One lock protects everything; a device's lock is taken inside
// it. It is made with the first channel and lives until the process ends. In a forked child it is gone: the parent's
// channels answer EIO there, and the first new one makes a new service.
#pragma once

#include <pthread.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "softverbs/abi/adapter/event_queue.h"
#include "softverbs/abi/cm/management_port.h"
#include "softverbs/abi/cm/user_memory.h"
#include "softverbs/cm/manager.h"

namespace bypass::softverbs {

/// An open /dev/infiniband/rdma_cm. Its members change with the service's lock held.
class Channel : public EventSignal {
 public:
  struct Entry {
    cm::Happened what;
    std::uint64_t uid = 0;
    cm::IdNumber owner = 0;  // the id that the event counts for: the listener of a connect request
  };

  void push(const Entry& entry);
  bool pop(Entry& entry);
  /// Takes the events of an id off.
  std::vector<Entry> take_events_of(cm::IdNumber owner);
  /// Blocks until there may be an event. Without the lock, after begin_wait(). False: errno says why.
  bool wait_for_event();
  using EventSignal::abandon_wait;
  using EventSignal::begin_wait;

 private:
  std::deque<Entry> entries_;
};

class Service final : cm::Surroundings {
 public:
  /// The process's; null: it cannot be had, and the reason was reported.
  static Service* get();
  /// The same if it was made before; null: it was not.
  static Service* existing();

  /// What the program gets for /dev/infiniband/rdma_cm: a descriptor, or -1 and errno.
  int open_channel();
  /// False: it is the parent's, in a forked child.
  bool close_channel(int fd);
  /// A write() of the program's to a channel: its result, or a negative errno.
  long command(int fd, const void* data, std::size_t bytes);

 private:
  friend class Commands;
  /// An id as the program knows it.
  struct Owner {
    std::shared_ptr<Channel> channel;
    std::uint64_t uid = 0;
    std::uint32_t events_reported = 0;
    std::uint32_t backlog = 0;  // further requests that the listener takes
  };

  Service();
  bool start();
  static void work(void* self);
  static void before_exit();
  static void forget_in_child();

  /// Opens the devices, once.
  void open_devices();
  /// Destroys an id with its events, and new ids that only its events knew. Returns how many events were reported.
  std::uint32_t destroy(cm::IdNumber number);
  void receive();
  /// After each change: what is due, and the thread's next look.
  void settle();
  /// When the thread has something to do though nothing comes.
  [[nodiscard]] Instant next_look() const;
  static Instant now();

  void send(std::size_t device, const IpAddress& from, const IpAddress& to, const cm::Mad& mad) override;
  cm::Neighbour resolve(std::size_t device, const IpAddress& address) override;
  std::uint32_t random() override;
  void happened(const cm::Happened& what) override;
  bool has_room(cm::IdNumber listener) override;

  std::mutex mutex_;
  int wake_fd_ = -1;
  std::uint64_t thread_ = 0;
  Instant sleeps_until_ = kNever;
  cm::Manager manager_;
  bool devices_opened_ = false;
  std::vector<std::unique_ptr<ManagementPort>> ports_;
  UserMemory memory_;
  std::map<int, std::shared_ptr<Channel>> channels_;
  std::map<cm::IdNumber, Owner> owners_;
  std::vector<ManagementPort::Received> received_;
};

}  // namespace bypass::softverbs
