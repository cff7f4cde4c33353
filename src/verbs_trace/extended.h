// Verbs that go through pointers in a device's extended context (verbs_context): extended queues, XRC domains, flows.
#pragma once

#include <infiniband/verbs.h>

namespace bypass::verbs_trace {

void trace_extended(verbs_context& context);

}  // namespace bypass::verbs_trace
