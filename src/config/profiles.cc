// Profiles: named sets of settings. `balanced` lists the defaults, so that it can be printed and changed like the
// others (a test checks that they agree).
#include <algorithm>
#include <array>

#include "config/settings.h"

namespace bypass::runtime {
namespace {

constexpr auto kBalanced = std::to_array<ProfileValue>({{"spin_us", "50"}, {"yield_us", "50"}});
// Yielding without end keeps two waiting threads on one processor from blocking each other.
constexpr auto kLatency = std::to_array<ProfileValue>(
    {{"spin_us", "50"}, {"yield_us", "forever"}, {"kernel_poll_us", "5"}, {"tcp.delack_us", "10000"}});
constexpr auto kThroughput = std::to_array<ProfileValue>(
    {{"spin_us", "20"}, {"yield_us", "200"}, {"kernel_poll_us", "100"}, {"tcp.sndbuf", "16M"}, {"tcp.rcvbuf", "16M"}});
constexpr auto kCpu = std::to_array<ProfileValue>({{"spin_us", "0"}, {"yield_us", "0"}, {"tick_ms", "40"}});

constexpr auto kProfiles = std::to_array<ProfileInfo>({
    {"balanced", "polls for some tens of microseconds, then sleeps", kBalanced},
    {"latency", "a waiting thread polls for ever", kLatency},
    {"throughput", "large buffers; waits for company before it wakes", kThroughput},
    {"cpu", "never polls: sleeps at once", kCpu},
});

}  // namespace

std::span<const ProfileInfo> profiles() {
  return kProfiles;
}

const ProfileInfo* profile_by_name(std::string_view name) {
  const auto at =
      std::find_if(kProfiles.begin(), kProfiles.end(), [name](const ProfileInfo& p) { return p.name == name; });
  return at == kProfiles.end() ? nullptr : &*at;
}

}  // namespace bypass::runtime
