#include "config/settings.h"

#include <algorithm>
#include <array>

#include "config/settings_apply.h"

namespace bypass::runtime {
namespace {

using namespace apply;
using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr std::int64_t kMega = std::int64_t{1} << 20;
constexpr std::int64_t kGiga = std::int64_t{1} << 30;

constexpr std::string_view kPortForm =
    "vhost:PATH, virtio:PATH (absolute ones; each may end with ,peer=USER), netdev:IFNAME, af_xdp:IFNAME, "
    "af_packet:IFNAME, tap:NAME, pci:ADDRESS, dpdk:DEVARGS, verbs:DEVICE[:PORT], auto or none; several ports separated "
    "by "
    "semicolons";
constexpr std::string_view kAddressForm =
    "ADDRESS/LENGTH, several separated by commas (10.9.0.1/24,fd09::1/64); one entry a port, separated by semicolons";

constexpr auto kSettings = std::to_array<Setting>({
    // The ports and their network
    {.key = "port",
     .env = "BYPASS_PORT",
     .fallback = "none",
     .accepted = kPortForm,
     .example = "vhost:/run/bypass/a.sock",
     .help = "The wire: what the stack sends its frames through. Only one port can use an interface. With "
             "vhost: and virtio:, the process at the other end shares memory with this one: it must belong to "
             "the same user, to root or to USER.",
     .apply = list<parse_port_names, &Draft::port_names>},
    {.key = "addr",
     .env = "BYPASS_ADDR",
     .accepted = kAddressForm,
     .example = "10.9.0.1/24",
     .help = "The stack's own addresses on each port, with the length of the link's prefix. No two ports may "
             "have the same prefix. IPv6 addresses have no effect yet.",
     .apply = list<parse_address_lists, &Draft::addresses>},
    {.key = "gateway",
     .env = "BYPASS_GATEWAY",
     .accepted = "an address inside of the port's prefix, one of IPv4 and one of IPv6 at most; one entry a port, "
                 "separated by semicolons",
     .example = "10.9.0.254",
     .help = "The router to addresses that no port's prefix holds.",
     .apply = list<parse_gateways, &Draft::gateways>},
    {.key = "mac",
     .env = "BYPASS_MAC",
     .accepted = "a unicast MAC address (02:00:00:00:00:01); one entry a port, separated by semicolons",
     .example = "02:00:00:00:00:01",
     .help = "The port's MAC address; without it a stable one is made from the port's name.",
     .apply = list<parse_macs, &Draft::macs>},
    {.key = "mtu",
     .env = "BYPASS_MTU",
     .accepted = "bytes from 576 to 65521; one entry a port, separated by semicolons",
     .example = "9000",
     .help = "Bytes of the largest IP packet; without it the kind of port decides.",
     .apply = list<parse_mtus, &Draft::mtus>},
    {.key = "soft",
     .env = "BYPASS_SOFT",
     .accepted = "WIRE[;WIRE], a wire written as in BYPASS_PORT",
     .example = "vhost:/run/bypass/rdma.sock",
     .help = "Makes the software RDMA devices soft0, soft1, … on these wires: for verbs programs under "
             "libbypass-softverbs.so, and for BYPASS_PORT=verbs:soft0 and BYPASS_RDMA=soft0 under libbypass.so.",
     .apply = list<parse_port_names, &Draft::soft_names>},
    {.key = "soft_addr",
     .env = "BYPASS_SOFT_ADDR",
     .accepted = kAddressForm,
     .example = "10.9.1.1/24",
     .help = "The software RDMA devices' addresses. Without it, BYPASS_ADDR's; without both, those of the "
             "interface, which the kernel keeps.",
     .apply = list<parse_address_lists, &Draft::soft_addresses>},

    // Which sockets use them
    {.key = "local",
     .env = "BYPASS_LOCAL",
     .type = SettingType::kSwitch,
     .fallback = "on",
     .help = "Connections between two processes of one host go through shared memory, even if they meet over "
             "a port. Both processes need the same BYPASS_RUN_DIR.",
     .apply = on_off<&Config::local>},
    {.key = "local_after",
     .env = "BYPASS_LOCAL_AFTER",
     .type = SettingType::kNumber,
     .unit = "calls",
     .max = 1'000'000,
     .fallback = "32",
     .help = "After so many calls that read or write, an end of a connection within the host looks for shared "
             "memory. A connection that ends earlier does not pay for that. Each end counts its own calls, so "
             "both ends should have the same number.",
     .apply = number<&Config::local_after>},
    {.key = "raw_calls",
     .env = "BYPASS_RAW_CALLS",
     .type = SettingType::kChoice,
     .fallback = "auto",
     .accepted = "auto|off",
     .help = "System calls that a program makes by instructions of its own, without libc. auto: those of programs of "
             "Go are caught, if the program is linked dynamically and with cgo. off: they are the kernel's.",
     .apply = choice<&Config::raw_calls>},
    {.key = "trust",
     .env = "BYPASS_TRUST",
     .fallback = "credentials",
     .accepted = "credentials|family",
     .help = "Which processes share memory. credentials: processes that were forked from one another and have "
             "the same rights. family: also those that have given up rights, which can then do harm to the "
             "others.",
     .apply = choice<&Config::trust>},
    {.key = "keeper",
     .env = "BYPASS_KEEPER",
     .type = SettingType::kChoice,
     .fallback = "auto",
     .accepted = "auto|on|off",
     .help = "A process named bypass-keeper that ends the connections of killed processes as the kernel would. auto: "
             "made before the first socket on a port; on: made at the start; off: their peers hear nothing.",
     .apply = choice<&Config::keeper>},
    {.key = "rdma",
     .env = "BYPASS_RDMA",
     .fallback = "auto",
     .accepted = "auto, off or the name of an RDMA device",
     .help = "Connections to an accelerated peer move to a reliable RDMA connection. auto: over the cards of "
             "verbs: ports. The name of a device: over that one, which may be a software device, though that "
             "is no faster.",
     .apply = rdma},
    {.key = "rules",
     .env = "BYPASS_RULES",
     .accepted =
         "ACTION [tcp|udp|*] [connect|listen|*] [ADDRESS[/LENGTH]|*][:PORT[-PORT]] [program=NAME], the actions "
         "being bypass, kernel and fail, or rdma ADDRESS[/LENGTH] [program=NAME]; rules separated by semicolons",
     .example = "bypass tcp connect 10.9.0.0/16:6379; kernel udp *",
     .help =
         "Which sockets are bypassed; the first match wins. In the file also as [[rule]] tables. rdma: peers behind a "
         "router that are asked for an RDMA connection, or for shared memory.",
     .apply = rules},
    {.key = "profile",
     .env = "BYPASS_PROFILE",
     .type = SettingType::kChoice,
     .fallback = "balanced",
     .accepted = "balanced|latency|throughput|cpu",
     .help = "A named set of the settings below; each can still be set by itself.",
     .apply = choice<&Config::profile>},
    {.key = "strict",
     .env = "BYPASS_STRICT",
     .type = SettingType::kSwitch,
     .fallback = "off",
     .help = "on: the program ends with status 78 if something cannot be set up as asked. off: this is left "
             "to the kernel.",
     .apply = on_off<&Config::strict>},

    // Files
    {.key = "config",
     .env = "BYPASS_CONFIG",
     .accepted = "the path of a TOML file",
     .example = "/etc/bypass.toml",
     .in_file = false,
     .help = "The configuration file; without it /etc/bypass.toml, if there is one.",
     .apply = text<&Config::config_file>},
    {.key = "run_dir",
     .env = "BYPASS_RUN_DIR",
     .accepted = "an absolute path, of a directory of the user's own, mode 0700",
     .example = "/run/user/1000/bypass",
     .help = "Where processes leave what the bypass command reads. Without it, /dev/shm/bypass-UID, or "
             "another directory of the user's own if another user has that name.",
     .apply = absolute_path<&Config::run_dir>},
    {.key = "log",
     .env = "BYPASS_LOG",
     .type = SettingType::kChoice,
     .fallback = "warn",
     .accepted = "error|warn|info|debug|trace",
     .help = "How much is logged.",
     .apply = choice<&Config::log_level>},
    {.key = "log_file",
     .env = "BYPASS_LOG_FILE",
     .accepted = "the path of a file, appended to",
     .example = "/var/log/bypass.log",
     .help = "Where the log goes; without it standard error.",
     .apply = text<&Config::log_file>},

    // Waiting
    {.key = "spin_us",
     .env = "BYPASS_SPIN_US",
     .type = SettingType::kNumber,
     .unit = "µs",
     .max = 10'000'000,
     .fallback = "50",
     .word = "forever",
     .help = "How long a waiting thread polls the ports without giving up its processor.",
     .apply = duration<microseconds, &Config::spin>},
    {.key = "yield_us",
     .env = "BYPASS_YIELD_US",
     .type = SettingType::kNumber,
     .unit = "µs",
     .max = 10'000'000,
     .fallback = "50",
     .word = "forever",
     .help = "How long it then polls while yielding the processor between polls, before it sleeps.",
     .apply = duration<microseconds, &Config::yield>},
    {.key = "kernel_poll_us",
     .env = "BYPASS_KERNEL_POLL_US",
     .type = SettingType::kNumber,
     .unit = "µs",
     .max = 1'000'000,
     .fallback = "20",
     .help = "How often a polling thread looks at the kernel's descriptors among those it waits for.",
     .apply = duration<microseconds, &Config::kernel_poll>},
    {.key = "tick_ms",
     .env = "BYPASS_TICK_MS",
     .type = SettingType::kNumber,
     .unit = "ms",
     .min = 1,
     .max = 1000,
     .fallback = "10",
     .help = "How long the program's threads may leave the ports unattended before the progress thread serves "
             "them; 1 ms where it has just had to, while frames come.",
     .apply = duration<milliseconds, &Config::tick>},
    {.key = "exit_linger_ms",
     .env = "BYPASS_EXIT_LINGER_MS",
     .type = SettingType::kNumber,
     .unit = "ms",
     .max = 600'000,
     .fallback = "5000",
     .help = "How long the program's exit may wait until its peers have acknowledged what it wrote.",
     .apply = duration<milliseconds, &Config::exit_linger>},

    // Memory and offloads
    {.key = "memory",
     .env = "BYPASS_MEMORY",
     .type = SettingType::kSize,
     .unit = "bytes",
     .min = 16 * kMega,
     .max = 56 * kGiga,  // the arena has 64 GiB of addresses; the rest is for the tables that describe its blocks
     .fallback = "1G",
     .help = "The most bytes that sockets and their buffers may use, in all processes of the family together.",
     .apply = number<&Config::memory>},
    {.key = "port_memory",
     .env = "BYPASS_PORT_MEMORY",
     .type = SettingType::kSize,
     .unit = "bytes",
     .max = 2 * kGiga,
     .fallback = "0",
     .help = "Bytes for the frames of each port; 0 leaves it to the kind of port.",
     .apply = number<&Config::port_memory>},
    {.key = "hugepages",
     .env = "BYPASS_HUGEPAGES",
     .type = SettingType::kChoice,
     .fallback = "auto",
     .accepted = "auto|on|off",
     .help = "Huge pages for the ports' memory. auto: if there are enough (ports of DPDK and of RDMA "
             "devices); on: always; off: never.",
     .apply = choice<&Config::hugepages>},
    {.key = "tso",
     .env = "BYPASS_TSO",
     .type = SettingType::kSwitch,
     .fallback = "on",
     .help = "Frames of many segments (TSO) where the port takes them.",
     .apply = on_off<&Config::tso>},
    {.key = "checksum_offload",
     .env = "BYPASS_CHECKSUM_OFFLOAD",
     .type = SettingType::kSwitch,
     .fallback = "on",
     .help = "The port computes and verifies checksums where it can.",
     .apply = on_off<&Config::checksum_offload>},
    {.key = "ip.fragment_memory",
     .env = "BYPASS_IP_FRAGMENT_MEMORY",
     .type = SettingType::kSize,
     .unit = "bytes",
     .max = kGiga,
     .fallback = "4M",
     .help = "The most bytes that fragments of IP packets may use while they wait for the others; 0: "
             "fragments are dropped.",
     .apply = number<&Config::fragment_memory>},

    // TCP
    {.key = "tcp.congestion",
     .env = "BYPASS_TCP_CONGESTION",
     .type = SettingType::kChoice,
     .fallback = "cubic",
     .accepted = "cubic|newreno",
     .help = "Congestion control (RFC 9438, RFC 6582).",
     .apply = choice<&Config::tcp, &TcpConfig::congestion>},
    {.key = "tcp.initial_window",
     .env = "BYPASS_TCP_INITIAL_WINDOW",
     .type = SettingType::kNumber,
     .unit = "segments",
     .min = 1,
     .max = 100,
     .fallback = "10",
     .help = "Congestion window of a new connection (RFC 6928).",
     .apply = number<&Config::tcp, &TcpConfig::initial_window>},
    {.key = "tcp.rto_min_us",
     .env = "BYPASS_TCP_RTO_MIN_US",
     .type = SettingType::kNumber,
     .unit = "µs",
     .min = 1000,
     .max = 60'000'000,
     .fallback = "200000",
     .help = "Shortest retransmission timeout (RFC 6298; Linux has 200 ms).",
     .apply = duration<microseconds, &Config::tcp, &TcpConfig::rto_min>},
    {.key = "tcp.rto_max_ms",
     .env = "BYPASS_TCP_RTO_MAX_MS",
     .type = SettingType::kNumber,
     .unit = "ms",
     .min = 1000,
     .max = 600'000,
     .fallback = "120000",
     .help = "Longest retransmission timeout (RFC 6298; Linux has 120 s).",
     .apply = duration<milliseconds, &Config::tcp, &TcpConfig::rto_max>},
    {.key = "tcp.delack_us",
     .env = "BYPASS_TCP_DELACK_US",
     .type = SettingType::kNumber,
     .unit = "µs",
     .max = 500'000,
     .fallback = "40000",
     .help = "How long an acknowledgement may be delayed (RFC 9293 §3.8.6.3).",
     .apply = duration<microseconds, &Config::tcp, &TcpConfig::delayed_ack>},
    {.key = "tcp.time_wait_ms",
     .env = "BYPASS_TCP_TIME_WAIT_MS",
     .type = SettingType::kNumber,
     .unit = "ms",
     .max = 240'000,
     .fallback = "60000",
     .help = "How long a closed connection stays in TIME_WAIT.",
     .apply = duration<milliseconds, &Config::tcp, &TcpConfig::time_wait>},
    {.key = "tcp.syn_retries",
     .env = "BYPASS_TCP_SYN_RETRIES",
     .type = SettingType::kNumber,
     .unit = "times",
     .max = 127,
     .fallback = "6",
     .help = "How often a SYN is sent again before connect fails with ETIMEDOUT.",
     .apply = number<&Config::tcp, &TcpConfig::syn_retries>},
    {.key = "tcp.syn_queue",
     .env = "BYPASS_TCP_SYN_QUEUE",
     .type = SettingType::kNumber,
     .unit = "connections",
     .min = 1,
     .max = 1 << 20,
     .fallback = "4096",
     .help = "Half-open connections of one listener, and as many that TCP_DEFER_ACCEPT holds back; 1 KiB each.",
     .apply = number<&Config::tcp, &TcpConfig::syn_queue>},
    {.key = "tcp.syn_cookies",
     .env = "BYPASS_TCP_SYN_COOKIES",
     .type = SettingType::kSwitch,
     .fallback = "on",
     .help = "SYN cookies (RFC 4987) for what finds the SYN queue full; off: such SYNs are dropped.",
     .apply = on_off<&Config::tcp, &TcpConfig::syn_cookies>},
    {.key = "tcp.retries2",
     .env = "BYPASS_TCP_RETRIES2",
     .type = SettingType::kNumber,
     .unit = "times",
     .min = 1,
     .max = 127,
     .fallback = "15",
     .help = "How often data is sent again before the connection fails with ETIMEDOUT.",
     .apply = number<&Config::tcp, &TcpConfig::retries2>},
    {.key = "tcp.orphan_retries",
     .env = "BYPASS_TCP_ORPHAN_RETRIES",
     .type = SettingType::kNumber,
     .unit = "times",
     .min = 1,
     .max = 127,
     .fallback = "8",
     .help = "How often a closed connection's data or end is sent again before it is given up.",
     .apply = number<&Config::tcp, &TcpConfig::orphan_retries>},
    {.key = "tcp.max_orphans",
     .env = "BYPASS_TCP_MAX_ORPHANS",
     .type = SettingType::kNumber,
     .unit = "connections",
     .max = 1 << 24,
     .fallback = "65536",
     .help = "Closed connections that have not ended; further ones are reset, as are those with bytes when memory is "
             "short.",
     .apply = number<&Config::tcp, &TcpConfig::max_orphans>},
    {.key = "tcp.fin_timeout_ms",
     .env = "BYPASS_TCP_FIN_TIMEOUT_MS",
     .type = SettingType::kNumber,
     .unit = "ms",
     .min = 1000,
     .max = 600'000,
     .fallback = "60000",
     .help = "How long a closed connection waits for its peer's end (FIN_WAIT2; Linux has 60 s).",
     .apply = duration<milliseconds, &Config::tcp, &TcpConfig::fin_wait2>},
    {.key = "tcp.sndbuf",
     .env = "BYPASS_TCP_SNDBUF",
     .type = SettingType::kSize,
     .unit = "bytes",
     .min = 16 << 10,
     .max = kGiga,
     .fallback = "4M",
     .help = "Largest send buffer of a connection; it grows as needed.",
     .apply = number<&Config::tcp, &TcpConfig::send_buffer>},
    {.key = "tcp.rcvbuf",
     .env = "BYPASS_TCP_RCVBUF",
     .type = SettingType::kSize,
     .unit = "bytes",
     .min = 16 << 10,
     .max = kGiga,
     .fallback = "6M",
     .help = "Largest receive buffer of a connection; it grows as needed.",
     .apply = number<&Config::tcp, &TcpConfig::receive_buffer>},
});

}  // namespace

std::span<const Setting> settings() {
  return kSettings;
}

const Setting* setting_by_env(std::string_view env) {
  const auto at = std::find_if(kSettings.begin(), kSettings.end(), [env](const Setting& s) { return s.env == env; });
  return at == kSettings.end() ? nullptr : &*at;
}

const Setting* setting_by_key(std::string_view key) {
  const auto at = std::find_if(kSettings.begin(), kSettings.end(), [key](const Setting& s) { return s.key == key; });
  return at == kSettings.end() ? nullptr : &*at;
}

std::size_t setting_index(const Setting& setting) {
  return static_cast<std::size_t>(&setting - kSettings.data());
}

}  // namespace bypass::runtime
