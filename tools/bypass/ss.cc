// bypass ss: shows the sockets of every process that uses the bypass, as ss(8) shows the kernel's. It also shows those
// that were left to the kernel.
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <optional>

#include "command.h"
#include "config/settings_text.h"
#include "describe.h"
#include "kernel_sockets.h"
#include "os/net/address_text.h"
#include "ss_filter.h"

namespace bypass::tool {
namespace {

using observe::Snapshot;
using observe::SocketRecord;
using observe::SocketState;

struct Row {
  const Snapshot* process;
  const SocketRecord* socket;
  bool is_v6;
};

const char* state_text(SocketState state) {
  static constexpr std::array kNames = {"UNCONN",     "LISTEN",     "SYN-SENT", "SYN-RECV", "ESTAB",     "FIN-WAIT-1",
                                        "FIN-WAIT-2", "CLOSE-WAIT", "CLOSING",  "LAST-ACK", "TIME-WAIT", "UNCONN"};
  return kNames.at(static_cast<std::size_t>(state));
}

std::string address_text(const IpAddress& address, bool is_v6) {
  if (address.is_any()) return is_v6 ? "::" : "0.0.0.0";
  return std::string(runtime::to_text(address).view());
}

/// The address in front of the colon. As in ss(8): what listens at every IPv6 address listens at every IPv4 address,
/// too.
std::string shown_address(const IpAddress& address, const Row& row) {
  const IpAddress& local = row.socket->local_address;
  if (row.is_v6 && address.is_any() && (local.is_any() || local.is_v4())) return "*";
  const std::string text = address_text(address, row.is_v6);
  return text.find(':') == std::string::npos ? text : "[" + text + "]";
}

std::string port_text(const SocketRecord& socket, std::uint16_t port, bool numeric) {
  if (port == 0) return "*";
  const servent* service =
      numeric ? nullptr : getservbyport(htons(port), socket.protocol == IPPROTO_UDP ? "udp" : "tcp");
  return service != nullptr ? service->s_name : fmt::format("{}", port);
}

std::string users_text(const Row& row) {
  if (row.socket->of_stack != 0) return "";
  return fmt::format("users:((\"{}\",pid={},fd={}))", row.process->command, row.process->pid, row.socket->fd);
}

double milliseconds(std::uint32_t us) {
  return us / 1000.0;
}

// The text of ss -i. It leaves out what is not known, and the time and the windows of a TCP that is idle beneath
// another path.
std::string info_text(const SocketRecord& s) {
  if (!is_connection(s) || s.state == static_cast<std::uint8_t>(SocketState::kTimeWait)) return "";
  const bool by_tcp = !is_beside_tcp(s);
  std::string text;
  const auto append = [&text](const std::string& part) { text += (text.empty() ? "" : " ") + part; };
  const auto add = [&append](const char* name, std::uint64_t value) {
    if (value != 0) append(fmt::format("{}:{}", name, value));
  };
  const std::uint32_t mss = std::max<std::uint32_t>(s.mss, 1);
  if (by_tcp) {
    append(fmt::format("rto:{:g}", milliseconds(s.rto_us)));
    if (s.srtt_us != 0) append(fmt::format("rtt:{:g}/{:g}", milliseconds(s.srtt_us), milliseconds(s.rttvar_us)));
    add("mss", s.mss);
    add("cwnd", s.cwnd / mss);
    if (s.ssthresh / mss < 0xffff) add("ssthresh", s.ssthresh / mss);  // a larger value means no loss yet
  }
  add("bytes_acked", s.tx_bytes);
  add("bytes_received", s.rx_bytes);
  add("segs_out", s.tx_packets);
  add("segs_in", s.rx_packets);
  if (by_tcp && s.srtt_us != 0 && s.cwnd != 0)
    append(fmt::format("send {}bps", std::uint64_t{s.cwnd} * 8'000'000 / s.srtt_us));
  if (s.retransmits != 0) append(fmt::format("retrans:0/{}", s.retransmits));
  if (by_tcp) {
    add("snd_wnd", s.snd_wnd);
    add("rcv_wnd", s.rcv_wnd);
  }
  return text;
}

Json row_json(const Row& row, const SsOptions& options) {
  const SocketRecord& s = *row.socket;
  Json json = {{"netid", protocol_text(s.protocol)},
               {"state", state_text(shown_state(s))},
               {"recv_q", s.rx_queue},
               {"send_q", s.tx_queue},
               {"local_address", address_text(s.local_address, row.is_v6)},
               {"local_port", s.local_port},
               {"peer_address", address_text(s.remote_address, row.is_v6)},
               {"peer_port", s.remote_port},
               {"path", observe::path_name(s.path)},
               {"process", {{"command", row.process->command}, {"pid", row.process->pid}, {"fd", s.fd}}}};
  if (s.of_stack != 0) json["process"]["fd"] = nullptr;
  if (options.info && is_connection(s)) json["info"] = socket_json(s);
  return json;
}

/// The columns of ss: an address is set to the right, its port to the left.
class Table {
 public:
  void add(std::vector<std::string> cells) {
    for (std::size_t i = 0; i < kColumns; i++) widths_[i] = std::max(widths_[i], cells[i].size());
    rows_.push_back(std::move(cells));
  }
  void print(bool netid, bool state) const {
    for (const auto& row : rows_) {
      std::string line;
      for (std::size_t i = 0; i < kColumns; i++) {
        if ((i == 0 && !netid) || (i == 1 && !state)) continue;
        const bool port = i == kLocalPort || i == kPeerPort;
        if (!line.empty() && !port) line += ' ';
        const std::string padding(widths_[i] - row[i].size(), ' ');
        line += i == kLocalPort - 1 || i == kPeerPort - 1 ? padding + row[i] : row[i] + padding;
      }
      line.erase(line.find_last_not_of(' ') + 1);
      fmt::print("{}{}\n", line, row[kColumns]);
    }
  }

 private:
  static constexpr std::size_t kColumns = 9, kLocalPort = 5, kPeerPort = 7;
  std::vector<std::vector<std::string>> rows_;  // the last cell of each row is written as it is
  std::array<std::size_t, kColumns> widths_{};
};

void print_rows(const std::vector<Row>& rows, const SsOptions& options, bool single_state) {
  Table table;
  if (!options.no_header)
    table.add({"Netid", "State", "Recv-Q", "Send-Q", "Local Address:", "Port", "Peer Address:", "Port",
               options.processes ? "Process" : "", ""});
  for (const Row& row : rows) {
    const SocketRecord& s = *row.socket;
    std::string users = options.processes ? users_text(row) : "";
    if (options.extended) users += fmt::format("{}path:{}", users.empty() ? "" : " ", observe::path_name(s.path));
    const std::string info = options.info ? info_text(s) : "";
    table.add({protocol_text(s.protocol), state_text(shown_state(s)), fmt::format("{}", s.rx_queue),
               fmt::format("{}", s.tx_queue), shown_address(s.local_address, row) + ":",
               port_text(s, s.local_port, options.numeric), shown_address(s.remote_address, row) + ":",
               port_text(s, s.remote_port, options.numeric), users,
               info.empty()       ? ""
               : options.one_line ? " " + info
                                  : "\n\t " + info});
  }
  table.print(options.tcp == options.udp, !single_state);
}

std::vector<Row> select(const observe::Listing& listing, const SsOptions& options, const SocketFilter& filter) {
  const bool both = options.tcp == options.udp;  // neither was named: both
  std::vector<Row> rows;
  for (const Snapshot& process : listing.processes) {
    for (const auto& entry : process.sockets) {
      const SocketRecord& s = entry.record;
      const bool kind = both || (s.protocol == IPPROTO_UDP ? options.udp : options.tcp);
      const bool named = s.local_port != 0;  // other sockets have no local address yet
      if (kind && named && filter.matches(s)) rows.push_back({&process, &s, entry.is_v6});
    }
  }
  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
    return a.socket->protocol > b.socket->protocol;  // ss begins with udp, too
  });
  return rows;
}

}  // namespace

int run_ss(const SsOptions& given) {
  SsOptions options = given;
  // No filter expression begins with a number.
  if (const auto pid = options.filter.empty() ? std::nullopt : runtime::parse_number(options.filter[0])) {
    if (options.pid != 0 || *pid < 1 || *pid > kLargestPid) {
      fmt::print(stderr, "bypass: ss: {} is no process to be shown\n", *pid);
      return kUsage;
    }
    options.pid = static_cast<int>(*pid);
    options.filter.erase(options.filter.begin());
  }
  using Default = SocketFilter::Default;
  const Default states = options.all ? Default::kAll : options.listening ? Default::kListening : Default::kConnected;
  SocketFilter filter;
  std::string problem;
  if (!filter.parse(options.filter, states, problem)) {
    fmt::print(stderr, "bypass: ss: filter: {}\n", problem);
    return kUsage;
  }
  observe::Listing listing = find_processes(options.pid);
  add_kernel_sockets(listing.processes);
  const std::vector<Row> rows = select(listing, options, filter);
  if (options.json) {
    Json sockets = Json::array();
    for (const Row& row : rows) sockets.push_back(row_json(row, options));
    print_json(Json{{"sockets", sockets}});
  } else {
    print_rows(rows, options, filter.single_state());
  }
  return listing.processes.empty() ? kNothing : kOk;
}

}  // namespace bypass::tool
