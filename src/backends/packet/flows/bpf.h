// The bpf(2) system call, as far as this plugin needs it. Descriptors hold everything, and nothing is pinned. So the
// kernel removes maps, programs and links when the process is gone, however it ended.
#pragma once

#include <linux/bpf.h>

#include <cstdint>
#include <string>

#include "backends/packet/descriptor.h"
#include "backends/packet/flows/bpf_assembler.h"

namespace bypass::packet {

int bpf(bpf_cmd command, bpf_attr& attributes);

struct BpfKind {
  bpf_prog_type type;
  std::uint32_t attach_type;  // of the program's link; 0 for a program without a link
};
inline constexpr BpfKind kSocketFilter{BPF_PROG_TYPE_SOCKET_FILTER, 0};
inline constexpr BpfKind kXdp{BPF_PROG_TYPE_XDP, BPF_XDP};
/// TCX (since Linux 6.6): it runs behind the packet sockets and before a tc filter.
inline constexpr BpfKind kIngress{BPF_PROG_TYPE_SCHED_CLS, 46 /* BPF_TCX_INGRESS */};

/// The result is not open on failure, with errno. What the verifier says goes to the log.
Descriptor load_program(const BpfKind& kind, const BpfAssembler& program);

/// Attaches a program to the interface. The result is not open on failure, with errno.
Descriptor link_program(const BpfKind& kind, int program, int interface, std::uint32_t flags);

/// The capabilities that packet sockets and programs at interfaces need and this process lacks, such as "CAP_NET_RAW,
/// CAP_BPF". Empty: none is missing.
std::string missing_capabilities();

}  // namespace bypass::packet
