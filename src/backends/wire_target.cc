#include "backends/wire_target.h"

#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace bypass {
namespace {

constexpr std::string_view kAccepted =
    "; accepted is a folder of one's own ($XDG_RUNTIME_DIR, or one below /run that others may not write into)";

/// Whether the uid is that of a user who has no number here: user_namespaces(7) shows the owner of such a user's file
/// as this uid. In a user namespace of few users, root's folders look like that.
bool is_without_number(uid_t user) {
  constexpr uid_t kOverflow = 65534;
  if (user != kOverflow) return false;
  std::FILE* const file = std::fopen("/proc/self/uid_map", "re");
  if (file == nullptr) return false;
  unsigned first = 0, outside = 0, count = 0;
  const bool has_all = std::fscanf(file, "%u %u %u", &first, &outside, &count) == 3 && count == UINT32_MAX;
  std::fclose(file);
  return !has_all;
}

bool is_trusted(uid_t user, std::optional<uid_t> peer) {
  return user == 0 || user == geteuid() || user == peer || is_without_number(user);
}

/// Whether others may replace what lies in the folder. With the sticky bit, only the owners of the entry and of the
/// folder may rename or remove an entry (unlink(2)). A group with the same number as its user is that user's alone
/// (useradd's USERGROUPS_ENAB).
bool is_open_to_others(const struct stat& status) {
  if ((status.st_mode & S_ISVTX) != 0) return false;
  const bool is_private_group = status.st_gid == 0 || status.st_gid == status.st_uid;
  return (status.st_mode & S_IWOTH) != 0 || ((status.st_mode & S_IWGRP) != 0 && !is_private_group);
}

std::string folder_problem(const std::string& folder, std::optional<uid_t> peer) {
  struct stat status {};
  if (stat(folder.c_str(), &status) != 0) return "the folder " + folder + ": " + strerrordesc_np(errno);
  if (!is_trusted(status.st_uid, peer))
    return "the folder " + folder + " is that of the user " + std::to_string(status.st_uid) +
           ", who can put a socket at this path" + std::string(kAccepted) +
           ", or ,peer=" + std::to_string(status.st_uid) + " behind the path";
  if (!is_open_to_others(status)) return "";
  return "others may write into the folder " + folder + ", and put a socket at this path" + std::string(kAccepted);
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

// The function does not use getpwnam(3), because that opens whatever nsswitch.conf(5) names.
std::optional<uid_t> user_number(std::string_view user) {
  uid_t number = 0;
  const char* const end = user.data() + user.size();
  if (const auto read = std::from_chars(user.data(), end, number); read.ec == std::errc{} && read.ptr == end)
    return number;
  std::FILE* const file = std::fopen("/etc/passwd", "re");
  if (file == nullptr) return std::nullopt;
  std::optional<uid_t> found;
  while (!found) {
    const passwd* const entry = fgetpwent(file);
    if (entry == nullptr) break;
    if (user == entry->pw_name) found = entry->pw_uid;
  }
  std::fclose(file);
  return found;
}

// Each folder above counts, too: a process that may write there can put another folder in the place of the next one.
std::string wire_problem(const WireTarget& target) {
  const auto peer = target.has_peer ? user_number(target.peer) : std::nullopt;
  if (target.has_peer && !peer)
    return "peer=" + std::string(target.peer) +
           ": there is no such user in /etc/passwd; accepted is a name from there, or a user's number";
  const std::string named = folder_of(std::string(target.path));
  char resolved[PATH_MAX];
  if (realpath(named.c_str(), resolved) == nullptr) return "the folder " + named + ": " + strerrordesc_np(errno);
  for (std::string folder = resolved;; folder = folder_of(folder)) {
    if (std::string problem = folder_problem(folder, peer); !problem.empty()) return problem;
    if (folder == "/") return "";
  }
}

}  // namespace bypass
