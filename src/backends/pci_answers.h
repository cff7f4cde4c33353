// What stands in the way of a `pci:` port, told before DPDK is asked: which driver has the card, the command that binds
// it, and what of the machine is missing. Every text says what is wrong and what is accepted.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "backends/pci_card.h"

namespace bypass {

/// What a process may lock of its memory: vfio pins all that a card may write to (RLIMIT_MEMLOCK, capabilities(7)).
struct LockLimit {
  std::uint64_t bytes = UINT64_MAX;
  bool is_exempt = true;  // has CAP_IPC_LOCK
};
LockLimit lock_limit_of_process();

/// Empty: a port can be had of the card, as far as can be told without asking for it. `root` as in read_pci_card().
std::string card_problem(const PciCard& card, const std::string& root = "");

/// Empty: the limit suffices for so many bytes. Of a card on vfio-pci, or one that works beside its kernel driver.
std::string lock_problem(const PciCard& card, std::uint64_t bytes, const LockLimit& limit);

/// Which pages the memory of a process's ports would lie in now, and what is wrong with that. Only huge ones stay at
/// one physical address, which a card needs where no IOMMU translates.
struct PagePlan {
  std::string text;
  std::string problem;  // empty: none
};
PagePlan page_plan(const PciCard& card, std::uint64_t bytes, bool huge_allowed, const std::string& root = "");

/// The process other than this that has the card now, "the process 812 (redis-server)", as far as it can be seen.
/// Empty: nobody. It opens the card's device file for a moment, as the next one does.
std::string card_holder(const PciCard& card, const std::string& root = "");

/// Empty: this process may have the card now. `busy`: another process has it.
std::string access_problem(const PciCard& card, bool& busy, const std::string& root = "");

/// open(2), whose failures a test cannot have of a file.
using OpenFile = int (*)(const char* path, int flags);
void set_open_file(OpenFile open_file);

/// "the process 812 (redis-server)", one other than this that has the file open; empty: none that can be seen.
std::string other_holder(const std::string& file);

/// What a port of the card will be, for people: pairs of a word and a text, in the order to show them. `further`: what
/// stands in its way beside card_problem().
using CardPlan = std::vector<std::pair<std::string, std::string>>;
CardPlan card_plan(const PciCard& card, const std::string& further = "", const std::string& root = "");

/// The memory that DPDK takes beside the ports' frames: its own tables, queues and rings.
inline constexpr std::uint64_t kDpdkOverhead = std::uint64_t{48} << 20;
/// The memory for frames of a port that names none.
inline constexpr std::uint32_t kDefaultPortMemory = std::uint32_t{64} << 20;

/// All that a process with so many ports has DPDK take; `port_memory` 0: the default.
constexpr std::uint64_t dpdk_bytes(std::uint64_t port_memory, std::size_t ports) {
  return kDpdkOverhead + (port_memory != 0 ? port_memory : kDefaultPortMemory) * ports;
}

}  // namespace bypass
