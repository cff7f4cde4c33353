// NextImage: a process goes on with its arena, and with its sockets under their numbers, in the image that it executes.
//
// The image that executes gives up the ports, stops its other threads, and leaves a heritage (heritage.h). Its slot in
// the family stays, and the references that it counts: other processes see one process that lives. The next image maps
// the same memory at the same addresses when the library loads. It opens the ports, or follows the process that has
// them. If the exec fails, everything goes on where it was.
//
// docs/fork.md tells which programs are handed sockets.
#pragma once

#include <span>

#include "runtime/life/heritage.h"

namespace bypass::runtime {

// --- In the image that executes

/// Why this process cannot hand sockets on now; null: it can.
[[nodiscard]] const char* why_not_hand_on();
/// From here on to take_back(), or to the exec, the other threads of the program stop at their next call on a socket.
/// Returns the number of the heritage, which exec does not close; negative: nothing has changed.
[[nodiscard]] int hand_on(std::span<const HandedNumber> numbers);
/// The exec has failed.
void take_back();
/// The environment that the library was loaded with: its variables that begin with BYPASS_.
[[nodiscard]] const char* const* environment_at_load();

// --- In the next one

/// Whether the image before this one has left anything. start() takes it up.
[[nodiscard]] bool has_heritage();
/// The process does not go on with what was left: for its family it has ended. Nothing where nothing was left.
void refuse_heritage(const char* why);
/// To be called when start() has returned true and has not refused it: calls `enter` for each number that names an
/// object, and gives up what the exec has closed.
void take_numbers(void (*enter)(int number, socket::File* file));

// --- Private to src/runtime/life

/// Called when the library loads: reads what the variable names. True: the addresses are reserved as they were.
bool read_heritage_at_load(char** environment);
/// Called when the environment has been copied: takes out of it what only the library was to see.
void tidy_environment(char** environment);
[[nodiscard]] const Heritage* heritage();
/// Another image of the same configuration has left it. Text: why not.
[[nodiscard]] const char* why_not_take_up();

}  // namespace bypass::runtime
