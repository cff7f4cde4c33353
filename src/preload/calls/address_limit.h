// RLIMIT_AS, as the program sets and sees it: without what the library itself takes of the address space.
#pragma once

namespace bypass::preload {

/// The next image is to have the limit that the program has set: before an exec, and taken back where that fails (who
/// may not raise the hard limit again then keeps it). posix_spawn's child has the larger one: it could not be made
/// under the other.
void give_address_limit_back();
void hide_in_address_limit();

}  // namespace bypass::preload
