#include "backends/packet/xdp_program.h"

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_link.h>
#include <sys/syscall.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "backends/packet/libc.h"

namespace bypass::packet {
namespace {

constexpr std::int16_t kEtherType = 12, kArpTarget = 38;  // offsets in an ARP frame: RFC 826
constexpr std::int32_t kArpFrame = 42;

int bpf(bpf_cmd command, bpf_attr& attributes) {
  return static_cast<int>(libc.syscall(SYS_bpf, command, &attributes, sizeof attributes));
}

// The program is assembled here: some twenty instructions are no reason for a compiler or a loader at run time.
class Assembler {
 public:
  enum Register : std::uint8_t { kR0, kR1, kR2, kR3, kR4, kR5 };

  void load(std::uint8_t size, Register to, Register from, std::int16_t offset) {
    add(static_cast<std::uint8_t>(BPF_LDX | BPF_MEM | size), to, from, offset, 0);
  }
  void move(Register to, Register from) { add(BPF_ALU64 | BPF_MOV | BPF_X, to, from, 0, 0); }
  void set(Register to, std::int32_t value) { add(BPF_ALU64 | BPF_MOV | BPF_K, to, kR0, 0, value); }
  void increase(Register to, std::int32_t by) { add(BPF_ALU64 | BPF_ADD | BPF_K, to, kR0, 0, by); }
  void load_map(Register to, int map) {
    add(BPF_LD | BPF_DW | BPF_IMM, to, static_cast<Register>(BPF_PSEUDO_MAP_FD), 0, map);
    add(0, kR0, kR0, 0, 0);
  }
  void call(std::int32_t function) { add(BPF_JMP | BPF_CALL, kR0, kR0, 0, function); }
  void leave() { add(BPF_JMP | BPF_EXIT, kR0, kR0, 0, 0); }

  // Jumps whose places are known later: see land().
  std::size_t jump_if_greater(Register a, Register b) { return jump(BPF_JMP | BPF_JGT | BPF_X, a, b, 0); }
  std::size_t jump_if_equal(Register a, std::uint32_t value) { return jump32(BPF_JEQ, a, value); }
  std::size_t jump_if_not(Register a, std::uint32_t value) { return jump32(BPF_JNE, a, value); }
  /// The jump goes to the next instruction.
  void land(std::size_t from) { code_[from].off = static_cast<std::int16_t>(code_.size() - from - 1); }

  [[nodiscard]] const std::vector<bpf_insn>& code() const { return code_; }

 private:
  void add(std::uint8_t code, Register to, Register from, std::int16_t offset, std::int32_t value) {
    bpf_insn each{};
    each.code = code;
    each.dst_reg = to & 0xf;
    each.src_reg = from & 0xf;
    each.off = offset;
    each.imm = value;
    code_.push_back(each);
  }
  std::size_t jump(std::uint8_t code, Register a, Register b, std::int32_t value) {
    add(code, a, b, 0, value);
    return code_.size() - 1;
  }
  std::size_t jump32(std::uint8_t test, Register a, std::uint32_t value) {
    return jump(static_cast<std::uint8_t>(BPF_JMP32 | test | BPF_K), a, kR0, static_cast<std::int32_t>(value));
  }

  std::vector<bpf_insn> code_;
};

std::uint32_t word(const std::uint8_t* bytes) {
  std::uint32_t value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

std::uint16_t half(const std::uint8_t* bytes) {
  std::uint16_t value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

// R2: the frame's first byte, R3: its end. Values are compared as they lie in the frame.
Assembler assemble(int map, const MacAddress& mac, std::span<const IpAddress> addresses) {
  using enum Assembler::Register;
  Assembler a;
  std::vector<std::size_t> pass, take;
  a.load(BPF_W, kR2, kR1, offsetof(xdp_md, data));
  a.load(BPF_W, kR3, kR1, offsetof(xdp_md, data_end));
  a.move(kR4, kR2);
  a.increase(kR4, kArpFrame);  // the shortest frame of any use to us
  pass.push_back(a.jump_if_greater(kR4, kR3));
  a.load(BPF_W, kR4, kR2, 0);
  const std::size_t not_head = a.jump_if_not(kR4, word(mac.bytes.data()));
  a.load(BPF_H, kR4, kR2, 4);
  take.push_back(a.jump_if_equal(kR4, half(mac.bytes.data() + 4)));
  a.land(not_head);
  a.load(BPF_B, kR4, kR2, 0);
  pass.push_back(a.jump_if_not(kR4, 0xff));
  a.load(BPF_H, kR4, kR2, kEtherType);
  pass.push_back(a.jump_if_not(kR4, host_to_be16(ETH_P_ARP)));
  a.load(BPF_W, kR4, kR2, kArpTarget);
  for (const IpAddress& address : addresses)
    if (address.is_v4()) take.push_back(a.jump_if_equal(kR4, word(address.bytes.data() + 12)));
  for (const std::size_t each : pass) a.land(each);
  a.set(kR0, XDP_PASS);
  a.leave();
  for (const std::size_t each : take) a.land(each);
  a.load_map(kR1, map);
  a.set(kR2, 0);
  a.set(kR3, XDP_PASS);  // when no socket is there
  a.call(BPF_FUNC_redirect_map);
  a.leave();
  return a;
}

Descriptor make_map(int xdp_socket) {
  bpf_attr attributes{};
  attributes.map_type = BPF_MAP_TYPE_XSKMAP;
  attributes.key_size = attributes.value_size = sizeof(int);
  attributes.max_entries = 1;
  Descriptor map(bpf(BPF_MAP_CREATE, attributes));
  const std::uint32_t queue = 0;
  attributes = {};
  attributes.map_fd = static_cast<std::uint32_t>(map.get());
  attributes.key = reinterpret_cast<std::uint64_t>(&queue);
  attributes.value = reinterpret_cast<std::uint64_t>(&xdp_socket);
  return map.is_open() && bpf(BPF_MAP_UPDATE_ELEM, attributes) == 0 ? std::move(map) : Descriptor();
}

Descriptor load(const Assembler& assembled) {
  static constexpr char kLicense[] = "Dual MIT/GPL";
  bpf_attr attributes{};
  attributes.prog_type = BPF_PROG_TYPE_XDP;
  attributes.expected_attach_type = BPF_XDP;
  attributes.insns = reinterpret_cast<std::uint64_t>(assembled.code().data());
  attributes.insn_cnt = static_cast<std::uint32_t>(assembled.code().size());
  attributes.license = reinterpret_cast<std::uint64_t>(kLicense);
  std::memcpy(attributes.prog_name, "bypass", sizeof "bypass");
  return Descriptor(bpf(BPF_PROG_LOAD, attributes));
}

}  // namespace

bool XdpProgram::attach(int interface, int xdp_socket, const MacAddress& mac, std::span<const IpAddress> addresses) {
  const Descriptor map = make_map(xdp_socket);
  if (!map.is_open()) return false;
  const Descriptor program = load(assemble(map.get(), mac, addresses));
  if (!program.is_open()) return false;
  for (const std::uint32_t mode : {XDP_FLAGS_DRV_MODE, XDP_FLAGS_SKB_MODE}) {
    bpf_attr attributes{};
    attributes.link_create.prog_fd = static_cast<std::uint32_t>(program.get());
    attributes.link_create.target_ifindex = static_cast<std::uint32_t>(interface);
    attributes.link_create.attach_type = BPF_XDP;
    attributes.link_create.flags = mode;
    link_ = Descriptor(bpf(BPF_LINK_CREATE, attributes));
    if (link_.is_open() || errno == EBUSY) break;
  }
  return link_.is_open();
}

}  // namespace bypass::packet
