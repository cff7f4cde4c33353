#include "library.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "config/settings_text.h"
#include "program_file.h"

namespace bypass::tool {

namespace fs = std::filesystem;

std::string find_library(std::string_view name) {
  std::error_code error;
  const fs::path own = fs::read_symlink("/proc/self/exe", error).parent_path();
  for (const fs::path& folder : {own, own / BYPASS_LIBRARY_FROM_COMMAND, fs::path(BYPASS_LIBRARY_FOLDER)}) {
    const fs::path library = fs::weakly_canonical(folder / name, error);
    if (fs::exists(library, error)) return library;
  }
  return "";
}

std::string library_problem(const std::string& library, std::string_view name) {
  if (library.empty())
    return fmt::format("{} lies neither beside this command nor in {}: --library says where it is", name,
                       BYPASS_LIBRARY_FOLDER);
  if (access(library.c_str(), R_OK) != 0) return fmt::format("{}: {}", library, std::strerror(errno));
  if (!is_shared_object(library)) return fmt::format("{}: is no 64-bit shared library", library);
  if (const std::string found = soname_of(library); found != name)
    return fmt::format("{}: is {}; accepted is {}", library, found.empty() ? "another library" : found, name);
  // ld.so(8): the list is separated by colons and spaces, and nothing escapes them.
  if (library.find_first_of(": ") != std::string::npos)
    return fmt::format("{}: LD_PRELOAD takes no path with a colon or a space in it", library);
  return "";
}

std::vector<std::string> own_environment() {
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; entry++) environment.emplace_back(*entry);
  return environment;
}

void set_variable(std::vector<std::string>& environment, const std::string& name, const std::string& value) {
  std::erase_if(environment, [&name](const std::string& entry) {
    return entry.size() > name.size() && entry.starts_with(name) && entry[name.size()] == '=';
  });
  environment.push_back(name + "=" + value);
}

void put_before_preloads(std::vector<std::string>& environment, const std::string& library) {
  constexpr std::string_view kVariable = "LD_PRELOAD=";
  std::string preload = library, others;
  for (const std::string& entry : environment)
    if (entry.starts_with(kVariable)) others = entry.substr(kVariable.size());
  std::replace(others.begin(), others.end(), ':', ' ');
  for (const std::string_view other : runtime::split_words(others))
    if (other != library) preload += fmt::format(":{}", other);
  set_variable(environment, "LD_PRELOAD", preload);
}

std::vector<char*> pointers_to(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& string : strings) pointers.push_back(string.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace bypass::tool
