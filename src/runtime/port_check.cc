#include "runtime/port_check.h"

#include <fcntl.h>
#include <net/if.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runtime/settings.h"

namespace bypass::runtime {
namespace {

std::string port_text(const PortConfig& port) {
  return port.target.empty() ? port.kind : port.kind + ":" + port.target;
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// The end that serves the socket makes it; the other one may be there first.
std::string check_socket(const std::string& path, bool makes_it) {
  if (path.back() == '/') return "names a folder; accepted is the path of a socket in it";
  const std::string folder = folder_of(path);
  struct stat status {};
  if (stat(folder.c_str(), &status) != 0) return "the folder " + folder + ": " + strerrordesc_np(errno);
  if (!S_ISDIR(status.st_mode)) return folder + " is no folder";
  if (faccessat(AT_FDCWD, folder.c_str(), makes_it ? W_OK | X_OK : X_OK, AT_EACCESS) == 0) return "";
  return (makes_it ? "no socket can be made in " : "no socket can be reached in ") + folder + ": " +
         strerrordesc_np(errno);
}

std::string check_interface(const std::string& name) {
  return if_nametoindex(name.c_str()) == 0 ? "no network interface of that name (see: ip link)" : "";
}

std::string check_tap() {
  if (access("/dev/net/tun", R_OK | W_OK) == 0) return "";
  return std::string("/dev/net/tun: ") + strerrordesc_np(errno);
}

std::string check_pci(const std::string& address) {
  const bool short_form = std::count(address.begin(), address.end(), ':') == 1;
  const std::string path = "/sys/bus/pci/devices/" + (short_form ? "0000:" + address : address);
  return access(path.c_str(), F_OK) == 0 ? "" : "no such device (see: lspci -D)";
}

}  // namespace

std::string quick_check(const PortConfig& port) {
  if (port.kind == "netdev") return "not built yet; use af_xdp:" + port.target + " or af_packet:" + port.target;
  if (!kind_built(port.kind)) return "not built yet";
  if (port.kind == "vhost" || port.kind == "virtio") return check_socket(port.target, port.kind == "vhost");
  if (port.kind == "af_xdp" || port.kind == "af_packet") return check_interface(port.target);
  if (port.kind == "tap") return check_tap();
  if (port.kind == "pci") return check_pci(port.target);
  return "";
}

std::string named_problem(const Config& config, const PortConfig& port, const std::string& problem) {
  if (problem.starts_with("BYPASS_")) return problem;
  const Setting& setting = *setting_by_env("BYPASS_PORT");
  const bool of_file = config.values[setting_index(setting)].origin == Origin::kFile;
  const std::string name = std::string(of_file ? setting.key : setting.env) + "=";
  if (problem.starts_with(port_text(port) + ": ")) return name + problem;
  return name + port_text(port) + ": " + problem;
}

}  // namespace bypass::runtime
