#include "describe.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <time.h>

#include "observe/reasons.h"
#include "os/net/address_text.h"

namespace bypass::tool {
namespace {

std::string prefix_text(const IpAddress& address, unsigned length) {
  return std::string(runtime::to_text(Prefix{address, static_cast<std::uint8_t>(length)}).view());
}

std::string mac_text(const observe::PortRecord& port) {
  return std::string(runtime::to_text(MacAddress{port.mac}).view());
}

bool is_number(const std::string& cell) {
  return !cell.empty() && cell.find_first_not_of("0123456789.-") == std::string::npos;
}

// The width in characters, not in bytes: "µs" is two wide.
std::size_t width_of(const std::string& text) {
  std::size_t width = 0;
  for (const char c : text) width += (c & 0xc0) != 0x80 ? 1 : 0;
  return width;
}

std::string age_text(std::uint64_t since_ns) {
  const std::int64_t seconds = time(nullptr) - static_cast<std::int64_t>(since_ns / 1'000'000'000);
  if (seconds < 0) return "0s";
  if (seconds < 60) return fmt::format("{}s", seconds);
  if (seconds < 3600) return fmt::format("{}m{:02}s", seconds / 60, seconds % 60);
  return fmt::format("{}h{:02}m", seconds / 3600, seconds / 60 % 60);
}

}  // namespace

std::string protocol_text(std::uint8_t protocol) {
  if (protocol == IPPROTO_TCP) return "tcp";
  if (protocol == IPPROTO_UDP) return "udp";
  return protocol == 0 ? "-" : fmt::format("{}", protocol);
}

std::string endpoint_text(const IpAddress& address, std::uint16_t port) {
  if (address.is_any() && port == 0) return "-";
  if (address.is_any()) return fmt::format("*:{}", port);
  if (port == 0) return std::string(runtime::to_text(address).view());
  return std::string(runtime::to_text(Endpoint{address, port}).view());
}

std::string port_name(const observe::PortRecord& port) {
  const std::string target = field_text(port.target);
  return target.empty() ? field_text(port.kind) : field_text(port.kind) + ":" + target;
}

std::vector<std::string> port_addresses(const observe::PortRecord& port) {
  std::vector<std::string> addresses;
  if (!port.v4.is_any()) addresses.push_back(prefix_text(port.v4, port.v4_length));
  if (!port.v6.is_any()) addresses.push_back(prefix_text(port.v6, port.v6_length));
  return addresses;
}

Json process_json(const observe::Snapshot& process) {
  return {{"pid", process.pid},
          {"command", process.command},
          {"uid", process.uid},
          {"profile", process.profile},
          {"version", process.library_version},
          {"created_ns", process.created_ns},
          {"updated_ns", process.updated_ns},
          {"port_owner", process.port_owner},
          {"other_pid_namespace", process.elsewhere}};
}

Json port_json(const observe::PortRecord& port) {
  return {{"port", port_name(port)},
          {"open", port.open != 0 && port.open != observe::kPortGone},
          {"link", port.link_up != 0 ? "up" : "down"},
          {"addresses", port_addresses(port)},
          {"mac", mac_text(port)},
          {"mtu", port.mtu},
          {"rx_frames", port.rx_frames},
          {"rx_bytes", port.rx_bytes},
          {"rx_dropped", port.rx_dropped},
          {"rx_no_buffer", port.rx_no_buffer},
          {"tx_frames", port.tx_frames},
          {"tx_bytes", port.tx_bytes},
          {"tx_full", port.tx_full},
          {"tx_dropped", port.tx_dropped},
          {"link_ups", port.link_ups},
          {"link_downs", port.link_downs},
          {"reopened", port.reopened},
          {"buffers_total", port.buffers_total},
          {"buffers_free", port.buffers_free}};
}

bool is_connection(const observe::SocketRecord& s) {
  const auto state = static_cast<observe::SocketState>(s.state);
  return s.protocol == IPPROTO_TCP && state != observe::SocketState::kListen && state != observe::SocketState::kOpen;
}

bool is_beside_tcp(const observe::SocketRecord& s) {
  const auto path = static_cast<observe::SocketPath>(s.path);
  return path == observe::SocketPath::kRc || path == observe::SocketPath::kShm;
}

Json socket_json(const observe::SocketRecord& s) {
  Json json = {{"fd", s.fd},
               {"protocol", protocol_text(s.protocol)},
               {"state", observe::state_name(s.state)},
               {"path", observe::path_name(s.path)},
               {"local", endpoint_text(s.local_address, s.local_port)},
               {"remote", endpoint_text(s.remote_address, s.remote_port)},
               {"rx_queue", s.rx_queue},
               {"tx_queue", s.tx_queue}};
  if (!is_connection(s)) return json;
  json.update({{"rx_bytes", s.rx_bytes},
               {"tx_bytes", s.tx_bytes},
               {"rx_packets", s.rx_packets},
               {"tx_packets", s.tx_packets},
               {"retransmits", s.retransmits},
               {"srtt_us", s.srtt_us},
               {"rttvar_us", s.rttvar_us},
               {"rto_us", s.rto_us},
               {"cwnd", s.cwnd},
               {"ssthresh", s.ssthresh},
               {"mss", s.mss},
               {"snd_wnd", s.snd_wnd},
               {"rcv_wnd", s.rcv_wnd}});
  return json;
}

Json why_json(const observe::WhyRecord& why) {
  return {{"reason", observe::reason_info(why.reason).name},
          {"sentence", observe::reason_info(why.reason).sentence},
          {"detail", field_text(why.detail)},
          {"count", why.count},
          {"fd", why.fd},
          {"protocol", protocol_text(why.protocol)},
          {"address", endpoint_text(why.address, why.port)},
          {"first_ns", why.first_ns},
          {"last_ns", why.last_ns}};
}

void print_json(const Json& json) {
  fmt::print("{}\n", json.dump(2, ' ', false, Json::error_handler_t::replace));
}

void print_table(const std::vector<std::vector<std::string>>& rows, const char* indent) {
  std::vector<std::size_t> widths(rows.at(0).size());
  for (const auto& row : rows)
    for (std::size_t i = 0; i < row.size(); i++) widths[i] = std::max(widths[i], width_of(row[i]));
  for (const auto& row : rows) {
    std::string line = indent;
    for (std::size_t i = 0; i < row.size(); i++) {
      const std::string padding(widths[i] - width_of(row[i]), ' ');
      const bool right = rows.size() > 1 && is_number(rows[1][i]) && (is_number(row[i]) || &row == &rows[0]);
      line += right ? padding + row[i] : row[i] + padding;
      line += "  ";
    }
    line.erase(line.find_last_not_of(' ') + 1);
    fmt::print("{}\n", line);
  }
}

void print_process_line(const observe::Snapshot& process) {
  fmt::print("{}  pid {}{}{}  profile {}  libbypass {}  for {}\n", process.command, process.pid,
             process.elsewhere ? " (in another pid namespace)" : "",
             process.follows() ? fmt::format("  port of pid {}", process.port_owner) : "", process.profile,
             process.library_version, age_text(process.created_ns));
}

}  // namespace bypass::tool
