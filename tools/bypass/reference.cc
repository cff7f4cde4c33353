#include "reference.h"

#include <fmt/format.h>

#include "config/settings_text.h"

namespace bypass::tool {
namespace {

using runtime::Setting;
using runtime::SettingType;

// `|` ends a cell of a Markdown table.
std::string cell(std::string_view text) {
  std::string out;
  for (const char c : text) out += c == '|' ? std::string("\\|") : std::string(1, c);
  return out;
}

std::string toml_value(const Setting& setting, std::string_view value) {
  if (setting.type == SettingType::kSwitch) return value == "on" ? "true" : "false";
  return runtime::parse_number(value) ? std::string(value) : fmt::format("\"{}\"", value);
}

std::string_view shown(const Setting& setting) {
  return setting.fallback.empty() || setting.key == "port" ? setting.example : setting.fallback;
}

// Wraps the text at spaces to comment lines of at most 100 characters.
std::string comment(const std::string& text) {
  constexpr std::size_t kWidth = 98;
  std::string out, line;
  for (const auto word : runtime::split_words(text)) {
    if (line.size() + word.size() + 1 > kWidth) {
      out += "#" + line + "\n";
      line.clear();
    }
    line += " " + std::string(word);
  }
  return out + "#" + line + "\n";
}

std::string setting_row(const Setting& setting) {
  const std::string fallback = setting.fallback.empty() ? "" : fmt::format("`{}`", setting.fallback);
  const std::string not_built = setting.built ? "" : " *Not built yet: accepted, without effect.*";
  const std::string key = setting.in_file ? fmt::format("`{}`", setting.key) : "";
  return fmt::format("| `{}` | {} | {} | {} | {}{} |\n", setting.env, key, fallback, cell(accepted_text(setting)),
                     cell(setting.help), not_built);
}

constexpr std::string_view kMarkdownHead =
    R"(<!-- Made by `bypass config --markdown` from the table in src/config/settings.cc; change that, not this. -->
# Settings

Every setting has one variable and one key in the configuration file (`BYPASS_CONFIG`, else
`/etc/bypass.toml`; `config/bypass.toml` is one with every setting in it). A value comes from the environment,
else from the file, else from the profile, else it is the default; an empty variable is one that is not set.
`bypass config` shows each with its value and where that comes from.

An unknown name or a value that does not parse is an error that says what is accepted. The program then runs on
the kernel's sockets, or ends with status 78 where `BYPASS_STRICT=1`.

| variable | in the file | default | accepted | meaning |
| --- | --- | --- | --- | --- |
)";

constexpr std::string_view kMarkdownRules =
    R"(
## Rules

A rule is `ACTION [PROTO] [ROLE] [ADDRESS[/LENGTH]][:PORT[-PORT]] [program=NAME]`. What is left out, or `*`,
matches anything. The first match wins.

- `bypass`: take a port, if one routes to the address. `kernel`: leave it to the kernel. `fail`: the call fails
  with EACCES.
- `rdma`: decides nothing of this. Over a port, only peers of its own subnets are asked for an RDMA connection, or
  for memory to share where they are on this host; these, behind a router, are too. Both ends need the rule, each
  with the other's own address. Only an address, and `program=NAME`, can follow.
- `connect` is about the peer's address, `listen` about the local one. A datagram socket is asked for each peer.
- `program=NAME` compares the executable's name; shell wildcards work.
- IPv6 with a port is written in brackets: `[fd09::/64]:443`.

Two rules come last and need not be written. Loopback addresses stay with the kernel unless they are a port's own. DNS
(connections to port 53) stays with the kernel unless the server is in a prefix of a port's (behind its gateway it is not).

    BYPASS_RULES='bypass tcp connect 10.9.0.0/16:6379; kernel udp *'

The same in the file:

    [[rule]]
    action = "bypass"
    proto = "tcp"
    role = "connect"
    address = "10.9.0.0/16"
    port = 6379

    [[rule]]
    action = "kernel"
    proto = "udp"
)";

constexpr std::string_view kTomlHead =
    R"(# libbypass: every setting, with its default (or an example where there is none). Remove the # of what you
# change. Made by `bypass config --toml`.
#
# This file is read from /etc/bypass.toml, or from where BYPASS_CONFIG says. A variable of the environment beats
# it; its name is the key in capitals after BYPASS_, as BYPASS_TCP_RTO_MIN_US. `bypass config` shows the result.
#
# With several ports, give lists with one entry a port: port = ["vhost:/run/a.sock", "tap:bp0"]

)";

constexpr std::string_view kTomlRules =
    R"(
# Rules, in place of the string `rules`: the first match wins. All keys but the action may be left out,
# of rdma the address apart.
#[[rule]]
#action = "bypass"        # bypass, kernel, fail or rdma
#proto = "tcp"            # tcp or udp
#role = "connect"         # connect or listen
#address = "10.9.0.0/16"  # the peer's for connect, the local one for listen
#port = 6379              # or a range: "8000-8999"
#program = "redis*"       # the executable's name
)";

}  // namespace

std::string settings_markdown() {
  std::string out(kMarkdownHead);
  for (const Setting& setting : runtime::settings()) out += setting_row(setting);
  out += "\n## Profiles\n\nA profile is a named set of the settings above; each can still be set by itself.\n\n";
  for (const auto& profile : runtime::profiles()) {
    out += fmt::format("- `{}`: {} (", profile.name, profile.help);
    for (const auto& value : profile.values)
      out += fmt::format("{}`{} = {}`", &value == profile.values.data() ? "" : ", ", value.key, value.value);
    out += ")\n";
  }
  return out + std::string(kMarkdownRules);
}

std::string settings_toml() {
  std::string out(kTomlHead), tables;
  for (const Setting& setting : runtime::settings()) {
    if (!setting.in_file) continue;
    const bool in_tcp = setting.key.starts_with("tcp.");
    const std::string text =
        comment(fmt::format("{}{} Accepted: {}.", setting.help,
                            setting.built ? "" : " Not built yet: accepted, without effect.", accepted_text(setting))) +
        fmt::format("#{} = {}\n\n", in_tcp ? setting.key.substr(4) : setting.key, toml_value(setting, shown(setting)));
    (in_tcp ? tables : out) += text;
  }
  out += "[tcp]\n\n" + tables;
  out.pop_back();
  return out + std::string(kTomlRules);
}

std::string profile_toml(const runtime::ProfileInfo& profile) {
  std::string out = comment(fmt::format("The profile {}: {}.", profile.name, profile.help)) +
                    comment(fmt::format("BYPASS_PROFILE={} sets just this; made by `bypass config --profile {}`.",
                                        profile.name, profile.name));
  std::string tcp;
  for (const auto& value : profile.values) {
    const Setting& setting = *runtime::setting_by_key(value.key);
    const bool in_tcp = value.key.starts_with("tcp.");
    (in_tcp ? tcp : out) +=
        fmt::format("{} = {}\n", in_tcp ? value.key.substr(4) : value.key, toml_value(setting, value.value));
  }
  return tcp.empty() ? out : out + "\n[tcp]\n" + tcp;
}

}  // namespace bypass::tool
