#include "preload/calls/process/filter_program.h"

#include <array>
#include <cstddef>
#include <cstring>

namespace bypass::preload {
namespace {

/// The machine of classic BPF, as far as the kernel accepts it for seccomp: seccomp_check_filter().
struct Machine {
  std::uint32_t a = 0, x = 0;
  std::array<std::uint32_t, BPF_MEMWORDS> memory{};
  const seccomp_data& call;

  [[nodiscard]] std::uint32_t loaded(const sock_filter& line) const {
    std::uint32_t word = 0;
    switch (BPF_MODE(line.code)) {
      case BPF_ABS:
        if (line.k <= sizeof call - sizeof word)
          std::memcpy(&word, reinterpret_cast<const char*>(&call) + line.k, sizeof word);
        return word;
      case BPF_LEN:
        return sizeof call;
      case BPF_MEM:
        return line.k < memory.size() ? memory[line.k] : 0;
      default:
        return line.k;
    }
  }
  void store(const sock_filter& line) {
    if (line.k < memory.size()) memory[line.k] = BPF_CLASS(line.code) == BPF_ST ? a : x;
  }
  void calculate(const sock_filter& line) {
    const std::uint32_t other = BPF_SRC(line.code) == BPF_X ? x : line.k;
    switch (BPF_OP(line.code)) {
      case BPF_ADD:
        a += other;
        break;
      case BPF_SUB:
        a -= other;
        break;
      case BPF_MUL:
        a *= other;
        break;
      case BPF_DIV:
        a = other == 0 ? 0 : a / other;
        break;
      case BPF_OR:
        a |= other;
        break;
      case BPF_AND:
        a &= other;
        break;
      case BPF_XOR:
        a ^= other;
        break;
      case BPF_LSH:
        a = other < 32 ? a << other : 0;
        break;
      case BPF_RSH:
        a = other < 32 ? a >> other : 0;
        break;
      default:
        a = 0U - a;  // BPF_NEG
    }
  }
  /// How many instructions are skipped.
  [[nodiscard]] std::uint32_t jump(const sock_filter& line) const {
    const std::uint32_t other = BPF_SRC(line.code) == BPF_X ? x : line.k;
    switch (BPF_OP(line.code)) {
      case BPF_JEQ:
        return a == other ? line.jt : line.jf;
      case BPF_JGT:
        return a > other ? line.jt : line.jf;
      case BPF_JGE:
        return a >= other ? line.jt : line.jf;
      case BPF_JSET:
        return (a & other) != 0 ? line.jt : line.jf;
      default:
        return line.k;  // BPF_JA
    }
  }
};

}  // namespace

std::uint32_t answer_of(std::span<const sock_filter> program, const seccomp_data& call) {
  Machine machine{.call = call};
  for (std::size_t at = 0; at < program.size(); at++) {  // jumps go forward only
    const sock_filter& line = program[at];
    switch (BPF_CLASS(line.code)) {
      case BPF_RET:
        return BPF_RVAL(line.code) == BPF_A ? machine.a : line.k;
      case BPF_LD:
        machine.a = machine.loaded(line);
        break;
      case BPF_LDX:
        machine.x = machine.loaded(line);
        break;
      case BPF_ST:
      case BPF_STX:
        machine.store(line);
        break;
      case BPF_ALU:
        machine.calculate(line);
        break;
      case BPF_JMP:
        at += machine.jump(line);
        break;
      default:  // BPF_MISC
        BPF_MISCOP(line.code) == BPF_TAX ? machine.x = machine.a : machine.a = machine.x;
    }
  }
  return SECCOMP_RET_KILL_PROCESS;
}

}  // namespace bypass::preload
