// bypass: what the processes that use libbypass are doing, why some of their sockets do not, and how they
// are configured.
#include <CLI/CLI.hpp>

#include "command.h"

namespace {

using namespace bypass::tool;

void add_show_options(CLI::App& command, ShowOptions& options) {
  command.add_option("PID", options.pid, "One process; without it all of the user's (for root, everybody's)")
      ->check(CLI::Range(1, 1 << 22));
  command.add_flag("--json", options.json, "Print JSON");
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Looks into the processes that run on libbypass, the kernel-bypass socket library.\n"
      "Run a program on it with LD_PRELOAD=libbypass.so and a port: BYPASS_PORT, BYPASS_ADDR.",
      "bypass");
  app.set_version_flag("--version", "bypass " BYPASS_VERSION);
  app.require_subcommand(1);
  app.footer("Exit codes: 0 done; 1 no such process, or the configuration has problems; 2 called wrongly.");

  ShowOptions stat_options;
  CLI::App* const stat = app.add_subcommand("stat", "Ports, sockets and protocol counters of running processes");
  add_show_options(*stat, stat_options);
  stat->add_flag("--all", stat_options.all, "Show counters that are zero, too");

  ShowOptions why_options;
  CLI::App* const why = app.add_subcommand("why", "Why sockets were left to the kernel");
  add_show_options(*why, why_options);

  ConfigOptions config_options;
  CLI::App* const config =
      app.add_subcommand("config", "Every setting with its value and where that comes from, and what is wrong with it");
  auto* const forms = config->add_option_group("form")->require_option(0, 1);
  forms->add_flag("--json", config_options.json, "Print JSON");
  forms->add_flag("--markdown", config_options.markdown, "Print the reference of all settings");
  forms->add_flag("--toml", config_options.toml, "Print a commented configuration file with every setting");
  forms->add_option("--profile", config_options.profile, "Print the settings of a profile");

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kOk : kUsage;
  }
  if (stat->parsed()) return run_stat(stat_options);
  if (why->parsed()) return run_why(why_options);
  return run_config(config_options);
}
