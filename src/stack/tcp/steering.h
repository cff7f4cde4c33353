// Steering (see flow_log.h): which of TCP's flows a device that lets the kernel keep the rest has to be told.
//
// A listener has one rule, which covers the connections that come in by it. Others have one each: those that we began,
// and those whose listener has gone.
#pragma once

#include "stack/frame/port.h"

namespace bypass::tcp {

struct Core;
struct Env;
struct Listener;
struct Tcb;
struct TimeWait;

/// A connection that is new in the flow table, or about to leave it.
void steer_connection(Env& env, Tcb& tcb);
void unsteer_connection(Env& env, Tcb& tcb);
/// What is left of a connection that had a rule.
void steer_time_wait(Env& env, TimeWait& tw);
void unsteer_time_wait(Env& env, TimeWait& tw);
void steer_listener(Core& core, Listener& listener);
/// A listener that has left the port table: what it covered, and no other one does, has rules of its own from now on.
void unsteer_listener(Env& env, Listener& listener);
/// To a device that knows nothing yet: everything that is there.
void steer_all(Env& env);
/// Every flow that a device has been told of, or is about to be.
void for_each_steered(const Core& core, void (*each)(void* argument, const FlowSpec&), void* argument);

}  // namespace bypass::tcp
