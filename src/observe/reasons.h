// Why something was left to the kernel, or could not be done as asked: one table with a name and a sentence for each
// reason. The numbers are part of the stats file's format: append, never reorder.
#pragma once

#include <cstdint>
#include <span>

namespace bypass::observe {

enum class Reason : std::uint16_t {
  kNone = 0,
  kNoPortConfigured,
  kConfigProblem,
  kNoRoute,
  kRuleKernel,
  kRuleFail,
  kLoopback,
  kDns,
  kAfUnsupported,
  kSocketTypeUnsupported,
  kOptionUnsupported,
  kFlagUnsupported,
  kPortUnavailable,
  kPortNotOpen,
  kPluginMissing,
  kNotBuilt,
  kAddressNotOurs,
  kAddressOfKernel,
  kArenaUnavailable,
  kRlimitFsize,
  kNoMemory,
  kEscapedFdopen,
  kEscapedExec,
  kEscapedIoUring,
  kEscapedSyscall,
  kEscapedPassed,
  kForkedChild,
  kStatsUnavailable,
  kNoSharedMemory,
  kSharedMemoryLost,
  kNoRdma,
  kRdmaLost,
  kNoShmLink,
  kShmLinkLost,
  kUnguarded,
  kLocalAfter,
  kLinkDown,
  kPeerPlain,
  kNoLane,
  kSyscallFilter,
  kAddressConflict,
  kInHandler,
  kGaveUpRights,
  kSharesWithLess,
  kSynFlood,
  kRunDirElsewhere,
  kPortLent,
  kNoInterrupts,
  kPumped,
  kOtherNetwork,
  kCardGone,
  kRelayed,
  kCount,
};

struct ReasonInfo {
  const char* name;      // for scripts: "no_route"
  const char* sentence;  // for people, without the final stop
};

std::span<const ReasonInfo> reasons();
/// Accepts any number: the file may come from a newer build.
const ReasonInfo& reason_info(std::uint16_t reason);

}  // namespace bypass::observe
