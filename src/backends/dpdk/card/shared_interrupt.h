// Interrupt descriptors that a port's sleeper has in common with EAL's interrupt thread.
//
// A card with one vector for everything (MSI, INTx, uio) tells of frames and of its link by one eventfd. EAL's thread
// reads it, often before the sleeper's poll() has looked: then the event is lost for the sleeper. Each read() of
// DPDK's passes wraps_descriptors.cc, which tells the port.
#pragma once

namespace bypass::dpdk {

/// From here on call(argument) follows each read of `fd` by DPDK, on its thread. Control thread. False: no room, the
/// port then finds its frames by looking (interrupt_trust.h).
bool follow_reads(int fd, void (*call)(void*), void* argument);
/// Returns when no such call is under way.
void unfollow_reads(int fd);
/// For the wrapper of read().
void on_dpdk_read(int fd);

}  // namespace bypass::dpdk
