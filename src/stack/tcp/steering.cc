#include "stack/tcp/steering.h"

#include <utility>

#include "stack/frame/flow_log.h"
#include "stack/frame/wire.h"
#include "stack/tcp/core.h"

namespace bypass::tcp {
namespace {

FlowSpec flow_of(const IpAddress& local, const IpAddress& remote, const FlowNode& flow) {
  return {wire::kProtocolTcp, {local, flow.local_port}, {remote, flow.remote_port}};
}

FlowSpec flow_of(const Tcb& tcb) {
  return flow_of(tcb.path.local, tcb.path.remote, tcb.flow);
}

bool is_covered(const Core& core, const IpAddress& local, const FlowNode& flow) {
  return core.ports.conflicting({local, flow.local_port}) != nullptr;
}

bool matches(const Listener& listener, const IpAddress& local, const FlowNode& flow) {
  return flow.local_port == listener.local.port && (listener.local.address.is_any() || listener.local.address == local);
}

void steer(Core& core, Tcb& tcb) {
  if (core.network.flows().note(flow_of(tcb), true)) tcb.set(kSteered);
}

void steer(Core& core, TimeWait& tw) {
  tw.steered = core.network.flows().note(flow_of(tw.local, tw.remote, tw.flow), true);
}

// Gives rules to the uncovered connections that match the listener; null: to all uncovered connections.
void steer_uncovered(Core& core, const Listener* listener) {
  core.tcbs.for_each([&](Tcb& tcb) {
    const bool wanted = tcb.has(kInFlowTable) && !tcb.has(kSteered) && core.network.is_steered(tcb.path.port);
    if (!wanted || (listener != nullptr && !matches(*listener, tcb.path.local, tcb.flow))) return;
    if (!is_covered(core, tcb.path.local, tcb.flow)) steer(core, tcb);
  });
  core.time_waits.slab.for_each([&](TimeWait& tw) {
    if (tw.steered || (listener != nullptr && !matches(*listener, tw.local, tw.flow))) return;
    if (!is_covered(core, tw.local, tw.flow)) steer(core, tw);
  });
}

}  // namespace

void steer_connection(Env& env, Tcb& tcb) {
  if (!env.core.network.is_steered(tcb.path.port)) [[likely]]
    return;
  if (!is_covered(env.core, tcb.path.local, tcb.flow)) steer(env.core, tcb);
}

void unsteer_connection(Env& env, Tcb& tcb) {
  if (!tcb.has(kSteered)) [[likely]]
    return;
  tcb.clear(kSteered);
  env.core.network.flows().note_end(flow_of(tcb));
}

void steer_time_wait(Env& env, TimeWait& tw) {
  steer(env.core, tw);
}

void unsteer_time_wait(Env& env, TimeWait& tw) {
  if (!tw.steered) return;
  tw.steered = false;
  env.core.network.flows().note_end(flow_of(tw.local, tw.remote, tw.flow));
}

void steer_listener(Core& core, Listener& listener) {
  listener.steered = core.network.flows().note({wire::kProtocolTcp, listener.local, {}}, true);
}

void unsteer_listener(Env& env, Listener& listener) {
  FlowLog& flows = env.core.network.flows();
  if (!flows.active()) return;
  steer_uncovered(env.core, &listener);
  if (std::exchange(listener.steered, false)) flows.note_end({wire::kProtocolTcp, listener.local, {}});
}

void steer_all(Env& env) {
  Core& core = env.core;
  core.listeners.for_each([&](Listener& listener) { steer_listener(core, listener); });
  core.tcbs.for_each([](Tcb& tcb) { tcb.clear(kSteered); });
  core.time_waits.slab.for_each([](TimeWait& tw) { tw.steered = false; });
  steer_uncovered(core, nullptr);
}

void for_each_steered(const Core& core, void (*each)(void* argument, const FlowSpec&), void* argument) {
  core.listeners.for_each([&](const Listener& listener) {
    if (listener.steered) each(argument, {wire::kProtocolTcp, listener.local, {}});
  });
  core.tcbs.for_each([&](const Tcb& tcb) {
    if (tcb.has(kSteered)) each(argument, flow_of(tcb));
  });
  core.time_waits.slab.for_each([&](const TimeWait& tw) {
    if (tw.steered) each(argument, flow_of(tw.local, tw.remote, tw.flow));
  });
}

}  // namespace bypass::tcp
