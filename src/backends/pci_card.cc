#include "backends/pci_card.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <climits>
#include <cstdio>
#include <cstdlib>

#include "os/own/cancellation.h"

namespace bypass {
namespace {

constexpr std::uint32_t kBridgeClass = 0x06;
constexpr const char* kDevices = "/sys/bus/pci/devices/";

// Empty where the file cannot be read. The files of /sys are shorter than a page; a table of routes may be long.
std::string text_of(const std::string& path) {
  const socket::CancellationOff off;  // socket() and bind() ask for this, which are no cancellation points
  std::string text;
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return text;
  char part[4096];
  for (ssize_t n; (n = read(fd, part, sizeof part)) > 0;) text.append(part, static_cast<std::size_t>(n));
  close(fd);
  return text;
}

std::uint32_t number_of(const std::string& path) {
  return static_cast<std::uint32_t>(std::strtoul(text_of(path).c_str(), nullptr, 0));
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  DIR* const open_folder = opendir(folder.c_str());
  if (open_folder == nullptr) return names;
  while (const dirent* entry = readdir(open_folder))
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  closedir(open_folder);
  std::sort(names.begin(), names.end());
  return names;
}

// The last part of a symbolic link's target; empty: there is no such link.
std::string link_name(const std::string& path) {
  char target[PATH_MAX];
  const ssize_t length = readlink(path.c_str(), target, sizeof target);
  if (length <= 0) return "";
  const std::string_view text(target, static_cast<std::size_t>(length));
  return std::string(text.substr(text.rfind('/') + 1));
}

PciDevice read_device(const std::string& address, const std::string& root) {
  const std::string folder = root + kDevices + address;
  PciDevice device;
  device.address = address;
  device.vendor = static_cast<std::uint16_t>(number_of(folder + "/vendor"));
  device.device = static_cast<std::uint16_t>(number_of(folder + "/device"));
  device.class_code = number_of(folder + "/class");
  device.driver = kernel_driver_of(address, root);
  return device;
}

// The interface of a virtio card lies one device below the card.
std::vector<std::string> read_interfaces(const std::string& folder) {
  std::vector<std::string> all = names_in(folder + "/net");
  for (const std::string& below : names_in(folder))
    if (below.starts_with("virtio"))
      for (std::string& name : names_in(folder + "/" + below + "/net")) all.push_back(std::move(name));
  return all;
}

bool any_line(const std::string& text, const std::string& begin, const std::string& end) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t stop = std::min(text.find('\n', at), text.size());
    std::string_view line(text.data() + at, stop - at);
    while (!line.empty() && line.back() == ' ') line.remove_suffix(1);
    if (line.starts_with(begin) && line.ends_with(end)) return true;
    at = stop + 1;
  }
  return false;
}

// proc_net(5): a line of /proc/net/route has the interface first and the destination second. A line of
// /proc/net/ipv6_route (net/ipv6/route.c) has the destination first, the prefix length second and the interface last.
bool has_default_route(const std::string& interface, const std::string& root) {
  constexpr const char* kAny = "00000000000000000000000000000000 00 ";
  return any_line(text_of(root + "/proc/net/route"), interface + "\t00000000\t", "") ||
         any_line(text_of(root + "/proc/net/ipv6_route"), kAny, ' ' + interface);
}

// The interface that carries the default route: `interface` itself, or one that is built on it, such as a bridge.
// Empty: none does.
std::string route_of(const std::string& interface, const std::string& root, int depth = 0) {
  constexpr int kDeepest = 4;
  constexpr std::string_view kUpper = "upper_";
  if (has_default_route(interface, root)) return interface;
  if (depth == kDeepest) return "";
  for (const std::string& link : names_in(root + "/sys/class/net/" + interface)) {
    if (!link.starts_with(kUpper)) continue;
    if (std::string found = route_of(link.substr(kUpper.size()), root, depth + 1); !found.empty()) return found;
  }
  return "";
}

void read_routes(PciCard& card, const std::string& root) {
  for (const std::string& interface : card.interfaces) {
    const std::string carrier = route_of(interface, root);
    if (carrier.empty()) continue;
    card.default_route = interface;
    card.above = carrier == interface ? "" : carrier;
    return;
  }
}

void read_group(PciCard& card, const std::string& root) {
  card.group = link_name(root + kDevices + card.address + "/iommu_group");
  if (card.group.empty()) return;
  const std::string folder = root + "/sys/kernel/iommu_groups/" + card.group;
  card.is_without_iommu = text_of(folder + "/name").starts_with("vfio-noiommu");
  for (const std::string& address : names_in(folder + "/devices")) {
    if (address == card.address) continue;
    PciDevice other = read_device(address, root);
    if (other.class_code >> 16 != kBridgeClass) card.neighbours.push_back(std::move(other));
  }
}

// The file reads "none [integrity] confidentiality"; the word in brackets is in force.
std::string read_lockdown(const std::string& root) {
  const std::string text = text_of(root + "/sys/kernel/security/lockdown");
  const std::size_t begin = text.find('['), end = text.find(']');
  return begin == std::string::npos || end == std::string::npos ? "" : text.substr(begin + 1, end - begin - 1);
}

bool is_hex(std::string_view text, std::size_t digits) {
  return text.size() == digits &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isxdigit(c) != 0; });
}

// --- pci.ids(5): a vendor's line begins with its number, a device's with a tab and its number, both behind two blanks

std::string_view name_behind(std::string_view line, std::size_t at) {
  const std::size_t begin = line.find_first_not_of(' ', at);
  return begin == std::string_view::npos ? std::string_view() : line.substr(begin);
}

// Empty: the file does not know the vendor.
std::string name_in(std::string_view ids, const char* vendor, const char* device) {
  std::string name;
  while (!ids.empty()) {
    const std::string_view line = ids.substr(0, ids.find('\n'));
    ids.remove_prefix(std::min(line.size() + 1, ids.size()));
    if (line.empty() || line.front() == '#') continue;
    if (name.empty()) {
      if (line.starts_with(vendor)) name = name_behind(line, 4);
    } else if (line.front() != '\t') {
      break;  // here begins the next vendor
    } else if (line.substr(1).starts_with(device)) {
      return name + " " + std::string(name_behind(line, 5));
    }
  }
  return name;
}

}  // namespace

std::optional<std::string> full_pci_address(std::string_view text) {
  std::string full = std::count(text.begin(), text.end(), ':') == 1 ? "0000:" + std::string(text) : std::string(text);
  std::transform(full.begin(), full.end(), full.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const std::string_view view(full);
  const bool right = view.size() == 12 && view[4] == ':' && view[7] == ':' && view[10] == '.' &&
                     is_hex(view.substr(0, 4), 4) && is_hex(view.substr(5, 2), 2) && is_hex(view.substr(8, 2), 2) &&
                     view[11] >= '0' && view[11] <= '7';
  return right ? std::optional(full) : std::nullopt;
}

PciCard read_pci_card(const std::string& address, const std::string& root) {
  PciCard card;
  const std::string folder = root + kDevices + address;
  card.has_sysfs = sees_cards(root);
  card.is_there = access(folder.c_str(), F_OK) == 0;
  static_cast<PciDevice&>(card) = read_device(address, root);
  card.interfaces = read_interfaces(folder);
  card.has_uverbs = !names_in(folder + "/infiniband_verbs").empty();
  const std::vector<std::string> uio = names_in(folder + "/uio");
  card.uio = uio.empty() ? "" : uio.front();
  card.lockdown = read_lockdown(root);
  read_routes(card, root);
  read_group(card, root);
  return card;
}

std::string kernel_driver_of(const std::string& address, const std::string& root) {
  return link_name(root + kDevices + address + "/driver");
}

bool sees_cards(const std::string& root) {
  return access((root + kDevices).c_str(), F_OK) == 0;
}

std::string device_file(const PciCard& card) {
  if (!card.uio.empty()) return "/dev/" + card.uio;
  if (card.driver != "vfio-pci" || card.group.empty()) return "";
  return "/dev/vfio/" + std::string(card.is_without_iommu ? "noiommu-" : "") + card.group;
}

bool needs_physical_addresses(const PciCard& card) {
  if (card.driver == "uio_pci_generic" || card.driver == "igb_uio") return true;
  return card.driver == "vfio-pci" && (card.group.empty() || card.is_without_iommu);
}

std::uint64_t free_huge_pages(const std::string& root) {
  const std::string folder = root + "/sys/kernel/mm/hugepages/hugepages-2048kB";
  const std::uint32_t free = number_of(folder + "/free_hugepages"), reserved = number_of(folder + "/resv_hugepages");
  return free > reserved ? free - reserved : 0;
}

std::string pci_name(const PciDevice& device, const std::string& root) {
  char vendor[5], model[5];
  std::snprintf(vendor, sizeof vendor, "%04x", device.vendor);
  std::snprintf(model, sizeof model, "%04x", device.device);
  const std::string numbers = std::string(vendor) + ":" + model;
  for (const char* file : {"/usr/share/misc/pci.ids", "/usr/share/hwdata/pci.ids"})
    if (const std::string name = name_in(text_of(root + file), vendor, model); !name.empty())
      return name + " (" + numbers + ")";
  return "the card " + numbers;
}

}  // namespace bypass
