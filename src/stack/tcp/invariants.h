// What always holds for a connection between two calls. The simulator checks it after each event, and a rebuild before
// it keeps a connection.
#pragma once

#include "stack/tcp/tcb.h"

namespace bypass::tcp {

/// The rule that does not hold, or null.
[[nodiscard]] const char* violated(const Tcb& tcb);
}  // namespace bypass::tcp
