#include "config/port_use.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

#include "backends/claim_name.h"
#include "backends/pci_answers.h"
#include "backends/pci_card.h"
#include "backends/soft_name.h"
#include "backends/wire_target.h"
#include "config/port_check.h"
#include "os/net/address_text.h"
#include "os/os.h"
#include "os/own/own_work.h"

namespace bypass::runtime {
namespace {

enum class Use { kBound, kListening, kConnected };

std::string unix_sockets() {
  std::string text;
  const long fd = os::call(SYS_openat, AT_FDCWD, os::address("/proc/net/unix"), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return text;
  std::array<char, 8192> part;
  for (;;) {
    const long got = os::call(SYS_read, fd, os::address(part.data()), part.size());
    if (got <= 0) break;
    text.append(part.data(), static_cast<std::size_t>(got));
  }
  os::call(SYS_close, fd);
  return text;
}

std::string_view next_word(std::string_view& line) {
  const std::size_t begin = std::min(line.find_first_not_of(' '), line.size());
  const std::size_t end = std::min(line.find(' ', begin), line.size());
  const std::string_view word = line.substr(begin, end - begin);
  line.remove_prefix(end);
  return word;
}

// "address: references protocol flags type state inode name", of unix_seq_show() of Linux.
std::optional<Use> use_of(std::string_view line, std::string_view name) {
  if (!line.ends_with(name)) return std::nullopt;
  std::array<std::string_view, 7> words;
  for (std::string_view& word : words) word = next_word(line);
  if (!line.starts_with(' ') || line.substr(1) != name) return std::nullopt;
  if (words[3] == "00010000") return Use::kListening;       // __SO_ACCEPTCON
  return words[5] == "03" ? Use::kConnected : Use::kBound;  // SS_CONNECTED: a stream that was accepted
}

bool is_there(std::string_view sockets, std::string_view name, Use wanted) {
  while (!sockets.empty()) {
    const std::size_t end = std::min(sockets.find('\n'), sockets.size());
    if (use_of(sockets.substr(0, end), name) == wanted) return true;
    sockets.remove_prefix(std::min(end + 1, sockets.size()));
  }
  return false;
}

std::string wire_in_use(const PortConfig& port) {
  if (port.kind == "vhost" && is_there(unix_sockets(), wire_target(port.target).path, Use::kListening))
    return "another process serves this path";
  if (port.kind == "virtio" && is_there(unix_sockets(), wire_target(port.target).path, Use::kConnected))
    return "another client is connected there";
  if (const auto card = card_of(port)) {
    const Inside inside;  // /proc and the card's file are read by libc's own calls
    const std::string holder = card_holder(read_pci_card(*card));
    return holder.empty() ? "" : holder + " has the card";
  }
  if (!is_interface_kind(port.kind) || port.shared) return "";
  const std::string sockets = unix_sockets();
  for (const Prefix& prefix : port.addresses) {
    const auto address = to_text(prefix.address);
    if (is_there(sockets, "@" + claim_name(port.target, address.view()), Use::kBound))
      return "another process has the address " + std::string(address.view()) + " on this interface";
  }
  return "";
}

}  // namespace

std::string port_in_use(const Config& config, const PortConfig& port) {
  const auto soft = port.kind == "verbs" ? soft_index(port.target) : std::nullopt;
  if (!soft || *soft >= config.soft.size()) return wire_in_use(port);
  const std::string use = wire_in_use(config.soft[*soft]);
  return use.empty() ? "" : soft_problem(config.soft[*soft], use);
}

}  // namespace bypass::runtime
