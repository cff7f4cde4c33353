#include "backends/dpdk/eal/eal.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <rte_cycles.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_log.h>
#include <rte_memory.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "backends/dpdk/card/card_memory.h"
#include "backends/dpdk/card/iova.h"
#include "backends/dpdk/card/vain_waits.h"
#include "backends/dpdk/drivers.h"
#include "backends/dpdk/eal/guard.h"
#include "backends/dpdk/eal/libc.h"
#include "backends/pci_answers.h"
#include "os/memory_maps.h"

namespace bypass::dpdk {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
// EAL, one port and its peer use about 20 descriptors; EAL panics when it finds none.
constexpr int kDescriptorsNeeded = 32;
// If there is room above the program's numbers, a new descriptor takes one of the program's only for a moment. A folder
// and a file in it, or both ends of a pair, take two at once.
constexpr int kMomentaryDescriptors = 4;
// Queues, rings and DPDK's own tables beside the buffers.
constexpr std::size_t kOverhead = kDpdkOverhead;

enum class State { kNotStarted, kRunning, kFailed };
State state = State::kNotStarted;
bool huge_pages = false;
bool physical = false;

// --- DPDK's log: errors are kept for `problem` texts, and everything is passed on at debug level
// The object is never destroyed: DPDK's threads may log while the program's static destructors run.
struct Log {
  std::mutex mutex;
  std::string recent_errors;
};
Log& dpdk_log() {
  static auto* log = new Log;
  return *log;
}

ssize_t on_log_write(void*, const char* text, std::size_t size) {
  std::string line(text, size);
  while (!line.empty() && line.back() == '\n') line.pop_back();
  if (line.empty()) return static_cast<ssize_t>(size);
  note_error(line);
  return static_cast<ssize_t>(size);
}

void redirect_log() {
  cookie_io_functions_t functions{};
  functions.write = on_log_write;
  FILE* file = fopencookie(nullptr, "w", functions);
  if (file == nullptr) return;
  setvbuf(file, nullptr, _IONBF, 0);
  rte_openlog_stream(file);
}

std::string& failure() {
  static auto* text = new std::string;
  return *text;
}

// --- What would make rte_eal_init end the process
bool descriptors_free(int count) {
  std::vector<int> held;
  for (int i = 0; i < count; i++) {
    const int fd = libc.eventfd(0, EFD_CLOEXEC);
    if (fd < 0) break;
    held.push_back(fd);
  }
  for (const int fd : held) libc.close(fd);
  return held.size() == static_cast<std::size_t>(count);
}

// Whether there is room above the program's numbers: a hard limit above the soft one, or the right to raise it.
bool has_numbers_above() {
  rlimit limits{};
  if (getrlimit(RLIMIT_NOFILE, &limits) != 0) return false;
  const rlim_t room = limits.rlim_max - limits.rlim_cur;
  if (room != 0 && room < kDescriptorsNeeded) return false;
  const int fd = libc.eventfd(0, EFD_CLOEXEC);
  if (fd < 0) return false;
  const int high = host->copy_high(fd);
  libc.close(fd);
  if (high < 0) return false;
  libc.close(high);
  return static_cast<rlim_t>(high) >= limits.rlim_cur;
}

rlim_t limit(int what) {
  rlimit value{};
  return getrlimit(static_cast<__rlimit_resource>(what), &value) == 0 ? value.rlim_cur : RLIM_INFINITY;
}

bool preflight(std::size_t bytes, std::string& problem) {
  for (const char* file : {"/proc/mounts", "/proc/meminfo", "/proc/self/status"}) {
    if (libc.access(file, R_OK) == 0) continue;
    problem = std::string("cannot start DPDK: ") + file + " cannot be read (it needs /proc, also in a chroot)";
    return false;
  }
  if (libc.access("/sys/devices/system/cpu/cpu0/topology/core_id", F_OK) != 0) {
    problem = "cannot start DPDK: /sys/devices/system/cpu is not there (it needs /sys, also in a chroot)";
    return false;
  }
  const int needed = has_numbers_above() ? kMomentaryDescriptors : kDescriptorsNeeded;
  if (!descriptors_free(needed)) {
    problem =
        "cannot start DPDK: it needs " + std::to_string(needed) + " free descriptors; raise RLIMIT_NOFILE (ulimit -n)";
    return false;
  }
  if (limit(RLIMIT_FSIZE) < bytes) {
    problem = "cannot start DPDK: RLIMIT_FSIZE (ulimit -f) is below the " + std::to_string(bytes / kMiB) +
              " MiB of shared memory that its buffers lie in";
    return false;
  }
  return true;
}

// --- Huge pages. They are used if enough are free now, for this user, and address space is not limited: in this mode
// DPDK reserves 134 GB of address space.
bool can_map_huge_page() {
  const int fd = libc.memfd_create("bypass-probe", MFD_CLOEXEC | MFD_HUGETLB | MFD_HUGE_2MB);
  if (fd < 0) return false;
  bool good = libc.ftruncate64(fd, kHugePage) == 0;
  if (good) {
    void* page = mmap(nullptr, kHugePage, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    good = page != MAP_FAILED;
    if (good) munmap(page, kHugePage);
  }
  libc.close(fd);
  return good;
}

bool huge_pages_suffice(std::size_t bytes) {
  if (free_huge_pages() < huge_pages_for(bytes)) return false;
  return limit(RLIMIT_AS) == RLIM_INFINITY && can_map_huge_page();
}

bool choose_pages(Hugepages wanted, std::size_t bytes, std::string& problem) {
  huge_pages = wanted != Hugepages::kOff && huge_pages_suffice(bytes);
  if (huge_pages || wanted != Hugepages::kOn) return true;
  problem = "BYPASS_HUGEPAGES=on: this process cannot have the " + std::to_string(huge_pages_for(bytes)) +
            " huge pages of 2 MiB that the port needs (" + std::to_string(free_huge_pages()) +
            " are free on this machine); accepted are auto and off, or more of them (sysctl vm.nr_hugepages)";
  return false;
}

// --- The start itself
struct Start {
  std::vector<std::string> words;
  int result = -1;
  int error = 0;
};

void call_init(void* argument) {
  auto* start = static_cast<Start*>(argument);
  std::array<char*, 24> argv{};
  int argc = 0;
  for (std::string& word : start->words) argv[static_cast<std::size_t>(argc++)] = word.data();
  start->result = rte_eal_init(argc, argv.data());
  start->error = rte_errno;
}

// Most drivers wait for their card by it, in a loop on the processor.
void delay_us(unsigned us) {
  if (!waits_in_vain()) rte_delay_us_block(us);
}

std::vector<std::string> arguments(const EalRequest& request, std::size_t bytes) {
  // The number of the core does not matter: EAL's calls that pin threads do nothing (wraps_process.cc).
  std::vector<std::string> words{"bypass", "--lcores=0@0", "--no-telemetry", "--log-level=error"};
  words.emplace_back(physical ? "--iova-mode=pa" : "--iova-mode=va");
  // A scan of PCI would try drivers on the machine's own cards. Here the only allowed address is one that no card has,
  // so the scan tries nothing. Each card is added when its port opens (Device::open).
  words.emplace_back(request.cards.empty() ? "--no-pci" : "--allow=ffff:ff:1f.7");
  // EAL asks for 4 GiB and on, which a process that was forked from another one with ports has filled already
  // (hide_memory_in_child). What the kernel gives instead may lie above what the IOMMU translates.
  constexpr std::size_t kAddresses = std::size_t{160} << 30;
  if (const std::uintptr_t place =
          request.cards.empty() ? 0 : free_below_iommu_limit(os::read_memory_maps(), kAddresses)) {
    char text[40];
    std::snprintf(text, sizeof text, "--base-virtaddr=0x%zx", place);
    words.emplace_back(text);
  }
  for (const std::string_view bus : closed_buses()) words.push_back("--allow=" + std::string(bus));
  if (huge_pages) {
    words.insert(words.end(), {"--in-memory", "--single-file-segments"});
  } else {
    // Small pages of one sparse memfd: a page that is not touched costs 64 bytes of a table and nothing more.
    words.insert(words.end(), {"--no-huge", "--no-shconf", "-m" + std::to_string(bytes / kMiB)});
  }
  return words;
}

/// The address ranges that EAL has reserved for its memory, most of them never touched.
struct Range {
  void* begin;
  std::size_t bytes;
};
std::array<Range, RTE_MAX_MEMSEG_LISTS> ranges{};
std::atomic<std::size_t> range_count{0};

int note_range(const rte_memseg_list* list, void* /*argument*/) {
  const std::size_t count = range_count.load(std::memory_order_relaxed);
  if (list->base_va == nullptr || count == ranges.size()) return 0;
  ranges[count] = {list->base_va, list->len};
  range_count.store(count + 1, std::memory_order_release);
  return 0;
}

bool fail(std::string text, std::string& problem) {
  state = State::kFailed;
  failure() = std::move(text);
  problem = failure();
  return false;
}

}  // namespace

bool start_eal(const EalRequest& request, std::string& problem) {
  if (state == State::kRunning) return true;
  if (state == State::kFailed) {
    problem = failure();
    return false;
  }
  const std::size_t bytes = kOverhead + request.buffer_bytes;
  if (!preflight(bytes, problem)) return false;  // nothing has been started: may be tried again
  if (!choose_pages(request.hugepages, bytes, problem)) return false;
  std::string card;
  physical = iova_of_cards(request.cards, card) == Iova::kPhysical;
  if (physical) problem = physical_problem(read_pci_card(card), bytes, huge_pages, may_see_physical_addresses());
  if (physical && !problem.empty()) {
    problem = "pci:" + card + ": " + problem;
    return false;
  }
  redirect_log();
  Start start{arguments(request, bytes)};
  std::string gave_up;
  if (!run_guarded(call_init, &start, gave_up)) return fail(std::move(gave_up), problem);
  if (start.result < 0)
    return fail("DPDK does not start: " + std::string(rte_strerror(start.error)) + " (" + take_dpdk_errors() + ")",
                problem);
  take_dpdk_errors();
  rte_delay_us_callback_register(delay_us);
  rte_memseg_list_walk(note_range, nullptr);
  state = State::kRunning;
  return true;
}

bool eal_runs() {
  return state == State::kRunning;
}
bool eal_has_huge_pages() {
  return huge_pages;
}
bool eal_has_physical_addresses() {
  return physical;
}

// The pages stay mapped, but empty. Nothing here reads them any more, but DPDK's code at a process's end might.
void hide_memory_in_child() {
  for (std::size_t i = 0; i < range_count.load(std::memory_order_acquire); i++)
    mmap(ranges[i].begin, ranges[i].bytes, PROT_READ | PROT_WRITE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

void note_error(const std::string& line) {
  host->log(LogLevel::kDebug, line.c_str());
  Log& log = dpdk_log();
  const std::lock_guard lock(log.mutex);
  if (log.recent_errors.size() < 600) log.recent_errors += (log.recent_errors.empty() ? "" : "; ") + line;
}

std::string take_dpdk_errors() {
  Log& log = dpdk_log();
  const std::lock_guard lock(log.mutex);
  return std::exchange(log.recent_errors, {});
}

}  // namespace bypass::dpdk
