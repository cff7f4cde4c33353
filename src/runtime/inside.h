// Inside: marks a scope whose libc calls are ours (a driver's, the plugin loader's), not the program's.
// The mark itself is the shim's, header only.
#pragma once

#include "preload/inside.h"

namespace bypass::runtime {

using Inside = preload::Inside;

}  // namespace bypass::runtime
