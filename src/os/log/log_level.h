// How important a line of the log is: the log's, and what backends say to it.
#pragma once

#include <cstdint>

namespace bypass {

enum class LogLevel : std::uint8_t { kError, kWarn, kInfo, kDebug, kTrace };

}  // namespace bypass
