// The system calls that the main program makes by instructions of its own.
#pragma once

namespace bypass::preload {

/// To be called when the library is loaded, before the program's code runs. If the program is one of Go's, its calls
/// come to the library from now on, or the reason why they do not is reported.
void catch_raw_calls();

}  // namespace bypass::preload
