#include "runtime/progress/progress.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <climits>
#include <new>
#include <utility>
#include <vector>

#include "os/kernel.h"
#include "os/log/log.h"
#include "os/os.h"
#include "os/own/in_handler.h"
#include "runtime/host.h"
#include "socket/family/doorbell.h"
#include "socket/family/kin.h"
#include "socket/wait/kernel_half.h"

namespace bypass::runtime {

bool Progress::start() {
  if (runs()) return true;
  if (socket::is_in_handler()) return false;  // libc allocates to make a thread
  if (running_.exchange(true, std::memory_order_acq_rel)) return true;
  stopping_.store(false, std::memory_order_relaxed);
  watches_tickets_.store(false);
  ended_.store(0, std::memory_order_relaxed);
  kin_changed_ = true;
  wake_fd_ = own_high(socket::kernel->eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  // Not done by the new thread: when that first runs, the program may be in its sandbox already, without /proc and
  // descriptors.
  program_.begin();
  if (wake_fd_ >= 0 && run_thread("bypass-progress", run, this, &thread_) == 0) return true;
  program_.end();
  close_wake();
  running_.store(false, std::memory_order_relaxed);
  return false;
}

void Progress::forget() {
  running_.store(false, std::memory_order_relaxed);
  stopping_.store(false, std::memory_order_relaxed);
  want_ports_.store(false, std::memory_order_relaxed);
  child_expected_.store(false, std::memory_order_relaxed);
  doorbell_fd_.store(-1, std::memory_order_relaxed);
  wake_fd_ = -1;
  told_no_doorbell_.store(false, std::memory_order_relaxed);
  watches_tickets_.store(false, std::memory_order_relaxed);
  called_ = is_others_ = was_lent_ = false;
  kin_changed_ = kernel_called_ = true;
  // The parent's thread may have been changing either: their contents are not freed.
  new (&kin_) KinWatch;
  new (&program_) ProgramThreads;
  new (&nap_set_) std::vector<pollfd>;
}

void Progress::join_family() {
  if (doorbell_fd_.load(std::memory_order_acquire) >= 0 || !running_.load(std::memory_order_acquire)) return;
  socket::Doorbell bell;
  const int fd = socket::make_doorbell(bell);
  if (fd < 0) {
    if (!told_no_doorbell_.exchange(true, std::memory_order_relaxed))
      BYPASS_LOG_WARN("no doorbell: forked processes cannot wake this one, which looks every 10 ms instead");
    return;
  }
  int expected = -1;
  {
    const socket::Guard guard(shard_);  // if two threads come here, the name is that of the one that stays
    if (doorbell_fd_.compare_exchange_strong(expected, fd)) shard_.family().own().doorbell = bell;
  }
  expected == -1 ? wake() : socket::close_own(fd);
}

// The child calls this thread when it has joined the family. One that is killed before that is swept all the same.
void Progress::expect_child(int pid) {
  if (pid <= 0 || !runs() || !ports_.opened() || !shard_.owns_wires()) return;
  kin_.offer(static_cast<std::uint32_t>(pid));
  if (!child_expected_.exchange(true, std::memory_order_acq_rel)) wake();
}

void Progress::close_wake() {
  if (wake_fd_ < 0) return;
  own_descriptor(wake_fd_, false);
  socket::kernel->close(wake_fd_);
  wake_fd_ = -1;
}

void Progress::stop() {
  if (!running_.load(std::memory_order_acquire)) return;
  stopping_.store(true, std::memory_order_release);
  wake();
  if (!is_this_thread()) join_thread(thread_);
  close_wake();
  kin_.clear();
  running_.store(false, std::memory_order_release);
}

void Progress::end_in_handler(void (*last)(void*), void* argument) {
  constexpr int kLooks = 100;
  constexpr std::int64_t kLook = 10'000'000;  // ns
  if (!running_.load(std::memory_order_acquire)) return;
  last_call_ = last;
  last_argument_ = argument;
  stopping_.store(true, std::memory_order_release);
  wake();
  for (int i = 0; i < kLooks && ended_.load(std::memory_order_acquire) == 0; i++)
    os::futex_wait(reinterpret_cast<const std::uint32_t*>(&ended_), 0, kLook);
}

bool Progress::is_only_other() const {
  return runs() && all_threads() == 2;
}

bool Progress::pause() {
  if (!running_.load(std::memory_order_acquire) || want_ports_.load(std::memory_order_acquire)) return false;
  if (!is_only_other()) return false;  // then only the caller calls start(), stop() or wake() meanwhile
  vanish();
  return true;
}

// A thread is joined before it is gone: the kernel wakes the joiner while the thread ends. A tracer may delay that.
void Progress::vanish() {
  if (!running_.load(std::memory_order_acquire)) return;
  stop();
  constexpr timespec kLook{0, 50'000};
  const auto process = static_cast<long>(getpid());
  for (int i = 0; i < 20'000 && os::call(SYS_tgkill, process, task_.load(), 0) == 0; i++)
    os::call(SYS_nanosleep, os::address(&kLook), 0);
}

void Progress::want_ports() {
  if (!want_ports_.exchange(true, std::memory_order_acq_rel)) wake();
}

void Progress::wake() {
  const std::uint64_t one = 1;
  if (wake_fd_ >= 0) (void)!socket::kernel->write(wake_fd_, &one, sizeof one);
}

void Progress::run(void* argument) {
  auto& self = *static_cast<Progress*>(argument);
  socket::thread_signals.serves_the_end = true;
  self.task_.store(static_cast<int>(os::call(SYS_gettid)));
  self.loop();
  self.program_.end();
  if (self.last_call_ != nullptr) self.last_call_(self.last_argument_);
  self.ended_.store(1, std::memory_order_release);
  os::futex_wake(reinterpret_cast<const std::uint32_t*>(&self.ended_), INT_MAX);
}

bool Progress::is_this_thread() const {
  return task_.load(std::memory_order_relaxed) == static_cast<int>(os::gettid());
}

void Progress::loop() {
  while (!stopping_.load(std::memory_order_acquire)) {
    step();
    if (program_.any_left(shard_.clock().now())) continue;
    const bool exits = program_.exits();
    const int status = program_.status();
    program_.end();  // the process is about to end, and makes no further looks
    end_without_program(exits, status, before_exit_);
  }
}

void Progress::drain_wake() {
  std::uint64_t drained = 0;
  (void)!socket::kernel->read(wake_fd_, &drained, sizeof drained);
}

}  // namespace bypass::runtime
