// DPDK's environment layer: started late, once a copy of the plugin, trimmed to about 10 ms and silent.
//
// rte_eal_init ends the program, prints its usage text or panics on machines it does not like; everything
// of that kind that is known is looked at first, and the rest is caught (guard.h). It must never be called
// twice in one copy: after a failure this copy stays without EAL and says why.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "backends/backend.h"

namespace bypass::dpdk {

struct EalRequest {
  std::vector<std::string> cards;  // PCI addresses of all ports of the process; empty: no PCI scan at all
  std::size_t buffer_bytes = 0;    // what the buffers of all ports may grow to together
  Hugepages hugepages = Hugepages::kAuto;
};

/// Starts EAL unless it runs. Control thread only. False: `problem` says why.
bool start_eal(const EalRequest& request, std::string& problem);

[[nodiscard]] bool eal_runs();
/// Whether buffers lie in huge pages (else in one memfd of small pages).
[[nodiscard]] bool eal_has_huge_pages();
/// Whether cards take physical addresses: then memory is one piece for them within a huge page only.
[[nodiscard]] bool eal_has_physical_addresses();

/// In a forked child: what it has of the parent's frames and tables, which lie in memory that both could write, is
/// replaced by pages of its own, empty ones. Async-signal-safe.
void hide_memory_in_child();

/// The last error lines that DPDK logged since the previous call, for `problem` texts; empty when none.
std::string take_dpdk_errors();
/// Adds a line to these: a cause that DPDK does not see.
void note_error(const std::string& line);

}  // namespace bypass::dpdk
