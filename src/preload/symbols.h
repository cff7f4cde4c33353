// Real: libc's own functions behind the names that this library exports.
//
// The table is usable from the first instruction on. Until our constructor has filled it, an entry makes the system
// call itself (an allocator reads files before anything else has run, and dlsym may allocate). If there is no such
// system call, it fills the table first. Private to a process; written once.
#pragma once

#include <aio.h>
#include <netdb.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "preload/real_list.h"

namespace bypass::preload {

#define BYPASS_REAL_MEMBER(result, name, parameters) result(*name) parameters;
struct Real {
  BYPASS_REAL_CALLS(BYPASS_REAL_MEMBER)
  BYPASS_REAL_VARIADIC(BYPASS_REAL_MEMBER)
  BYPASS_REAL_OTHERS(BYPASS_REAL_MEMBER)
};
#undef BYPASS_REAL_MEMBER

extern Real real;

/// Fills this table and src/socket's. Idempotent; the constructor calls it.
void resolve_symbols();

}  // namespace bypass::preload

/// Defines an exported function. The label keeps it apart from libc's declaration, which may be noexcept, inline or a
/// macro. Our function is a cancellation point wherever libc's is.
#define BYPASS_EXPORT(result, name, parameters)                                         \
  extern "C" [[gnu::visibility("default")]] result bypass_##name parameters asm(#name); \
  extern "C" [[gnu::visibility("default")]] result bypass_##name parameters

/// Another name of libc's for an exported function of the same file.
#define BYPASS_ALIAS(name, exported) \
  extern "C" [[gnu::visibility("default"), gnu::alias(#exported)]] decltype(bypass_##exported) bypass_##name asm(#name)
