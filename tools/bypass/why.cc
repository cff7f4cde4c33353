// bypass why
#include <fmt/format.h>
#include <netinet/in.h>

#include <algorithm>
#include <set>
#include <utility>

#include "command.h"
#include "describe.h"
#include "kernel_sockets.h"
#include "observe/reasons.h"

namespace bypass::tool {
namespace {

using observe::Snapshot;

using Ends = std::pair<std::pair<IpAddress, std::uint16_t>, std::pair<IpAddress, std::uint16_t>>;
Ends ends_of(const observe::SocketRecord& s) {
  return {{s.local_address, s.local_port}, {s.remote_address, s.remote_port}};
}

bool may_share_memory(const Snapshot& process) {
  return std::none_of(process.settings.begin(), process.settings.end(),
                      [](const auto& setting) { return setting.key == "local" && setting.value == "off"; });
}

bool is_kernels_connection(const observe::SocketRecord& s) {
  return s.path == static_cast<std::uint8_t>(observe::SocketPath::kKernel) && s.protocol == IPPROTO_TCP &&
         s.state == static_cast<std::uint8_t>(observe::SocketState::kEstablished);
}

bool has_reason(const Snapshot& process, const observe::SocketRecord& s) {
  return std::any_of(process.whys.begin(), process.whys.end(), [&s](const observe::WhyRecord& why) {
    return why.address == s.remote_address && why.port == s.remote_port;
  });
}

/// Connections of the kernel's with both ends on libbypass, of which nobody has said anything yet: they have not looked
/// for shared memory so far.
void add_waiting(observe::Listing& listing) {
  std::set<Ends> ends;
  observe::Listing everybody = read_processes(0);
  add_kernel_sockets(everybody.processes);
  for (const Snapshot& process : everybody.processes) {
    if (!may_share_memory(process)) continue;
    for (const auto& entry : process.sockets)
      if (is_kernels_connection(entry.record)) ends.insert(ends_of(entry.record));
  }
  add_kernel_sockets(listing.processes);
  for (Snapshot& process : listing.processes) {
    for (const auto& entry : process.sockets) {
      const observe::SocketRecord& s = entry.record;
      const auto [local, remote] = ends_of(s);
      if (!ends.contains({local, remote}) || !ends.contains({remote, local}) || has_reason(process, s)) continue;
      observe::WhyRecord why{};
      why.reason = static_cast<std::uint16_t>(observe::Reason::kLocalAfter);
      why.protocol = s.protocol;
      why.fd = s.fd;
      why.address = s.remote_address, why.port = s.remote_port;
      why.count = 1;
      process.whys.push_back(why);
    }
  }
}

/// What is there, and leads nowhere.
void add_dark_ports(Snapshot& process) {
  for (const observe::PortRecord& port : process.ports) {
    if (port.open == 0 || port.link_up != 0) continue;
    observe::WhyRecord why{};
    why.reason = static_cast<std::uint16_t>(observe::Reason::kLinkDown);
    why.fd = -1;
    why.count = 1;
    observe::set_text(why.detail, port_name(port).c_str());
    process.whys.push_back(why);
  }
}

Json whys_json(const Snapshot& process) {
  Json json = process_json(process);
  json["whys"] = Json::array();
  for (const auto& why : process.whys) json["whys"].push_back(why_json(why));
  json["whys_lost"] = process.whys_lost;
  return json;
}

std::string sentence(std::uint16_t reason, const std::string& detail) {
  const std::string text = observe::reason_info(reason).sentence;
  return detail.empty() ? text : text + ": " + detail;
}

void print_whys(const Snapshot& process) {
  std::vector<std::vector<std::string>> rows = {{"TIMES", "LAST FD", "PROTO", "ADDRESS", "REASON", "WHAT"}};
  for (const auto& why : process.whys)
    rows.push_back({fmt::format("{}", why.count), why.fd < 0 ? "-" : fmt::format("{}", why.fd),
                    protocol_text(why.protocol), endpoint_text(why.address, why.port),
                    observe::reason_info(why.reason).name, sentence(why.reason, field_text(why.detail))});
  print_table(rows, "  ");
  if (process.whys_lost != 0) fmt::print("  and {} older entries that had to make room\n", process.whys_lost);
}

/// One line for all that have nothing to tell.
void print_quiet(const std::vector<const Snapshot*>& quiet, bool others) {
  std::string names;
  for (const Snapshot* process : quiet)
    names += fmt::format("{}{} (pid {})", names.empty() ? "" : ", ", process->command, process->pid);
  if (!quiet.empty()) fmt::print("{}nothing was left to the kernel: {}\n", others ? "\n" : "", names);
}

void print_text(const observe::Listing& listing) {
  std::vector<const Snapshot*> quiet;
  bool printed = false;
  for (const Snapshot& process : listing.processes) {
    if (process.whys.empty()) {
      quiet.push_back(&process);
      continue;
    }
    if (std::exchange(printed, true)) fmt::print("\n");
    print_process_line(process);
    fmt::print("\n");
    print_whys(process);
  }
  print_quiet(quiet, printed);
}

}  // namespace

int run_why(const ShowOptions& options) {
  observe::Listing listing = find_processes(options.pid);
  add_waiting(listing);
  for (Snapshot& process : listing.processes) add_dark_ports(process);
  if (options.json) {
    Json processes = Json::array();
    for (const Snapshot& process : listing.processes) processes.push_back(whys_json(process));
    fmt::print("{}\n", Json{{"processes", processes}}.dump(2));
  } else {
    print_text(listing);
  }
  return listing.processes.empty() ? kNothing : kOk;
}

}  // namespace bypass::tool
