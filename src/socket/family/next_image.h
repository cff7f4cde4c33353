// What exec means for the objects of a process that goes on with them in its next image (runtime/life/next_image.h).
// Tests: tests/system/executed.py
#pragma once

#include <cstdint>
#include <span>

#include "socket/file.h"

namespace bypass::socket {

/// What exec does with an object whose number it leaves open.
enum class Inherited : std::uint8_t {
  kNot,     // the next image finds what the kernel has
  kBeside,  // it goes on with the object, if it goes on with one on the wire
  kOnWire,
};
/// Takes the lock.
[[nodiscard]] Inherited inherited_as(const File& file);

/// From here on the other threads of this process stop at their next call on an object. Received bytes that lie in a
/// port's memory, which the next image does not have, are moved to the arena. False: there is no memory for them.
/// Takes the lock.
[[nodiscard]] bool leave_to_next_image();
/// The exec has failed: the threads go on.
void go_on_in_this_image();

struct NumberedFile {
  int number;
  File* file;
};
/// In the next image, which has the slot of the one before: undoes what threads were doing that are gone, takes over
/// the references of the numbers, and gives up the others, as close() does. Takes the lock.
void take_up_from_last_image(std::span<const NumberedFile> numbers);

}  // namespace bypass::socket
