// Setup: the configuration of the software devices in this process, read at the first call that asks for devices.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>

#include "backends/backend.h"
#include "config/config.h"

namespace bypass::softverbs {

/// What BYPASS_SOFT and the settings beside it say. What is wrong with them has been said on standard error (or in
/// BYPASS_LOG_FILE); there are no devices then.
const runtime::Config& setup();

/// Says why something cannot be had as asked, and ends the program where BYPASS_STRICT is on. Where libbypass has
/// loaded this library, that says it: see bypass_softverbs_problem().
void report(const char* text);

/// What threads, descriptors and plugins are this process's by: our own, or libbypass's where it has loaded this
/// library.
const Host& host();
/// libbypass calls us for its own sockets: it has a patience of its own, and a thread that looks after it.
bool is_hosted();

/// Moves a descriptor of ours out of the program's reach; returns its new number.
int own_high(int fd);
void close_own(int fd);

}  // namespace bypass::softverbs

/// For libbypass, before its first ibv_get_device_list.
extern "C" void bypass_softverbs_use_host(const bypass::Host* host);
/// … and in a forked child, before libbypass makes descriptors there: lets go of what the child has inherited, which is
/// closed by its number.
extern "C" void bypass_softverbs_drop_in_child();
/// … where a device of ours could not be opened: why, ended by a zero; empty: nobody has said anything since this was
/// last asked.
extern "C" void bypass_softverbs_problem(char* out, std::size_t room);
/// … and of a device that it has opened: bytes of the largest IP packet on its wire. A card's interface says it.
extern "C" std::uint32_t bypass_softverbs_mtu(ibv_context* context);
/// … and how many frames for it were lost on this side of the wire: there was no room, or no receive request.
extern "C" std::uint64_t bypass_softverbs_lost(ibv_context* context);
