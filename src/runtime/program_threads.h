// ProgramThreads: whether a thread of the program is left beside the library's own, which keep a process alive, and its
// descriptors open, that the kernel would have ended.
//
// The program's first thread is looked at: seldom by itself, once a second where a filter may kill it alone
// (seccomp(2)), at once where it is said to end. Once it has ended the others are counted. A sandbox takes /proc away
// (chroot) and lets nobody open anything, so what a look needs is opened before. (A pidfd of a first thread tells
// nothing from Linux 6.15 on while other threads live.) The progress thread's, but for expect().
#pragma once

#include <atomic>
#include <cstdint>

#include "stack/time.h"

namespace bypass::runtime {

class ProgramThreads {
 public:
  /// In a process that is about to get a progress thread, by the thread that makes it.
  void begin();
  void end();

  enum class End : std::uint8_t { kUnlikely, kByFilter, kNow };
  /// What may become of the first thread. Any thread; less than was said before changes nothing.
  void expect(End what);

  /// Of sleeps, between two looks.
  [[nodiscard]] Duration longest_sleep() const;
  /// A system call or two where a look is due. False: no thread of the program's is left.
  [[nodiscard]] bool any_left(Instant now);
  /// How the process ends then, as wait() has it; 0, too, where nobody can tell.
  [[nodiscard]] int status() const;
  /// Whether all threads may have ended as POSIX threads do: the last one calls exit().
  [[nodiscard]] bool exits() const { return first_status() == 0; }

 private:
  [[nodiscard]] bool first_is_there() const;
  [[nodiscard]] int first_status() const;

  int tasks_fd_ = -1;  // /proc/self/task
  bool first_ended_ = false;
  bool others_lived_ = false;  // when it had ended
  std::atomic<End> expected_{End::kUnlikely};
  Instant looked_{};
};

/// Ends the process as the last thread of the program would have. `exits`: exit() is called (pthread_exit(3)), by a
/// thread that is made for it, and this returns. Else it ends with `status`, after `before_exit` where it is an exit's.
void end_without_program(bool exits, int status, void (*before_exit)());

}  // namespace bypass::runtime
