// PlainHost: the smallest process that a backend can live in, for tests and benchmarks that use a plugin without
// libbypass. It has libc as it is, plain threads, and descriptors from 400 up.
#pragma once

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>
#include <string>

#include "backends/backend.h"

namespace bypass {

class PlainHost {
 public:
  static constexpr int kBase = 400;

  static const Host& host() {
    static const Host h = make();
    return h;
  }

  /// The backend of the plugin at `path`; null with dlopen's reason in `problem`.
  static Backend* load(const std::string& path, std::string& problem) {
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      problem = dlerror();
      return nullptr;
    }
    const auto entry = reinterpret_cast<BackendEntry>(dlsym(handle, "bypass_backend"));
    Backend* backend = entry == nullptr ? nullptr : entry(&host());
    if (backend == nullptr) problem = path + " is not of this build";
    return backend;
  }

  /// What the backend has logged at warning level and above.
  static std::string said() {
    const std::lock_guard lock(state().mutex);
    return state().said;
  }
  static std::set<int> owned() {
    const std::lock_guard lock(state().mutex);
    return state().owned;
  }

 private:
  struct State {
    std::mutex mutex;
    std::set<int> owned;
    std::string said;
  };
  struct Start {
    void (*body)(void*);
    void* argument;
  };

  static State& state() {
    static auto* s = new State;  // backends' threads outlive main()
    return *s;
  }

  static Host make() {
    Host h;
    h.libc = [](const char* name) { return dlsym(RTLD_DEFAULT, name); };
    h.copy_high = [](int fd) { return fcntl(fd, F_DUPFD_CLOEXEC, kBase); };
    h.own_descriptor = [](int fd, bool add) {
      const std::lock_guard lock(state().mutex);
      if (add)
        state().owned.insert(fd);
      else
        state().owned.erase(fd);
    };
    h.log = log;
    h.run_thread = run_thread;
    h.join_thread = [](std::uint64_t id) { pthread_join(static_cast<pthread_t>(id), nullptr); };
    h.file_of_build = [](const char*, char*, std::size_t) { return false; };
    h.environment = []() -> const char* const* { return environ; };
    h.guard_device_memory = [](const void*, std::size_t, bool) {};
    return h;
  }

  static void log(LogLevel level, const char* text) {
    if (std::getenv("BYPASS_TEST_VERBOSE") != nullptr) std::fprintf(stderr, "[%d] %s\n", static_cast<int>(level), text);
    if (level > LogLevel::kWarn) return;
    const std::lock_guard lock(state().mutex);
    state().said += std::string(text) + "\n";
  }

  static void* enter(void* argument) {
    const Start start = *static_cast<Start*>(argument);
    delete static_cast<Start*>(argument);
    start.body(start.argument);
    return nullptr;
  }

  static int run_thread(const char* name, void (*body)(void*), void* argument, std::uint64_t* id) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 256 << 10);  // as in libbypass, which gives backends no more
    pthread_t thread;
    const int error = pthread_create(&thread, &attributes, enter, new Start{body, argument});
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (error != 0) return error;
    pthread_setname_np(thread, name);
    *id = static_cast<std::uint64_t>(thread);
    return 0;
  }
};

}  // namespace bypass
