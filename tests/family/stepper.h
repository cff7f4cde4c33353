// Stepper: ends this process at its n-th instruction from now, counting those that `counts` says count.
//
// The processor's trap flag raises SIGTRAP behind every instruction; the handler counts and, in the end, sends
// SIGKILL. A place of death is a number, so that a failing one can be had again.
#pragma once

#include <csignal>
#include <cstdint>

#include "os/os.h"

namespace bypass::test {

class Stepper {
 public:
  /// `counts` is called in a signal handler behind each instruction.
  static void die_after(std::uint64_t instructions, bool (*counts)()) {
    left() = instructions;
    predicate() = counts;
    struct sigaction action {};
    action.sa_handler = on_step;
    sigaction(SIGTRAP, &action, nullptr);
#if defined(__x86_64__)
    // Below the red zone.
    asm volatile("lea -128(%%rsp), %%rsp\n pushfq\n orq $0x100, (%%rsp)\n popfq\n lea 128(%%rsp), %%rsp" ::
                     : "cc", "memory");
#else
#error "single steps of this machine are not known"
#endif
  }

  /// How many it would still have lived.
  static std::uint64_t remaining() {
    return left();
  }

 private:
  static std::uint64_t& left() {
    static std::uint64_t value;
    return value;
  }
  static bool (*&predicate())() {
    static bool (*value)();
    return value;
  }
  static void on_step(int) {
    if (!predicate()() || --left() != 0) return;
    os::kill(os::getpid(), SIGKILL);
  }
};

}  // namespace bypass::test
