// When the process's ports are opened, and what is said then. open_ports() itself is in runtime/process_graph.h.
#pragma once

namespace bypass::runtime {

class PortSet;

/// Reports the outcome when every port has been tried. Any thread may be the one that tried: also the progress thread.
void after_opening(const PortSet& ports);

/// The answers to Policy::need_wire, Policy::await_wire and Policy::tell_on_wire (socket/policy.h).
bool need_wire();
void await_wire();
void want_wire();

}  // namespace bypass::runtime
