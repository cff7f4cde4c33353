#include "runtime/ports/plugin_path.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "config/settings_text.h"

namespace bypass::runtime {
namespace {

std::string read_maps() {
  std::string text;
  const int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return text;
  char buffer[16384];
  for (ssize_t got; (got = read(fd, buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<std::size_t>(got));
  close(fd);
  return text;
}

// "7f12-7f34 r-xp 00000000 08:01 123 /path": whether the address is in this range.
bool holds(std::string_view line, std::uintptr_t address) {
  std::uintptr_t low = 0, high = 0;
  const char* const last = line.data() + line.size();
  const auto [dash, low_error] = std::from_chars(line.data(), last, low, 16);
  if (low_error != std::errc{} || dash == last) return false;
  const auto [end, high_error] = std::from_chars(dash + 1, last, high, 16);
  return high_error == std::errc{} && low <= address && address < high;
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos || slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

std::string file_of_address(const void* address) {
  const std::string maps = read_maps();
  for (const std::string_view line : split(maps, '\n')) {
    if (!holds(line, reinterpret_cast<std::uintptr_t>(address))) continue;
    const std::size_t path = line.find('/');
    return path == std::string_view::npos ? "" : std::string(line.substr(path));
  }
  return "";
}

std::vector<std::string> plugin_folders() {
  std::vector<std::string> folders;
  const std::string own = file_of_address(reinterpret_cast<const void*>(&plugin_folders));
  if (!own.empty()) {
    const std::string beside = folder_of(own);
    folders.push_back(beside);
    folders.push_back(beside + "/bypass");
    if (beside == BYPASS_BUILD_PROGRAMS) folders.push_back(folder_of(beside));
  }
  folders.emplace_back(BYPASS_PLUGIN_FOLDER);
  return folders;
}

std::string plugin_problem(const std::string& path) {
  struct stat file {
  }, own{};
  if (stat(path.c_str(), &file) != 0) return strerrordesc_np(errno);
  const std::string library = file_of_address(reinterpret_cast<const void*>(&plugin_folders));
  const bool has_own = !library.empty() && stat(library.c_str(), &own) == 0;
  const bool is_trusted = file.st_uid == 0 || file.st_uid == geteuid() || (has_own && file.st_uid == own.st_uid);
  if (!is_trusted) return "it belongs to the user " + std::to_string(file.st_uid);
  return (file.st_mode & S_IWOTH) != 0 ? "everybody may write it" : "";
}

}  // namespace bypass::runtime
