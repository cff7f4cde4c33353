#include "backends/packet/flows/bpf.h"

#include <linux/capability.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "backends/packet/libc.h"

namespace bypass::packet {
namespace {

constexpr char kLicense[] = "Dual MIT/GPL";
constexpr std::size_t kLogBytes = 64u << 10;

Descriptor load(const BpfKind& kind, const BpfAssembler& program, std::span<char> log) {
  bpf_attr attributes{};
  attributes.prog_type = kind.type;
  attributes.expected_attach_type = kind.type == BPF_PROG_TYPE_XDP ? kind.attach_type : 0;
  attributes.insns = reinterpret_cast<std::uint64_t>(program.code().data());
  attributes.insn_cnt = static_cast<std::uint32_t>(program.code().size());
  attributes.license = reinterpret_cast<std::uint64_t>(kLicense);
  std::memcpy(attributes.prog_name, "bypass", sizeof "bypass");
  if (!log.empty()) {
    attributes.log_buf = reinterpret_cast<std::uint64_t>(log.data());
    attributes.log_size = static_cast<std::uint32_t>(log.size());
    attributes.log_level = 1;
  }
  return Descriptor(bpf(BPF_PROG_LOAD, attributes));
}

}  // namespace

int bpf(bpf_cmd command, bpf_attr& attributes) {
  return static_cast<int>(libc.syscall(SYS_bpf, command, &attributes, sizeof attributes));
}

Descriptor load_program(const BpfKind& kind, const BpfAssembler& program) {
  Descriptor loaded = load(kind, program, {});
  if (loaded.is_open() || errno == EPERM) return loaded;
  const int error = errno;
  std::vector<char> log(kLogBytes);
  loaded = load(kind, program, log);
  if (loaded.is_open()) return loaded;
  log.back() = 0;
  host->log(LogLevel::kDebug, (std::string("the verifier refuses a program: ") + log.data()).c_str());
  errno = error;
  return loaded;
}

Descriptor link_program(const BpfKind& kind, int program, int interface, std::uint32_t flags) {
  bpf_attr attributes{};
  attributes.link_create.prog_fd = static_cast<std::uint32_t>(program);
  attributes.link_create.target_ifindex = static_cast<std::uint32_t>(interface);
  attributes.link_create.attach_type = kind.attach_type;
  attributes.link_create.flags = flags;
  return Descriptor(bpf(BPF_LINK_CREATE, attributes));
}

std::string missing_capabilities() {
  struct Need {
    unsigned number;
    const char* name;
  };
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct sets[_LINUX_CAPABILITY_U32S_3] = {};
  if (libc.syscall(SYS_capget, &header, sets) != 0) return "";
  const auto has = [&](unsigned number) { return (sets[number / 32].effective >> number % 32 & 1) != 0; };
  std::string missing;
  for (const Need& need :
       {Need{CAP_NET_RAW, "CAP_NET_RAW"}, Need{CAP_NET_ADMIN, "CAP_NET_ADMIN"}, Need{CAP_BPF, "CAP_BPF"}}) {
    if (has(need.number) || (need.number == CAP_BPF && has(CAP_SYS_ADMIN))) continue;
    missing += (missing.empty() ? "" : ", ") + std::string(need.name);
  }
  return missing;
}

}  // namespace bypass::packet
