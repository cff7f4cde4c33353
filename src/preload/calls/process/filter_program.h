// The answer of a filter of system calls (seccomp(2), classic BPF), computed before the kernel has the filter.
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>

#include <cstdint>
#include <span>

namespace bypass::preload {

/// SECCOMP_RET_... with its data. SECCOMP_RET_KILL_PROCESS for a program that the kernel would refuse.
std::uint32_t answer_of(std::span<const sock_filter> program, const seccomp_data& call);

}  // namespace bypass::preload
