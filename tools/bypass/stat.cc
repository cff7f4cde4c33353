// bypass stat
#include <fmt/format.h>

#include <algorithm>

#include "command.h"
#include "describe.h"

namespace bypass::tool {
namespace {

using observe::Snapshot;
using observe::SocketPath;

Json stat_json(const Snapshot& process, bool all) {
  Json json = process_json(process);
  json["ports"] = Json::array();
  for (const auto& port : process.ports) json["ports"].push_back(port_json(port));
  json["sockets"] = Json::array();
  for (const auto& socket : process.sockets)
    if (socket.record.of_stack == 0) json["sockets"].push_back(socket_json(socket.record));
  json["sockets_not_listed"] = process.sockets_missing;
  json["counters"] = Json::object();
  for (const auto& counter : process.counters)
    if (all || counter.value != 0) json["counters"][counter.name] = counter.value;
  return json;
}

void print_ports(const Snapshot& process) {
  if (process.ports.empty()) {
    fmt::print("\n  no port\n");
    return;
  }
  std::vector<std::vector<std::string>> rows = {{"PORT", "LINK", "ADDRESS", "MTU", "RX FRAMES", "RX BYTES", "RX LOST",
                                                 "TX FRAMES", "TX BYTES", "TX LOST", "REOPENED"}};
  for (const auto& port : process.ports)
    rows.push_back({port_name(port),
                    process.follows()                 ? fmt::format("of pid {}", process.port_owner)
                    : port.open == 0                  ? "not open"
                    : port.open == observe::kPortGone ? "gone"
                    : port.link_up != 0               ? "up"
                                                      : "down",
                    fmt::format("{}", fmt::join(port_addresses(port), ",")), fmt::format("{}", port.mtu),
                    fmt::format("{}", port.rx_frames), fmt::format("{}", port.rx_bytes),
                    fmt::format("{}", port.rx_dropped + port.rx_no_buffer), fmt::format("{}", port.tx_frames),
                    fmt::format("{}", port.tx_bytes), fmt::format("{}", port.tx_dropped),
                    fmt::format("{}", port.reopened)});
  fmt::print("\n");
  print_table(rows, "  ");
}

std::vector<std::string> socket_row(const observe::SocketRecord& s) {
  const bool connection = is_connection(s), by_tcp = !is_beside_tcp(s);
  const auto counted = [connection](std::uint64_t count) { return connection ? fmt::format("{}", count) : "-"; };
  return {s.fd < 0 ? "-" : fmt::format("{}", s.fd),
          protocol_text(s.protocol),
          observe::state_name(s.state),
          observe::path_name(s.path),
          endpoint_text(s.local_address, s.local_port),
          endpoint_text(s.remote_address, s.remote_port),
          counted(s.rx_bytes),
          counted(s.tx_bytes),
          fmt::format("{}", s.rx_queue),
          fmt::format("{}", s.tx_queue),
          counted(s.retransmits),
          connection && by_tcp && s.srtt_us != 0 ? fmt::format("{}", s.srtt_us) : "-",
          by_tcp && s.cwnd != 0 ? fmt::format("{}", s.cwnd) : "-"};
}

void print_sockets(const Snapshot& process) {
  fmt::print("\n");
  std::vector<std::vector<std::string>> rows = {{"FD", "PROTO", "STATE", "PATH", "LOCAL", "REMOTE", "RX BYTES",
                                                 "TX BYTES", "RXQ", "TXQ", "RETRANS", "SRTT µs", "CWND"}};
  for (const auto& socket : process.sockets)
    if (socket.record.of_stack == 0) rows.push_back(socket_row(socket.record));
  if (rows.size() == 1) {
    fmt::print("  no socket\n");
  } else {
    print_table(rows, "  ");
  }
  if (process.sockets_missing != 0) fmt::print("  and {} more that found no place here\n", process.sockets_missing);
}

void print_counters(const Snapshot& process, bool all) {
  if (process.follows()) {
    fmt::print("\n  the counters are the family's: see pid {}\n", process.port_owner);
    return;
  }
  std::vector<std::vector<std::string>> rows = {{"COUNTER", "VALUE", "UNIT"}};
  for (const auto& counter : process.counters)
    if (all || counter.value != 0) rows.push_back({counter.name, fmt::format("{}", counter.value), counter.unit});
  if (rows.size() == 1) return;
  fmt::print("\n");
  print_table(rows, "  ");
}

}  // namespace

int run_stat(const ShowOptions& options) {
  const observe::Listing listing = find_processes(options.pid);
  if (options.json) {
    Json processes = Json::array();
    for (const Snapshot& process : listing.processes) processes.push_back(stat_json(process, options.all));
    print_json(Json{{"processes", processes}});
  } else {
    for (const Snapshot& process : listing.processes) {
      if (&process != &listing.processes.front()) fmt::print("\n");
      print_process_line(process);
      print_ports(process);
      print_sockets(process);
      print_counters(process, options.all);
    }
  }
  return listing.processes.empty() ? kNothing : kOk;
}

}  // namespace bypass::tool
