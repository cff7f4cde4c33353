// The bpf(2) system call, as far as this plugin needs it. Everything hangs on descriptors and nothing is pinned: the
// kernel takes maps, programs and links away when the process is gone, however it went.
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
  std::uint32_t attach_type;  // of its link; 0 for a program that is no link's
};
inline constexpr BpfKind kSocketFilter{BPF_PROG_TYPE_SOCKET_FILTER, 0};
inline constexpr BpfKind kXdp{BPF_PROG_TYPE_XDP, BPF_XDP};
/// TCX, of Linux 6.6: in front of what a tc filter would see, behind the packet sockets.
inline constexpr BpfKind kIngress{BPF_PROG_TYPE_SCHED_CLS, 46 /* BPF_TCX_INGRESS */};

/// Not open: errno. What the verifier says goes to the log.
Descriptor load_program(const BpfKind& kind, const BpfAssembler& program);

/// Hangs a program on the interface; not open: errno.
Descriptor link_program(const BpfKind& kind, int program, int interface, std::uint32_t flags);

/// "CAP_NET_RAW, CAP_BPF": those of packet sockets and of programs at interfaces that this process lacks; empty: none.
std::string missing_capabilities();

}  // namespace bypass::packet
