// Tells what stands in the way of a `pci:` port, before DPDK is asked: which driver has the card, which command binds
// the right one, and what the machine lacks. Every text says what is wrong and what is accepted.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "backends/pci_card.h"

namespace bypass {

/// How much of its memory a process may lock. vfio pins everything that a card may write to (RLIMIT_MEMLOCK,
/// capabilities(7)).
struct LockLimit {
  std::uint64_t bytes = UINT64_MAX;
  bool is_exempt = true;  // the process has CAP_IPC_LOCK
};
LockLimit lock_limit_of_process();

/// Empty: a port on the card is possible, as far as can be told without opening the card. `root`: as in
/// read_pci_card().
std::string card_problem(const PciCard& card, const std::string& root = "");

/// Empty: the limit suffices for so many bytes. For a card on vfio-pci, or one whose kernel driver stays bound.
std::string lock_problem(const PciCard& card, std::uint64_t bytes, const LockLimit& limit);

/// Whether this process may see physical addresses: CAP_SYS_ADMIN, by which proc_pid_pagemap(5) shows them.
bool may_see_physical_addresses();

/// What a process lacks for a card that needs_physical_addresses(). Only huge pages stay at one such address. Empty:
/// nothing.
std::string physical_problem(const PciCard& card, std::uint64_t bytes, bool huge_pages, bool sees_addresses);

/// Which pages the memory of a process's ports would lie in now, and what is wrong with that.
struct PagePlan {
  std::string text;
  std::string problem;  // empty: none
};
PagePlan page_plan(const PciCard& card, std::uint64_t bytes, bool huge_allowed, bool sees_addresses,
                   const std::string& root = "");

/// The other process that has the card now, as "the process 812 (redis-server)", if it can be seen. Empty: none. To
/// find out, it opens the card's device file for a moment; another process may fail to open it meanwhile.
std::string card_holder(const PciCard& card, const std::string& root = "");

/// Empty: this process may have the card now. `busy`: another process has the card.
std::string access_problem(const PciCard& card, bool& busy, const std::string& root = "");

/// open(2), or a test's stand-in with failures that a real file does not give.
using OpenFile = int (*)(const char* path, int flags);
void set_open_file(OpenFile open_file);
/// VFIO_CHECK_EXTENSION for VFIO_TYPE1_IOMMU on /dev/vfio/vfio (linux/vfio.h), or a test's stand-in: 1 is yes.
using AskContainer = int (*)(int container);
void set_ask_container(AskContainer ask);

/// A process other than this one that has the file open, as "the process 812 (redis-server)". Empty: none can be seen.
std::string other_holder(const std::string& file);

/// What a port on the card will be, for people: pairs of a word and a text, in the order to show them. `further`: what
/// stands in the way besides card_problem().
using CardPlan = std::vector<std::pair<std::string, std::string>>;
CardPlan card_plan(const PciCard& card, const std::string& further = "", const std::string& root = "");

/// The memory that DPDK locks besides the ports' frames: its own tables, queues and rings.
inline constexpr std::uint64_t kDpdkOverhead = std::uint64_t{48} << 20;
/// The memory for frames of a port that names none.
inline constexpr std::uint32_t kDefaultPortMemory = std::uint32_t{64} << 20;

/// All that a process with so many ports has DPDK take; `port_memory` 0: the default.
constexpr std::uint64_t dpdk_bytes(std::uint64_t port_memory, std::size_t ports) {
  return kDpdkOverhead + (port_memory != 0 ? port_memory : kDefaultPortMemory) * ports;
}

}  // namespace bypass
