// BpfAssembler: assembles eBPF programs. Some dozens of instructions do not justify a compiler or a loader at run time.
#pragma once

#include <linux/bpf.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace bypass::packet {

class BpfAssembler {
 public:
  /// R1 to R5 carry a call's arguments, and the call destroys them. R0 has the call's result. R6 to R9 survive a call.
  /// The frame is the 512 bytes below kFrame.
  enum Register : std::uint8_t { kR0, kR1, kR2, kR3, kR4, kR5, kR6, kR7, kR8, kR9, kFrame };
  /// Jumps that go to the same place further down; land() sets it.
  using Jumps = std::vector<std::size_t>;

  void load(std::uint8_t size, Register to, Register from, std::int16_t offset) {
    add(static_cast<std::uint8_t>(BPF_LDX | BPF_MEM | size), to, from, offset, 0);
  }
  void store(std::uint8_t size, Register to, std::int16_t offset, Register from) {
    add(static_cast<std::uint8_t>(BPF_STX | BPF_MEM | size), to, from, offset, 0);
  }
  void store_value(std::uint8_t size, Register to, std::int16_t offset, std::int32_t value) {
    add(static_cast<std::uint8_t>(BPF_ST | BPF_MEM | size), to, kR0, offset, value);
  }
  void move(Register to, Register from) { add(BPF_ALU64 | BPF_MOV | BPF_X, to, from, 0, 0); }
  void set(Register to, std::int32_t value) { add(BPF_ALU64 | BPF_MOV | BPF_K, to, kR0, 0, value); }
  void increase(Register to, std::int32_t by) { add(BPF_ALU64 | BPF_ADD | BPF_K, to, kR0, 0, by); }
  void keep_bits(Register to, std::int32_t mask) { add(BPF_ALU64 | BPF_AND | BPF_K, to, kR0, 0, mask); }
  void shift_left(Register to, std::int32_t bits) { add(BPF_ALU64 | BPF_LSH | BPF_K, to, kR0, 0, bits); }
  void load_map(Register to, int map) {
    add(BPF_LD | BPF_DW | BPF_IMM, to, static_cast<Register>(BPF_PSEUDO_MAP_FD), 0, map);
    add(0, kR0, kR0, 0, 0);
  }
  void call(std::int32_t function) { add(BPF_JMP | BPF_CALL, kR0, kR0, 0, function); }
  void leave() { add(BPF_JMP | BPF_EXIT, kR0, kR0, 0, 0); }
  void leave_with(std::int32_t result) {
    set(kR0, result);
    leave();
  }

  void jump(Jumps& to) { jump(BPF_JMP | BPF_JA, kR0, kR0, 0, to); }
  void jump_if_greater(Register a, Register b, Jumps& to) { jump(BPF_JMP | BPF_JGT | BPF_X, a, b, 0, to); }
  void jump_if_null(Register a, Jumps& to) { jump(BPF_JMP | BPF_JEQ | BPF_K, a, kR0, 0, to); }
  void jump_if_not_null(Register a, Jumps& to) { jump(BPF_JMP | BPF_JNE | BPF_K, a, kR0, 0, to); }
  // These compare only the lower 32 bits.
  void jump_if_equal(Register a, std::uint32_t value, Jumps& to) { jump32(BPF_JEQ, a, value, to); }
  void jump_if_not(Register a, std::uint32_t value, Jumps& to) { jump32(BPF_JNE, a, value, to); }
  void jump_if_below(Register a, std::uint32_t value, Jumps& to) { jump32(BPF_JLT, a, value, to); }
  void jump_if_above(Register a, std::uint32_t value, Jumps& to) { jump32(BPF_JGT, a, value, to); }
  void jump_if_any_bit(Register a, std::uint32_t bits, Jumps& to) { jump32(BPF_JSET, a, bits, to); }
  /// Lets the jumps go to the next instruction.
  void land(const Jumps& jumps) {
    for (const std::size_t from : jumps) code_[from].off = static_cast<std::int16_t>(code_.size() - from - 1);
  }

  [[nodiscard]] std::span<const bpf_insn> code() const { return code_; }

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
  void jump(std::uint8_t code, Register a, Register b, std::int32_t value, Jumps& to) {
    to.push_back(code_.size());
    add(code, a, b, 0, value);
  }
  void jump32(std::uint8_t test, Register a, std::uint32_t value, Jumps& to) {
    jump(static_cast<std::uint8_t>(BPF_JMP32 | test | BPF_K), a, kR0, static_cast<std::int32_t>(value), to);
  }

  std::vector<bpf_insn> code_;
};

}  // namespace bypass::packet
