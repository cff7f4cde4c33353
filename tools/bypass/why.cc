// bypass why
#include <fmt/format.h>

#include <utility>

#include "command.h"
#include "describe.h"
#include "observe/reasons.h"

namespace bypass::tool {
namespace {

using observe::Snapshot;

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
  const observe::Listing listing = find_processes(options.pid);
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
