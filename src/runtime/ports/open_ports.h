// When the process's ports are opened, and what is said then. open_ports() itself is in runtime/process_graph.h.
#pragma once

namespace bypass::runtime {

class PortSet;

/// Reports the outcome when every port has been tried. Any thread may be the one that tried: also the progress thread.
void after_opening(const PortSet& ports);

/// The answers to Policy::open_wire, Policy::open_wire_for_wait and Policy::ask_for_wire (socket/policy.h).
bool open_wire();
void open_wire_for_wait();
void ask_for_wire();

}  // namespace bypass::runtime
