#include "runtime/ports/plugin.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "runtime/crash/crash.h"
#include "runtime/ports/plugin_path.h"

#ifndef MFD_EXEC
#define MFD_EXEC 0x0010U  // Linux 6.3; needed for a file that is mapped executable if vm.memfd_noexec is set
#endif

namespace bypass::runtime {
namespace {

std::string file_of(std::string_view name) {
  return "libbypass-" + std::string(name) + ".so";
}

// Empty: no folder has it; `searched` names the folders.
std::string find_file(const std::string& file, std::string& searched) {
  for (const std::string& folder : plugin_folders()) {
    std::string path = folder + "/" + file;
    std::string unusable;
    if (access(path.c_str(), R_OK) == 0) {
      unusable = plugin_problem(path);
      if (unusable.empty()) return path;
      unusable = " (that one is not used: " + unusable + ")";
    }
    searched += (searched.empty() ? "" : ", ") + folder + unusable;
  }
  return "";
}

void* open_object(const std::string& path, std::string& problem) {
  void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const why = dlerror();
    problem = path + " cannot be loaded: " + (why == nullptr ? "the dynamic linker gives no reason" : why);
  }
  return handle;
}

Backend* backend_of(void* handle, const std::string& path, const Host& host, std::string& problem) {
  const auto entry = reinterpret_cast<BackendEntry>(dlsym(handle, kBackendSymbol.data()));
  Backend* const backend = entry == nullptr ? nullptr : entry(&host);
  if (backend != nullptr) {
    crash::cover(reinterpret_cast<const void*>(entry));
    return backend;
  }
  problem = entry == nullptr ? path + " is no plugin of libbypass: it exports no " + std::string(kBackendSymbol)
                             : path + " is of another build of libbypass (plugin interface " +
                                   std::to_string(kBackendAbi) + " is wanted): install both from one build";
  dlclose(handle);
  return nullptr;
}

int make_memfd(const char* name) {
  const int fd = memfd_create(name, MFD_CLOEXEC | MFD_EXEC);
  return fd < 0 && errno == EINVAL ? memfd_create(name, MFD_CLOEXEC) : fd;  // before Linux 6.3
}

bool copy_bytes(int from, int to) {
  char buffer[65536];
  for (;;) {
    const ssize_t got = read(from, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return got == 0;
    for (ssize_t done = 0; done < got;) {
      const ssize_t put = write(to, buffer + done, static_cast<std::size_t>(got - done));
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) return false;
      done += put;
    }
  }
}

// A write past the limit would not only fail but also send SIGXFSZ.
bool limit_allows(int file) {
  struct stat status {};
  rlimit limit{};
  if (fstat(file, &status) != 0 || getrlimit(RLIMIT_FSIZE, &limit) != 0) return true;
  return limit.rlim_cur >= static_cast<rlim_t>(status.st_size);
}

// An anonymous file with the plugin's bytes; -1 with errno.
int copy_file(const std::string& path) {
  const int from = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (from < 0) return -1;
  int to = -1;
  if (!limit_allows(from)) {
    errno = EFBIG;
  } else {
    to = make_memfd(path.c_str() + path.rfind('/') + 1);
    if (to >= 0 && !copy_bytes(from, to)) {
      const int error = errno;
      close(to);
      to = -1;
      errno = error;
    }
  }
  const int error = errno;
  close(from);
  errno = error;
  return to;
}

bool is_loaded(const std::string& name) {
  void* const handle = dlopen(name.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (handle != nullptr) dlclose(handle);
  return handle != nullptr;
}

// The dynamic linker takes a known name for the object that it has loaded, so each copy needs a new name. This code is
// in more than one library of a process (libbypass-softverbs.so opens plugins, too), and each counts separately.
std::string fresh_name(int fd) {
  static std::atomic<int> copies{0};
  for (;;) {
    std::string name = "/proc/" + std::to_string(getpid()) + "/fd/";
    for (int i = copies.fetch_add(1, std::memory_order_relaxed); i > 0; i--) name += "./";
    name += std::to_string(fd);
    if (!is_loaded(name)) return name;
  }
}

void read_by_plugin(std::string_view text, ConfigFile& file) {
  std::string problem;
  const auto read = reinterpret_cast<TomlReader>(plugin_function("toml", "bypass_read_toml", problem));
  if (read != nullptr) {
    read(text, file);
  } else {
    file.problems.push_back({"configuration file", file.path, "", "cannot be read: " + problem});
  }
}

}  // namespace

std::string find_plugin(std::string_view name, std::string& problem) {
  const std::string file = file_of(name);
  std::string searched;
  std::string path = find_file(file, searched);
  if (path.empty()) problem = "the plugin " + file + " is not installed: looked for in " + searched;
  return path;
}

bool file_of_build(const char* name, char* path, std::size_t size) {
  std::string searched;
  const std::string found = find_file(name, searched);
  if (found.empty() || found.size() >= size) return false;
  std::memcpy(path, found.c_str(), found.size() + 1);
  return true;
}

bool plugin_present(std::string_view name, std::string& problem) {
  return !find_plugin(name, problem).empty();
}

Backend* open_plugin_file(const std::string& path, const Host& host, std::string& problem) {
  void* const handle = open_object(path, problem);
  return handle == nullptr ? nullptr : backend_of(handle, path, host, problem);
}

Backend* open_plugin_file_copy(const std::string& path, const Host& host, std::string& problem) {
  const int fd = copy_file(path);
  if (fd < 0) {
    problem = path + " cannot be copied: " + strerrordesc_np(errno);
    return nullptr;
  }
  void* const handle = open_object(fresh_name(fd), problem);
  close(fd);
  return handle == nullptr ? nullptr : backend_of(handle, path, host, problem);
}

Backend* open_plugin(std::string_view name, const Host& host, std::string& problem) {
  const std::string path = find_plugin(name, problem);
  return path.empty() ? nullptr : open_plugin_file(path, host, problem);
}

Backend* open_plugin_copy(std::string_view name, const Host& host, std::string& problem) {
  const std::string path = find_plugin(name, problem);
  return path.empty() ? nullptr : open_plugin_file_copy(path, host, problem);
}

Backend* PluginSet::get(std::string_view name, const Host& host, std::string& problem) {
  for (const auto& [known, backend] : opened_)
    if (known == name) return backend;
  Backend* const backend = inherited_ ? open_plugin_copy(name, host, problem) : open_plugin(name, host, problem);
  if (backend != nullptr) opened_.emplace_back(name, backend);
  return backend;
}

void PluginSet::drop_in_child() {
  for (const auto& [name, backend] : opened_) backend->drop_in_child();
  inherited_ = inherited_ || !opened_.empty();
  opened_.clear();
}

void PluginSet::protect_descriptors(bool on) {
  for (const auto& [name, backend] : opened_) backend->protect_descriptors(on);
}

void* plugin_function(std::string_view name, const char* function, std::string& problem) {
  const std::string path = find_plugin(name, problem);
  void* const handle = path.empty() ? nullptr : open_object(path, problem);
  if (handle == nullptr) return nullptr;
  void* const found = dlsym(handle, function);
  if (found == nullptr) problem = path + " exports no " + function + ": install it from the same build as libbypass.so";
  return found;
}

TomlReader toml_reader() {
  return read_by_plugin;
}

}  // namespace bypass::runtime
