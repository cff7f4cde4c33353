// Steering (see flow_log.h): which TCP flows a device must be told of, if it leaves all others to the kernel.
//
// A listener has one rule, which covers the connections that it accepts. Others have one rule each: those that we
// opened, and those whose listener has gone.
#pragma once

#include "stack/frame/port.h"

namespace bypass::tcp {

struct Core;
struct Env;
struct Listener;
struct Tcb;
struct TimeWait;

/// The connection is new in the flow table, or about to leave it.
void steer_connection(Env& env, Tcb& tcb);
void unsteer_connection(Env& env, Tcb& tcb);
/// The TimeWait of a connection that had a rule.
void steer_time_wait(Env& env, TimeWait& tw);
void unsteer_time_wait(Env& env, TimeWait& tw);
void steer_listener(Core& core, Listener& listener);
/// The listener has left the port table: connections that no other listener covers get rules of their own.
void unsteer_listener(Env& env, Listener& listener);
/// Notes everything for a device that knows nothing yet.
void steer_all(Env& env);
/// Calls `each` for every flow that a device was told of, or will be.
void for_each_steered(const Core& core, void (*each)(void* argument, const FlowSpec&), void* argument);

}  // namespace bypass::tcp
