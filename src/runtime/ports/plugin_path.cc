#include "runtime/ports/plugin_path.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "os/memory_maps.h"

namespace bypass::runtime {
namespace {

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos || slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

std::string file_of_address(const void* address) {
  const std::string maps = os::read_memory_maps();
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  std::string file;
  os::for_each_mapping(maps, [&](const os::MemoryMapping& each) {
    const bool holds = each.begin <= wanted && wanted < each.end;
    if (holds && each.name.starts_with('/')) file = each.name;
    return !holds;
  });
  return file;
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
