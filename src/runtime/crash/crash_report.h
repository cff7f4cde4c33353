// The text of a crash report. Private to the crash handler.
#pragma once

#include <csignal>

namespace bypass::runtime::crash {

/// The backtrace plugin's function: prints the frames from a signal's context, a line each.
using Backtrace = void (*)(void* context, void (*line)(const char* text));

void set_backtrace(Backtrace backtrace);

/// Whether the code at this address belongs to the library (see cover()).
bool covers(const void* address);
const void* program_counter(const void* context);

void report(int signal, const siginfo_t& info, void* context, const char* doing);

/// For a fault inside report(): leaves it. Returns if the calling thread is not inside a report.
void escape_from_report();

/// In a forked child: the thread that wrote a report does not exist here.
void forget_report();

}  // namespace bypass::runtime::crash
