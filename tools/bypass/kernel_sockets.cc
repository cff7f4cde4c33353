#include "kernel_sockets.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>

#include "config/settings_text.h"

namespace bypass::tool {
namespace {

namespace fs = std::filesystem;
using observe::SocketPath;
using observe::SocketRecord;
using observe::SocketState;

using Inode = unsigned long;

/// The numbers of each socket of the process.
std::map<Inode, std::set<int>> sockets_of(int pid) {
  std::map<Inode, std::set<int>> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(fmt::format("/proc/{}/fd", pid), error)) {
    const std::string target = fs::read_symlink(entry.path(), error).string();
    const auto fd = runtime::parse_number(entry.path().filename().string());
    Inode inode = 0;
    if (fd.has_value() && std::sscanf(target.c_str(), "socket:[%lu]", &inode) == 1)
      found[inode].insert(static_cast<int>(*fd));
  }
  return found;
}

/// As in include/net/tcp_states.h. A datagram socket is TCP_ESTABLISHED or TCP_CLOSE.
SocketState state_of(unsigned number, std::uint8_t protocol) {
  if (protocol == IPPROTO_UDP) return SocketState::kOpen;
  static constexpr std::array kStates = {SocketState::kClosed,      SocketState::kEstablished, SocketState::kSynSent,
                                         SocketState::kSynReceived, SocketState::kFinWait1,    SocketState::kFinWait2,
                                         SocketState::kTimeWait,    SocketState::kClosed,      SocketState::kCloseWait,
                                         SocketState::kLastAck,     SocketState::kListen,      SocketState::kClosing,
                                         SocketState::kSynReceived};
  static_assert(TCP_CLOSING == 11);
  return number < kStates.size() ? kStates[number] : SocketState::kClosed;
}

/// Reads four or sixteen bytes, as words of the host's order in hexadecimal digits. The kernel's wildcard counts as no
/// address.
bool read_address(const char* digits, std::size_t length, IpAddress& out) {
  std::array<std::uint32_t, 4> words{};
  const std::size_t count = length / 8;
  for (std::size_t i = 0; i < count; i++)
    if (std::sscanf(digits + 8 * i, "%8x", &words[i]) != 1) return false;
  if (count == 1) {
    if (words[0] != 0) out = IpAddress::from_v4(be32_to_host(words[0]));
    return true;
  }
  std::memcpy(out.bytes.data(), words.data(), sizeof words);
  return count == words.size();
}

/// Reads a line of /proc/PID/net/tcp and the like: proc_pid_net(5).
bool read_line(const std::string& line, std::uint8_t protocol, SocketRecord& out, Inode& inode) {
  std::array<char, 33> local{}, remote{};
  unsigned local_port = 0, remote_port = 0, state = 0, tx = 0, rx = 0;
  const int n = std::sscanf(line.c_str(), " %*d: %32[0-9A-F]:%4x %32[0-9A-F]:%4x %x %x:%x %*x:%*x %*x %*u %*u %lu",
                            local.data(), &local_port, remote.data(), &remote_port, &state, &tx, &rx, &inode);
  if (n != 8) return false;
  out = {};
  const bool whole = read_address(local.data(), std::strlen(local.data()), out.local_address) &&
                     read_address(remote.data(), std::strlen(remote.data()), out.remote_address);
  out.protocol = protocol;
  out.path = static_cast<std::uint8_t>(SocketPath::kKernel);
  out.state = static_cast<std::uint8_t>(state_of(state, protocol));
  out.port = 255;
  out.local_port = static_cast<std::uint16_t>(local_port), out.remote_port = static_cast<std::uint16_t>(remote_port);
  out.rx_queue = rx, out.tx_queue = tx;
  return whole;
}

struct KernelSocket {
  SocketRecord record;
  bool is_v6;
};
using Tables = std::map<Inode, KernelSocket>;

Tables read_tables(int pid) {
  static constexpr std::array<std::pair<const char*, std::uint8_t>, 4> kTables = {
      {{"tcp", IPPROTO_TCP}, {"tcp6", IPPROTO_TCP}, {"udp", IPPROTO_UDP}, {"udp6", IPPROTO_UDP}}};
  Tables found;
  for (const auto& [name, protocol] : kTables) {
    std::ifstream table(fmt::format("/proc/{}/net/{}", pid, name));
    SocketRecord record;
    Inode inode = 0;
    for (std::string line; std::getline(table, line);)
      if (read_line(line, protocol, record, inode) && inode != 0)
        found.emplace(inode, KernelSocket{record, std::strchr(name, '6') != nullptr});
  }
  return found;
}

bool has_path(const SocketRecord& record, SocketPath path) {
  return record.path == static_cast<std::uint8_t>(path);
}

/// The kernel's tables, one set for each network namespace. They may be long, and the processes of a namespace have
/// them in common.
class TablesOfNamespaces {
 public:
  const Tables& of(int pid) {
    std::error_code error;
    const std::string name = fs::read_symlink(fmt::format("/proc/{}/ns/net", pid), error).string();
    const auto [at, is_new] = read_.try_emplace(name);
    if (is_new || name.empty()) at->second = read_tables(pid);
    return at->second;
  }

 private:
  std::map<std::string, Tables> read_;
};

void add_kernel_sockets(observe::Snapshot& process, TablesOfNamespaces& namespaces) {
  if (process.elsewhere) return;
  const std::map<Inode, std::set<int>> sockets = sockets_of(process.pid);
  if (sockets.empty()) return;
  const Tables& tables = namespaces.of(process.pid);
  std::map<int, observe::SocketEntry*> ours;
  for (auto& entry : process.sockets)
    if (entry.record.fd >= 0) ours.emplace(entry.record.fd, &entry);
  std::vector<observe::SocketEntry> others;
  for (const auto& [inode, numbers] : sockets) {
    const auto found = tables.find(inode);
    if (found == tables.end()) continue;
    auto [record, is_v6] = found->second;
    const auto known = std::find_if(numbers.begin(), numbers.end(), [&](int fd) { return ours.contains(fd); });
    record.fd = known == numbers.end() ? *numbers.begin() : *known;
    if (known == numbers.end()) {
      others.push_back({.record = record, .is_v6 = is_v6});
      continue;
    }
    observe::SocketEntry& own = *ours[*known];
    own.is_v6 = is_v6;
    if (has_path(own.record, SocketPath::kKernel)) {
      own.record = record;
    } else if (has_path(own.record, SocketPath::kShm)) {
      own.record.state = record.state;
    }
  }
  process.sockets.insert(process.sockets.end(), others.begin(), others.end());
}

}  // namespace

void add_kernel_sockets(std::vector<observe::Snapshot>& processes) {
  TablesOfNamespaces namespaces;
  for (observe::Snapshot& process : processes) add_kernel_sockets(process, namespaces);
}

}  // namespace bypass::tool
