// What a filter of system calls (seccomp(2), classic BPF) answers, before the kernel has it.
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>

#include <cstdint>
#include <span>

namespace bypass::preload {

/// SECCOMP_RET_... with its data. SECCOMP_RET_KILL_PROCESS of a program that the kernel would not take.
std::uint32_t answer_of(std::span<const sock_filter> program, const seccomp_data& call);

}  // namespace bypass::preload
