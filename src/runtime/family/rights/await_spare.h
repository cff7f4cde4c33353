// The spare (spare.h) between two states: a worker copies into it, and a driver for it starts or ends.
#pragma once

#include <cstdint>

#include "runtime/family/arena.h"

namespace bypass::runtime {

/// Whether a driver serves the workers, none is there, or one neither serves nor ends within some seconds.
enum class Driving : std::uint8_t { kServes, kNone, kNeither };

/// Waits until it is clear whether the spare holds a family, and whether a driver serves it. A driver serves only a
/// settled copy. Then the copy is not asked: a hostile worker could write there that it is not settled, and later
/// workers would stay in the old arena.
/// Where no driver serves, and the spare holds no family that a worker can enter, `spare.filled` is false afterwards.
Driving await_spare(arena::Spare& spare);

}  // namespace bypass::runtime
