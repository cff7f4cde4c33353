// bypass why
#include <fmt/format.h>
#include <netinet/in.h>

#include <algorithm>
#include <map>
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

/// The users that own an end, among the processes with libbypass. Two users' processes share no memory.
using Users = std::map<Ends, std::set<std::uint32_t>>;

bool may_share_memory(const Snapshot& process) {
  return std::none_of(process.settings.begin(), process.settings.end(),
                      [](const auto& setting) { return setting.key == "local" && setting.value == "off"; });
}
/// Whether the settings name a port. A port that could not be opened is not among process.ports.
bool names_port(const Snapshot& process) {
  return std::any_of(process.settings.begin(), process.settings.end(),
                     [](const auto& setting) { return setting.key == "port" && setting.value != "none"; });
}

using observe::Reason;
using observe::SocketRecord;

bool is_kernels(const SocketRecord& s) {
  return s.path == static_cast<std::uint8_t>(observe::SocketPath::kKernel) && s.local_port != 0;
}
bool is_connected(const SocketRecord& s) {
  return s.protocol == IPPROTO_TCP && s.remote_port != 0;
}

/// Whether the record speaks of the listener that accepted `s`. What the ends of connections could not agree on is
/// recorded once for a listener's address, with the count and the last connection's number. It is shown for all
/// connections that were accepted there.
bool is_of_its_listener(const observe::WhyRecord& why, const SocketRecord& s) {
  return why.reason == static_cast<std::uint16_t>(Reason::kNoSharedMemory) && is_connected(s) && why.port != 0 &&
         why.port == s.local_port && (why.address == s.local_address || why.address.is_any());
}

bool has_reason(const Snapshot& process, const SocketRecord& s) {
  return std::any_of(process.whys.begin(), process.whys.end(), [&s](const observe::WhyRecord& why) {
    return (why.address == s.remote_address && why.port == s.remote_port && why.port != 0) ||
           (!is_connected(s) && why.address == s.local_address && why.port == s.local_port) ||
           is_of_its_listener(why, s);
  });
}

/// The reason for a socket about which the process has recorded nothing, because it decided nothing. It is derived from
/// the socket itself.
Reason plain_reason(const Snapshot& process, const SocketRecord& s, const Users& users) {
  const bool within = s.remote_address.is_loopback() || s.local_address == s.remote_address;
  if (is_connected(s) && within && may_share_memory(process)) {
    const auto [local, remote] = ends_of(s);
    const auto is_of_user = [&](const Ends& ends) {
      const auto found = users.find(ends);
      return found != users.end() && found->second.contains(process.uid);
    };
    return is_of_user({local, remote}) && is_of_user({remote, local}) ? Reason::kLocalAfter : Reason::kPeerPlain;
  }
  if (process.ports.empty() && !names_port(process)) return Reason::kNoPortConfigured;
  if ((is_connected(s) ? s.remote_address : s.local_address).is_loopback()) return Reason::kLoopback;
  return process.ports.empty() ? Reason::kPortUnavailable : Reason::kNone;
}

observe::WhyRecord why_of(const SocketRecord& s, Reason reason) {
  observe::WhyRecord why{};
  why.reason = static_cast<std::uint16_t>(reason);
  why.protocol = s.protocol;
  why.fd = s.fd;
  why.address = is_connected(s) ? s.remote_address : s.local_address;
  why.port = is_connected(s) ? s.remote_port : s.local_port;
  why.count = 1;
  return why;
}

/// Adds the records one by one, but many with the same reason as one.
void add_grouped(Snapshot& process, const std::vector<observe::WhyRecord>& whys) {
  constexpr std::size_t kMany = 8;
  const auto kind_of = [](const observe::WhyRecord& why) { return std::pair(why.reason, why.protocol); };
  std::map<std::pair<std::uint16_t, std::uint8_t>, std::size_t> counts, seen;
  for (const observe::WhyRecord& why : whys) counts[kind_of(why)]++;
  for (const observe::WhyRecord& why : whys) {
    const std::size_t count = counts[kind_of(why)];
    if (++seen[kind_of(why)] < count && count > kMany) continue;  // the last one stands for the others
    process.whys.push_back(why);
    if (count <= kMany) continue;
    process.whys.back().count = count;
    process.whys.back().address = {}, process.whys.back().port = 0;
  }
}

/// For the kernel's connections that may move to shared memory.
Users users_within(const std::vector<Snapshot>& processes) {
  Users users;
  for (const Snapshot& process : processes) {
    if (!may_share_memory(process)) continue;
    for (const auto& entry : process.sockets)
      if (is_kernels(entry.record) && is_connected(entry.record)) users[ends_of(entry.record)].insert(process.uid);
  }
  return users;
}

/// Adds the kernel's sockets about which the process has recorded nothing. `all`: every process is listed. Otherwise
/// one process is listed, and the other ends of its connections may be other processes'.
void add_plain(observe::Listing& listing, bool all) {
  observe::Listing others = all ? observe::Listing{} : read_processes(0);
  add_kernel_sockets(others.processes);
  add_kernel_sockets(listing.processes);
  const Users users = users_within(all ? listing.processes : others.processes);
  for (Snapshot& process : listing.processes) {
    std::vector<observe::WhyRecord> whys;
    for (const auto& entry : process.sockets) {
      const SocketRecord& s = entry.record;
      if (!is_kernels(s) || has_reason(process, s)) continue;
      if (const Reason reason = plain_reason(process, s, users); reason != Reason::kNone)
        whys.push_back(why_of(s, reason));
    }
    add_grouped(process, whys);
  }
}

void add_port(Snapshot& process, const observe::PortRecord& port, Reason reason) {
  observe::WhyRecord why{};
  why.reason = static_cast<std::uint16_t>(reason);
  why.fd = -1;
  why.count = 1;
  observe::set_text(why.detail, port_name(port).c_str());
  process.whys.push_back(why);
}

/// Adds the ports that were opened and have no link, or are slow.
void add_ports(Snapshot& process) {
  for (const observe::PortRecord& port : process.ports) {
    if (port.open == observe::kPortGone)
      add_port(process, port, Reason::kCardGone);
    else if (port.open != 0 && port.link_up == 0)
      add_port(process, port, Reason::kLinkDown);
    if (port.open == observe::kPortLookedAt) add_port(process, port, Reason::kNoInterrupts);
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

/// Prints one line for all processes that have nothing to tell.
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
  add_plain(listing, options.pid == 0);
  for (Snapshot& process : listing.processes) add_ports(process);
  if (options.json) {
    Json processes = Json::array();
    for (const Snapshot& process : listing.processes) processes.push_back(whys_json(process));
    print_json(Json{{"processes", processes}});
  } else {
    print_text(listing);
  }
  return listing.processes.empty() ? kNothing : kOk;
}

}  // namespace bypass::tool
