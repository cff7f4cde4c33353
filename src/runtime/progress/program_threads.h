// ProgramThreads: whether the program has a thread left beside the library's own threads. These would keep alive a
// process, and its descriptors, that the kernel would have ended.
//
// It checks the program's first thread: seldom by default, once a second if a filter may kill only that thread
// (seccomp(2)), at once if the thread is known to end. Once it has ended, the others are counted. A sandbox takes /proc
// away (chroot) and forbids opening anything, so everything that a look needs is opened before. (From Linux 6.15 on, a
// pidfd of a first thread reports nothing while other threads live.) Only the progress thread calls these, except
// expect().
#pragma once

#include <atomic>
#include <cstdint>

#include "stack/time.h"

namespace bypass::runtime {

class ProgramThreads {
 public:
  /// To be called in a process that is about to get a progress thread, by the thread that makes it.
  void begin();
  void end();

  enum class End : std::uint8_t { kUnlikely, kByFilter, kNow };
  /// What may happen to the first thread. Any thread may call it; a weaker value than before changes nothing.
  void expect(End what);

  /// The longest sleep between two looks.
  [[nodiscard]] Duration longest_sleep() const;
  /// A system call or two if a look is due. False: no thread of the program is left.
  [[nodiscard]] bool any_left(Instant now);
  /// How the process must end then, as wait() reports it; 0 also if it is not known.
  [[nodiscard]] int status() const;
  /// Whether all threads may have ended as POSIX threads do: then the last one calls exit().
  [[nodiscard]] bool exits() const { return first_status() == 0; }

 private:
  [[nodiscard]] bool first_is_there() const;
  [[nodiscard]] int first_status() const;

  int tasks_fd_ = -1;  // /proc/self/task
  bool first_ended_ = false;
  bool others_lived_ = false;  // the program had other threads when the first had ended
  std::atomic<End> expected_{End::kUnlikely};
  Instant looked_{};
};

/// Ends the process as the program's last thread would have. `exits`: exit() is called (pthread_exit(3)) by a thread
/// that is made for it, and this returns. Otherwise the process ends with `status`; if that is an exit's, after
/// `before_exit`.
void end_without_program(bool exits, int status, void (*before_exit)());

}  // namespace bypass::runtime
