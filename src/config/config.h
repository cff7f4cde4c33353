// Config: every setting of a process, typed, with its origin; and the problems of the given values.
//
// The table in settings.h is the one source of names, ranges, defaults and help. A value comes from the
// environment, else from the file, else from the profile, else from the default. Parsing is a pure function
// of (environment, file); only load_config() reads a file. Private to a process, copied by fork.
//
// A configuration with problems is not used at all: the program runs on the kernel's sockets (or ends with status 78
// when `strict`). Each problem says what to change.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "config/rules.h"
#include "stack/address.h"
#include "stack/ip/network.h"
#include "stack/time.h"

namespace bypass::runtime {

enum class Origin : std::uint8_t { kDefault, kProfile, kFile, kEnvironment };
const char* origin_name(Origin origin);

enum class Profile : std::uint8_t { kBalanced, kLatency, kThroughput, kCpu };
enum class Congestion : std::uint8_t { kCubic, kNewReno };
enum class RdmaMode : std::uint8_t { kAuto, kOff, kDevice };
enum class Trust : std::uint8_t { kCredentials, kFamily };
enum class Keeper : std::uint8_t { kAuto, kOn, kOff };
enum class RawCalls : std::uint8_t { kAuto, kOff };

/// A budget of this length never ends: the thread spins as long as it waits.
inline constexpr Duration kForever = Duration::max();

struct PortConfig {
  std::string kind;    // "vhost", "virtio", "netdev", "af_xdp", "af_packet", "tap", "pci", "dpdk", "verbs", "auto"
  std::string target;  // what follows the colon
  std::vector<Prefix> addresses;    // IPv4 and IPv6, with the length of the link's prefix
  std::vector<IpAddress> gateways;  // at most one a family
  MacAddress mac;                   // zero: the backend chooses
  std::uint32_t mtu = 0;            // zero: the kind's own default
  // Filled in by complete_from_kernel():
  bool shared = false;           // the kernel has the addresses and keeps the interface …
  std::string interface;         // … of this name
  int interface_index = 0;       // … and number, when last read; 0: there was no such interface
  std::vector<RouteVia> routes;  // of a shared interface, those by a gateway
  std::vector<Prefix> chosen;    // the kernel's addresses that were named; empty: all of them
  bool follows_mtu = false;      // no MTU was set: it follows the interface's
};

/// What the ports reach and what the kernel keeps, at one moment.
struct PortNetwork {
  std::vector<PortConfig> ports;  // as in Config
  std::vector<Prefix> others;     // what the kernel reaches by interfaces that no port shares, or delivers to this host
  std::vector<std::string> left_out;  // what does not fit into the stack's tables, as text for the user
};

/// "vhost:/run/a.sock", as the setting is written.
std::string port_text(const PortConfig& port);
/// The text of the problem with that gateway of a port that has addresses; empty: no problem.
std::string gateway_problem(const PortConfig& port, const IpAddress& gateway);
struct Config;
/// The plugin that serves a kind of port ("dpdk", "verbs"); null if there is no such kind.
const char* plugin_of_kind(std::string_view kind);
/// … of a port among the others: where one of them needs the cards' drivers, all of DPDK's kinds are that plugin's, so
/// that DPDK starts once.
const char* plugin_of_port(const Config& config, const PortConfig& port);

struct TcpConfig {
  Duration rto_min{};
  Duration rto_max{};
  Duration delayed_ack{};
  Duration time_wait{};
  std::uint32_t syn_retries = 0;
  std::uint32_t syn_queue = 0;  // half-open connections of one listener
  bool syn_cookies = true;
  std::uint32_t orphan_retries = 0;
  std::uint32_t max_orphans = 0;
  Duration fin_wait2{};
  std::uint32_t retries2 = 0;        // retransmissions of data before ETIMEDOUT (tcp_retries2)
  std::uint32_t initial_window = 0;  // segments
  std::uint64_t send_buffer = 0;     // bytes a connection at most; grows on demand
  std::uint64_t receive_buffer = 0;
  Congestion congestion = Congestion::kCubic;
};

/// One setting's value as text, and its origin; in the order of the settings table.
struct SettingValue {
  std::string text;
  Origin origin = Origin::kDefault;
  std::string where;  // "environment", "/etc/bypass.toml:12", "profile latency", "default"
};

struct ConfigProblem {
  std::string name;   // the variable or the file's key, as the user wrote it
  std::string value;  // … and its value
  std::string where;  // "environment", "/etc/bypass.toml:12"
  std::string text;   // what is wrong, what is accepted, the nearest match
  /// "BYPASS_MTU=9 (environment): …", one line.
  [[nodiscard]] std::string message() const;
};

struct Config {
  std::vector<PortConfig> ports;
  std::vector<PortConfig> soft;  // the wires of the software RDMA devices soft0, soft1, …
  std::vector<Prefix> others;    // what the kernel reaches by interfaces that no port shares
  bool local = true;
  std::uint64_t local_after = 0;  // number of calls after which a connection within the host looks for shared memory
  RawCalls raw_calls = RawCalls::kAuto;
  Trust trust = Trust::kCredentials;
  Keeper keeper = Keeper::kAuto;
  RdmaMode rdma = RdmaMode::kAuto;
  std::string rdma_device;  // when kDevice
  RuleSet rules;
  Profile profile = Profile::kBalanced;
  bool strict = false;

  std::string config_file;
  std::string run_dir;  // empty: /dev/shm/bypass-UID
  LogLevel log_level = LogLevel::kWarn;
  std::string log_file;  // empty: standard error

  Duration spin{};         // how long a wait spins; after that …
  Duration yield{};        // … how long it yields; after that it sleeps
  Duration kernel_poll{};  // how often a spinning wait looks at kernel descriptors
  Duration tick{};         // how long a busy program may stay away before the progress thread steps in
  TcpConfig tcp;
  bool tso = true;
  bool checksum_offload = true;
  std::uint64_t memory = 0;       // bytes of the arena
  std::uint64_t port_memory = 0;  // bytes of frames, a port
  std::uint64_t fragment_memory = 0;
  Hugepages hugepages = Hugepages::kAuto;
  Duration exit_linger{};  // how long exit may wait for unsent data

  std::vector<SettingValue> values;  // one for each row of settings()
  std::vector<ConfigProblem> problems;

  [[nodiscard]] bool ok() const { return problems.empty(); }
  /// A problem of the setting with that variable, with the value that the setting has.
  [[nodiscard]] ConfigProblem problem_of(std::string_view variable, std::string text) const;
  /// Whether connections over that port may move to RDMA. Over a software device this gains nothing, so the device must
  /// be named.
  [[nodiscard]] bool wants_links(const PortConfig& port) const;
  /// Whether there is something to accelerate: a port, or a mover that needs no port.
  [[nodiscard]] bool wants_port() const { return ok() && !ports.empty(); }
  /// Whether there is anything that libbypass may do for the process's sockets.
  [[nodiscard]] bool wants_anything() const { return wants_port() || (ok() && local); }
  /// Whether it asks for no more than what every program gets by default.
  [[nodiscard]] bool asks_for_nothing() const;
};

/// What the backend is asked to open for `port`, if the process has `ports` of them (config.ports or config.soft).
PortSpec port_spec(const Config& config, const PortConfig& port, std::size_t ports);
/// The same for config.ports[index].
PortSpec port_spec(const Config& config, std::size_t index);

/// One `key = value` of the file; `[[rule]]` tables arrive as key "rule" with the rule as text.
struct FileEntry {
  std::string key;    // dotted: "tcp.rto_min_us"
  std::string value;  // as the environment would have it: true is "on", a list is joined by ";"
  int line = 0;
};

struct ConfigFile {
  std::string path;
  std::vector<FileEntry> entries;
  std::vector<ConfigProblem> problems;  // syntax errors, unreadable file
};

/// Fills `file` from TOML text. It is in an object of its own (libbypass-toml.so): a TOML parser needs the C++ locale,
/// which libbypass.so shall not contain. toml_reader() of plugin.h opens it on demand.
using TomlReader = void (*)(std::string_view text, ConfigFile& file);

/// Pure: takes the environment (null-terminated NAME=VALUE pointers) and at most one file that has been read.
Config parse_config(const char* const* environment, const ConfigFile* file);

/// Reads the file BYPASS_CONFIG, or /etc/bypass.toml if that exists, through `reader`, and parses it.
Config load_config(const char* const* environment, TomlReader reader);

/// Whether load_config() would read a file that BYPASS_CONFIG does not name. Allocates nothing.
bool has_system_file();

}  // namespace bypass::runtime
