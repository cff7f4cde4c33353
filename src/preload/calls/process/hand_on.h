// Hand on: an exec after which the next image goes on with the sockets of ours that it inherits, under their numbers
// (runtime/life/next_image.h).
#pragma once

namespace bypass::preload {

struct HandingOn {
  /// For the exec, with what the next image needs; null: nothing is handed on.
  char* const* environment = nullptr;
  const char* why_not = nullptr;  // there is something that cannot be
  bool fails = false;             // the kernel refuses the exec: everything stays as it is
};

/// `file`: the program's path; "": not known.
HandingOn hand_on(const char* file, char* const* environment);
/// The exec has failed. False: nothing was handed on.
bool take_back();
/// Called when the library loads: this image goes on with what the one before has left.
void take_up_numbers();

}  // namespace bypass::preload
