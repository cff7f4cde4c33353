// RLIMIT_AS as the program sets and sees it: without the address space that the library uses.
#pragma once

namespace bypass::preload {

/// To be called before an exec: the next program must have the limit that this one has set. If the exec fails, it is
/// undone (if the process may not raise the hard limit, it keeps the lower one). A child of posix_spawn has the larger
/// limit, because it could not be made under the other.
void give_address_limit_back();
void hide_in_address_limit();

}  // namespace bypass::preload
