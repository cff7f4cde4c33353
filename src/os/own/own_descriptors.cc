#include "os/own/own_descriptors.h"

#include <limits.h>

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>

#include "os/log/log.h"
#include "os/os.h"

namespace bypass::runtime {
namespace {

// One bit for each descriptor number that a process can have (fs.nr_open, unless it was raised). Written without a
// lock, so that a signal handler or a second thread may register at the same time. Untouched pages cost nothing.
constexpr unsigned kWordBits = 64;
constexpr unsigned kMostDescriptors = 1U << 20;
std::array<std::atomic<std::uint64_t>, kMostDescriptors / kWordBits> g_own{};
std::atomic<unsigned> g_own_end{0};  // number of words ever used, which limits each search

std::uint64_t bit_of(unsigned number) {
  return std::uint64_t{1} << number % kWordBits;
}

}  // namespace

void own_descriptor(int fd, bool add) {
  const auto number = static_cast<unsigned>(fd);
  if (fd < 0) return;
  if (number >= kMostDescriptors) {
    if (add) BYPASS_LOG_WARN("descriptor %d of our own is not protected from the program's close: too high", fd);
    return;
  }
  std::atomic<std::uint64_t>& word = g_own[number / kWordBits];
  if (!add) {
    word.fetch_and(~bit_of(number), std::memory_order_acq_rel);
    return;
  }
  word.fetch_or(bit_of(number), std::memory_order_acq_rel);
  const unsigned end = number / kWordBits + 1;
  unsigned seen = g_own_end.load(std::memory_order_relaxed);
  while (seen < end && !g_own_end.compare_exchange_weak(seen, end, std::memory_order_acq_rel)) {
  }
}

bool owns_descriptor(int fd) {
  const auto number = static_cast<unsigned>(fd);
  return number < kMostDescriptors && (g_own[number / kWordBits].load(std::memory_order_acquire) & bit_of(number)) != 0;
}

void close_own_descriptors(int kept) {
  const unsigned end = g_own_end.load(std::memory_order_acquire);
  for (unsigned i = 0; i < end; i++) {
    std::uint64_t word = g_own[i].exchange(0, std::memory_order_acq_rel);
    for (; word != 0; word &= word - 1) {
      const int fd = static_cast<int>(i * kWordBits) + std::countr_zero(word);
      if (fd != kept) os::close(fd);
    }
  }
}

void close_others_descriptors() {
  unsigned from = 0;
  const auto close_below = [&from](unsigned own) {
    if (own > from) os::call(SYS_close_range, from, own - 1, 0);
    from = own + 1;
  };
  const unsigned end = g_own_end.load(std::memory_order_acquire);
  for (unsigned i = 0; i < end; i++)
    for (std::uint64_t word = g_own[i].load(std::memory_order_acquire); word != 0; word &= word - 1)
      close_below(i * kWordBits + static_cast<unsigned>(std::countr_zero(word)));
  os::call(SYS_close_range, from, static_cast<long>(UINT_MAX), 0);
}

}  // namespace bypass::runtime
