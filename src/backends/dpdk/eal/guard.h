// Runs DPDK code that would end the program on a failure (rte_panic, exit): the failure comes back as a
// text instead. What such code had locked stays locked, so the copy of EAL it happened in is done for.
#pragma once

#include <string>

namespace bypass::dpdk {

/// Calls body(argument). False: DPDK gave up; `problem` says why.
bool run_guarded(void (*body)(void*), void* argument, std::string& problem);

/// Ends the guarded call of this thread; without one, nothing.
void give_up_if_guarded(const char* where, const char* why);
/// Ends the guarded call of this thread; without one, the program (nothing can go on from a panic).
[[noreturn]] void give_up(const char* where, const char* why);

}  // namespace bypass::dpdk
