// What the settings say to the stack. What they say to the socket layer is budgets_of() in runtime/process_graph.h.
#pragma once

#include "config/config.h"
#include "stack/stack.h"

namespace bypass::runtime {

StackConfig stack_config(const Config& config);

}  // namespace bypass::runtime
