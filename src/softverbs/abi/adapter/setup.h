// Setup: the configuration of the software devices in this process, read at the first call that needs devices.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>

#include "backends/backend.h"
#include "config/config.h"

namespace bypass::softverbs {

/// The values of BYPASS_SOFT and the related settings. Problems were reported on standard error (or in
/// BYPASS_LOG_FILE); then there are no devices.
const runtime::Config& setup();

/// Reports why something cannot be had as asked, and ends the program if BYPASS_STRICT is on. If libbypass has loaded
/// this library, libbypass reports it: see bypass_softverbs_problem().
void report(const char* text);

/// Where threads, descriptors and plugins come from: our own, or libbypass's if it has loaded this library.
const Host& host();
/// True if libbypass calls us for its own sockets. It has its own waits, and a thread that looks after this library.
bool is_hosted();

/// Moves a descriptor of ours out of the program's range; returns its new number.
int own_high(int fd);
void close_own(int fd);

}  // namespace bypass::softverbs

/// To be called by libbypass before its first ibv_get_device_list.
extern "C" void bypass_softverbs_use_host(const bypass::Host* host);
/// To be called by libbypass in a forked child, before it makes descriptors there: releases what the child has
/// inherited, which is closed by its numbers.
extern "C" void bypass_softverbs_drop_in_child();
/// Backend::protect_descriptors() for the wires of devices that were open in this process.
extern "C" void bypass_softverbs_protect_descriptors(bool on);
/// For libbypass: why a device of ours could not be opened, zero-terminated. Empty: nothing was reported since the last
/// call.
extern "C" void bypass_softverbs_problem(char* out, std::size_t room);
/// For libbypass, about a device that it has opened: bytes of the largest IP packet on its wire. (For a card, its
/// interface tells.)
extern "C" std::uint32_t bypass_softverbs_mtu(ibv_context* context);
/// For libbypass: how many frames for the device were lost on this side of the wire, for lack of room or of a receive
/// request.
extern "C" std::uint64_t bypass_softverbs_lost(ibv_context* context);
