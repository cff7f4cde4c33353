// A plugin's table of libc's functions: a list X(result, name, parameters) of those that it calls, made to members of a
// struct and filled through Host::libc, so that no call of the plugin can meet the preload library's interposer of it.
#pragma once

#define BYPASS_LIBC_MEMBER(result, name, parameters) result(*name) parameters = nullptr;

/// In a function that returns bool: fills `libc`, or returns false with `missing` the first name that libc lacks.
#define BYPASS_LIBC_LOOK_UP(result, name, parameters)                       \
  libc.name = reinterpret_cast<result(*) parameters>(process->libc(#name)); \
  if (libc.name == nullptr) {                                               \
    *missing = #name;                                                       \
    return false;                                                           \
  }
