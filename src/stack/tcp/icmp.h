// ICMP errors about a connection (RFC 5927, RFC 5461).
#pragma once

#include "stack/tcp/core.h"

namespace bypass::tcp {

void take_icmp(Env& env, const IcmpError& error);

}  // namespace bypass::tcp
