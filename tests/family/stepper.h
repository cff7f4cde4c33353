// Stepper: ends this process at its n-th instruction from now on. Only instructions for which `counts` returns true
// count.
//
// The processor's trap flag raises SIGTRAP after every instruction. The handler counts, and sends SIGKILL in the end.
// So a place of death is a number, and a failing one can be repeated.
#pragma once

#include <csignal>
#include <cstdint>

#include "os/os.h"

namespace bypass::test {

class Stepper {
 public:
  /// `counts` is called in a signal handler after each instruction.
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

  /// How many instructions were left.
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
