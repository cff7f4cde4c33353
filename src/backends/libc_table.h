// A plugin's table of libc's functions. A list X(result, name, parameters) of the functions that the plugin calls
// becomes the members of a struct, which is filled through Host::libc. So no call of the plugin can meet the preload
// library's interposer.
#pragma once

#include "backends/backend.h"

#define BYPASS_LIBC_MEMBER(result, name, parameters) result(*name) parameters = nullptr;

/// For use in a function that returns bool: fills `libc`. If libc lacks a function, it returns false with that name in
/// `missing`.
#define BYPASS_LIBC_LOOK_UP(result, name, parameters)                       \
  libc.name = reinterpret_cast<result(*) parameters>(process->libc(#name)); \
  if (libc.name == nullptr) {                                               \
    *missing = #name;                                                       \
    return false;                                                           \
  }

namespace bypass {

/// A plugin's first act: checks that this process is of the plugin's build and that `bind_libc` finds all functions. It
/// says what is missing.
inline bool accept_host(const Host* host, bool (*bind_libc)(const Host* host, const char** missing)) {
  if (host == nullptr || host->abi != kBackendAbi) return false;
  const char* missing = nullptr;
  if (bind_libc(host, &missing)) return true;
  host->log(LogLevel::kError, missing);
  return false;
}

}  // namespace bypass
