// How important a line of the log is. The log uses it, and so do backends.
#pragma once

#include <cstdint>

namespace bypass {

enum class LogLevel : std::uint8_t { kError, kWarn, kInfo, kDebug, kTrace };

}  // namespace bypass
