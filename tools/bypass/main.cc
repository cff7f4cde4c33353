// bypass: what the processes that use libbypass are doing, why some of their sockets do not, and how they
// are configured.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "command.h"
#include "config/settings_text.h"

namespace {

using namespace bypass::tool;

/// Empty: the word is a pid.
std::string pid_problem(const std::string& word) {
  const auto number = bypass::runtime::parse_number(word);
  if (number && *number >= 1 && *number <= kLargestPid) return "";
  return fmt::format("'{}' is no pid; accepted is a whole number from 1 to {}", word, kLargestPid);
}

CLI::Validator is_pid() {
  return {pid_problem, "PID", "pid"};
}

// Takes the pid as a word or as an option.
void add_pid(CLI::App& command, int& pid, const char* meaning) {
  auto* const both = command.add_option_group("process")->require_option(0, 1);
  both->add_option("PID", pid, meaning)->check(is_pid());
  both->add_option("--pid", pid, "The same as an option")->check(is_pid());
}

constexpr const char* kOneProcess = "One process; without it all of the user's (for root, everybody's)";

void add_show_options(CLI::App& command, ShowOptions& options) {
  add_pid(command, options.pid, kOneProcess);
  command.add_flag("--json", options.json, "Print JSON");
}

// The flags and their letters are those of ss(8).
void add_ss_options(CLI::App& command, SsOptions& options) {
  command.add_flag("-t,--tcp", options.tcp, "TCP sockets");
  command.add_flag("-u,--udp", options.udp, "UDP sockets");
  command.add_flag("-a,--all", options.all, "Listening sockets and others");
  command.add_flag("-l,--listening", options.listening, "Listening sockets alone");
  command.add_flag("-n,--numeric", options.numeric, "Numbers of ports, not names of services");
  command.add_flag("-p,--processes", options.processes, "Which process has the socket, and under which number");
  command.add_flag("-e,--extended", options.extended, "How the socket's bytes travel");
  command.add_flag("-i,--info", options.info, "Round-trip time, windows and counts of a TCP connection");
  command.add_flag("-H,--no-header", options.no_header, "Without the heading");
  command.add_flag("-O,--oneline", options.one_line, "Everything about a socket on one line");
  command.add_flag("--json", options.json, "Print JSON");
  command.add_option("--pid", options.pid, kOneProcess)->check(is_pid());
  command.add_option("FILTER", options.filter,
                     "A process as with --pid, and then what to show of it: state STATE, exclude STATE, and an "
                     "expression: sport = :80, dport >= :1024, src ADDRESS, "
                     "dst ADDRESS/LENGTH, path shm, joined by and, or, not, ( )");
}

std::vector<std::string> names(CLI::App& app) {
  std::vector<std::string> all;
  for (const CLI::App* each : app.get_subcommands([](CLI::App*) { return true; })) all.push_back(each->get_name());
  return all;
}

bool has(CLI::App& app, std::string_view name) {
  const std::vector<std::string> all = names(app);
  return std::find(all.begin(), all.end(), name) != all.end();
}

int no_such_subcommand(CLI::App& app, std::string_view name) {
  fmt::print(stderr, "bypass: there is no subcommand '{}'; accepted are {}\n", name, fmt::join(names(app), ", "));
  return kUsage;
}

int called_wrongly(CLI::App& app, const CLI::ParseError& error, std::string_view subcommand) {
  std::string text = error.what();
  if (!has(app, subcommand)) {
    fmt::print(stderr, "bypass: {}; accepted are {}\n", text, fmt::join(names(app), ", "));
    return kUsage;
  }
  for (const std::string_view name : {"PID: ", "--pid: "})  // says no more than the rest
    if (text.starts_with(name)) text.erase(0, name.size());
  if (text.find("accepted is") == std::string::npos)
    text += fmt::format("; `bypass help {}` says what is accepted", subcommand);
  fmt::print(stderr, "bypass: {}: {}\n", subcommand, text);
  return kUsage;
}

/// Output that could not be written is no success: /dev/full, a full disk.
int finish(int code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  fmt::print(stderr, "bypass: standard output: cannot write to file: {}\n", std::strerror(errno));
  return code == kOk ? kNothing : code;
}

int run(int argc, char** argv) {
  // The words that follow belong to the program: its options are not ours.
  if (argc > 1 && std::string_view(argv[1]) == "run") return run_program({argv + 2, argv + argc});
  if (argc > 1 && std::string_view(argv[1]) == "verbs-trace") return trace_verbs({argv + 2, argv + argc});
  CLI::App app(
      "Looks into the processes that run on libbypass, the kernel-bypass socket library.\n"
      "Run a program on it with `bypass run`, or with LD_PRELOAD=libbypass.so and a port: BYPASS_PORT, BYPASS_ADDR.",
      "bypass");
  app.set_version_flag("--version", "bypass " BYPASS_VERSION);
  app.require_subcommand(1);
  app.footer(
      "Exit codes: 0 done; 1 no such process, the configuration has problems, or what is to be shown cannot be "
      "written; "
      "2 called wrongly. Of run "
      "and verbs-trace: the program's; 125 the configuration has problems, 126 the program cannot be run, 127 there is "
      "no such program.");

  ShowOptions stat_options;
  CLI::App* const stat = app.add_subcommand("stat", "Ports, sockets and protocol counters of running processes");
  add_show_options(*stat, stat_options);
  stat->add_flag("--all", stat_options.all, "Show counters that are zero, too");

  ShowOptions why_options;
  CLI::App* const why = app.add_subcommand("why", "Why sockets were left to the kernel");
  add_show_options(*why, why_options);

  SsOptions ss_options;
  CLI::App* const ss = app.add_subcommand("ss", "The sockets of running processes, as ss shows the kernel's");
  add_ss_options(*ss, ss_options);

  app.add_subcommand("run",
                     "Runs a program on libbypass: bypass run --port vhost:$XDG_RUNTIME_DIR/wire -- redis-server");

  app.add_subcommand("verbs-trace",
                     "Shows each verb that a program calls: bypass verbs-trace -- ibv_rc_pingpong -d soft0");

  SetOptions set_options;
  CLI::App* const set = app.add_subcommand("set", "Makes something happen in a running process: failures, for drills");
  set->add_option("PID", set_options.pid, "The process")->check(is_pid());
  set->add_option(
      "WHAT", set_options.what,
      "inject=qp-error: its links to accelerated peers, RDMA connections and shared memory, fail as they would with "
      "the card's error, and connections go on over TCP");

  ConfigOptions config_options;
  CLI::App* const config =
      app.add_subcommand("config", "Every setting with its value and where that comes from, and what is wrong with it");
  add_pid(*config, config_options.pid,
          "The settings of a running process; without it those that a program started from here would have");
  auto* const forms = config->add_option_group("form")->require_option(0, 1);
  forms->add_flag("--json", config_options.json, "Print JSON");
  forms->add_flag("--markdown", config_options.markdown, "Print the reference of all settings");
  forms->add_flag("--toml", config_options.toml, "Print a commented configuration file with every setting");
  forms->add_option("--profile", config_options.profile, "Print the settings of a profile");

  if (const std::string_view first = argc > 1 ? argv[1] : "-";
      !first.starts_with('-') && first != "help" && !has(app, first))
    return no_such_subcommand(app, first);
  if (argc == 1) {
    fmt::print(stderr, "{}", app.help());
    return kUsage;
  }
  // As in git(1): help [SUBCOMMAND].
  if (std::string_view(argv[1]) == "help") {
    const bool known = argc > 2 && has(app, argv[2]);
    if (argc > 2 && !known) return no_such_subcommand(app, argv[2]);
    if (known && std::string_view(argv[2]) == "run") return run_program({"--help"});
    if (known && std::string_view(argv[2]) == "verbs-trace") return trace_verbs({"--help"});
    fmt::print("{}", known ? app.get_subcommand(argv[2])->help("bypass") : app.help());
    return kOk;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error), kOk;
    return called_wrongly(app, error, argv[1]);
  }
  if (stat->parsed()) return run_stat(stat_options);
  if (why->parsed()) return run_why(why_options);
  if (ss->parsed()) return run_ss(ss_options);
  if (set->parsed()) return run_set(set_options);
  return run_config(config_options);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return finish(run(argc, argv));
  } catch (const std::system_error& error) {  // fmt throws it for a buffer that could not be written
    fmt::print(stderr, "bypass: standard output: {}\n", error.what());
    return kNothing;
  }
}
