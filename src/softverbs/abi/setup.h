// Setup: the configuration of the software devices in this process, read at the first call that asks for devices.
#pragma once

#include "runtime/config.h"

namespace bypass::softverbs {

/// What BYPASS_SOFT and the settings beside it say. What is wrong with them has been said on standard error (or in
/// BYPASS_LOG_FILE); there are no devices then.
const runtime::Config& setup();

/// Says why something cannot be had as asked, and ends the program where BYPASS_STRICT is on.
void report(const char* text);

}  // namespace bypass::softverbs
