// Where the program's caught system calls arrive (entry.cc), and who answers them (answer.cc).
//
// The calling code has a stack of a few hundred bytes. So each thread has a stack of ours for them, made at its first
// call. Only one call of a thread is on it at a time: a handler's that interrupts one goes to the kernel.
#pragma once

#include <cstdint>

#include "preload/calls/raw.h"

namespace bypass::preload::raw {

/// What the program has in its registers.
struct RawCall {
  long number;
  RawArguments arguments;
  std::uintptr_t stack;  // its stack pointer
};

/// In %rax and %rdx.
struct Answer {
  long result;  // the kernel's form: negative error numbers
  long made;  // bytes by which the program goes on further: those of its system call, or 0, if it must make that itself
};
inline constexpr Answer kMakeIt{0, 0};
inline constexpr long kMade = 2;  // the bytes of the instruction

/// The caught calls' way in. To be jumped to only by a stub (patch.cc).
const void* entry();

/// The thread's stack of ours is unmapped when the thread ends. To be called on that stack.
void note_stack_of_thread();
/// To be called once, before any call is caught.
void prepare_stacks();

}  // namespace bypass::preload::raw
