#include "os/program_memory.h"

#include <ucontext.h>

#include <algorithm>
#include <atomic>
#include <span>
#include <utility>

#include "os/errno_map.h"
#include "stack/copy.h"

namespace bypass::socket {

constinit thread_local void** copy_resumes_at = nullptr;

namespace {

constexpr std::uintptr_t kPage = 4096;    // or a multiple
constexpr std::size_t kMostParts = 1024;  // UIO_MAXIOV

// Runs a copy by libc. __builtin_setjmp() stores frame, stack and the place to continue. The compiler keeps nothing in
// registers across the call, because execution may continue there.
[[gnu::noinline]] bool run_copy(void (*copy)(const void*), const void* argument) {
  void* resume[5];
  if (__builtin_setjmp(resume) != 0) return false;  // resume_copy() has cleared `copy_resumes_at`
  void**& place = copy_resumes_at;
  place = resume;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  copy(argument);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  place = nullptr;
  return true;
}

template <typename Copy>
bool within_program_memory(const Copy& copy) {
  return run_copy([](const void* argument) { (*static_cast<const Copy*>(argument))(); }, &copy);
}

}  // namespace

bool copy_long(void* to, const void* from, std::size_t bytes) {
  return within_program_memory([=] { copy_bytes(to, from, bytes); });
}

// --- The instructions that may fault. They call nothing and keep nothing on the stack: to fail is to return false.

#if defined(__x86_64__)

extern "C" const std::byte __start_bypass_copies[] [[gnu::visibility("hidden")]];
extern "C" const std::byte __stop_bypass_copies[] [[gnu::visibility("hidden")]];

#define BYPASS_COPIES [[gnu::naked, gnu::noinline, gnu::noclone, gnu::used, gnu::section("bypass_copies")]]

namespace {

// If the rest is shorter than two moves, the last move overlaps the first.
BYPASS_COPIES bool copy_some(void*, const void*, std::size_t) {
  asm(R"(
    cmpq $16, %rdx
    jb 3f
    movups -16(%rsi,%rdx), %xmm2
    leaq (%rdi,%rdx), %rcx
  1:
    cmpq $32, %rdx
    jbe 2f
    movups (%rsi), %xmm0
    movups 16(%rsi), %xmm1
    movups %xmm0, (%rdi)
    movups %xmm1, 16(%rdi)
    addq $32, %rsi
    addq $32, %rdi
    subq $32, %rdx
    jmp 1b
  2:
    cmpq $16, %rdx
    jbe 8f
    movups (%rsi), %xmm0
    movups %xmm0, (%rdi)
  8:
    movups %xmm2, -16(%rcx)
    movl $1, %eax
    ret
  3:
    cmpl $8, %edx
    jb 4f
    movq (%rsi), %rax
    movq -8(%rsi,%rdx), %rcx
    movq %rax, (%rdi)
    movq %rcx, -8(%rdi,%rdx)
    movl $1, %eax
    ret
  4:
    cmpl $4, %edx
    jb 5f
    movl (%rsi), %eax
    movl -4(%rsi,%rdx), %ecx
    movl %eax, (%rdi)
    movl %ecx, -4(%rdi,%rdx)
    movl $1, %eax
    ret
  5:
    testl %edx, %edx
    jz 6f
    movb (%rsi), %al
    movb -1(%rsi,%rdx), %cl
    cmpl $3, %edx
    jb 7f
    movb 1(%rsi), %r8b
    movb %r8b, 1(%rdi)
  7:
    movb %al, (%rdi)
    movb %cl, -1(%rdi,%rdx)
  6:
    movl $1, %eax
    ret
  )");
}

BYPASS_COPIES bool read_byte(const void*) {
  asm(R"(
    movb (%rdi), %al
    movl $1, %eax
    ret
  )");
}

BYPASS_COPIES bool rewrite_byte(void*) {
  asm(R"(
    movb (%rdi), %al
    movb %al, (%rdi)
    movl $1, %eax
    ret
  )");
}

BYPASS_COPIES bool fail() {
  asm(R"(
    xorl %eax, %eax
    ret
  )");
}

bool fails_there(mcontext_t& registers) {
  const auto at = reinterpret_cast<const std::byte*>(registers.gregs[REG_RIP]);
  if (at < __start_bypass_copies || at >= __stop_bypass_copies) return false;
  registers.gregs[REG_RIP] = reinterpret_cast<greg_t>(&fail);
  return true;
}

void go_on_at(mcontext_t& registers, void* const* resume) {
  registers.gregs[REG_RBP] = reinterpret_cast<greg_t>(resume[0]);
  registers.gregs[REG_RIP] = reinterpret_cast<greg_t>(resume[1]);
  registers.gregs[REG_RSP] = reinterpret_cast<greg_t>(resume[2]);
}

}  // namespace

bool copy_short(void* to, const void* from, std::size_t bytes) {
  return copy_some(to, from, bytes);
}

#else

namespace {

bool read_byte(const void* at) {
  return within_program_memory([=] { (void)*static_cast<const volatile char*>(at); });
}
bool rewrite_byte(void* at) {
  auto* const byte = static_cast<volatile char*>(at);
  return within_program_memory([=] { *byte = *byte; });
}
bool fails_there(mcontext_t&) {
  return false;
}

void go_on_at(mcontext_t& registers, void* const* resume) {
#if defined(__aarch64__)
  registers.regs[29] = reinterpret_cast<std::uintptr_t>(resume[0]);
  registers.pc = reinterpret_cast<std::uintptr_t>(resume[1]);
  registers.sp = reinterpret_cast<std::uintptr_t>(resume[2]);
#else
#error "where does this processor keep frame, stack and program counter?"
#endif
}

}  // namespace

bool copy_short(void* to, const void* from, std::size_t bytes) {
  return copy_long(to, from, bytes);
}

#endif

// Like __builtin_longjmp(), which a handler must not call: the kernel restores mask and stack when the handler returns.
bool resume_copy(void* context) {
  mcontext_t& registers = static_cast<ucontext_t*>(context)->uc_mcontext;
  if (fails_there(registers)) return true;
  void** const resume = std::exchange(copy_resumes_at, nullptr);
  if (resume != nullptr) go_on_at(registers, resume);
  return resume != nullptr;
}

// --- What calls ask

namespace {

/// Touches one byte of each page until `touch` fails. Returns where that was.
template <typename Touch>
std::uintptr_t first_missing(const void* memory, std::size_t bytes, Touch touch) {
  const auto begin = reinterpret_cast<std::uintptr_t>(memory), end = begin + bytes;
  for (std::uintptr_t at = begin; at < end; at = (at | (kPage - 1)) + 1)
    if (!touch(at)) return at;
  return end;
}

std::uintptr_t first_unwritable(void* memory, std::size_t bytes) {
  return first_missing(memory, bytes, [](std::uintptr_t at) { return rewrite_byte(reinterpret_cast<void*>(at)); });
}

}  // namespace

bool is_readable(const void* memory, std::size_t bytes) {
  if (!may_be_programs(memory, bytes)) return bytes == 0;
  const auto touch = [](std::uintptr_t at) { return read_byte(reinterpret_cast<const void*>(at)); };
  return first_missing(memory, bytes, touch) == reinterpret_cast<std::uintptr_t>(memory) + bytes;
}

bool is_writable(void* memory, std::size_t bytes) {
  if (!may_be_programs(memory, bytes)) return bytes == 0;
  return first_unwritable(memory, bytes) == reinterpret_cast<std::uintptr_t>(memory) + bytes;
}

std::size_t writable_front(void* memory, std::size_t count, std::size_t size) {
  if (!may_be_programs(memory, count * size)) return 0;
  return (first_unwritable(memory, count * size) - reinterpret_cast<std::uintptr_t>(memory)) / size;
}

long check_vector(const iovec* data, std::size_t count) {
  if (count > kMostParts) return failure(Error::kInvalid);
  if (!is_readable(data, count * sizeof *data)) return failure(Refusal::kBadPointer);
  for (const iovec& part : std::span(data, count)) {
    if (static_cast<ssize_t>(part.iov_len) < 0) return failure(Error::kInvalid);
    if (!may_be_programs(part.iov_base, part.iov_len)) return failure(Refusal::kBadPointer);
  }
  return 0;
}

long check_header(const msghdr* header) {
  if (!is_readable(header, sizeof *header)) return failure(Refusal::kBadPointer);
  if (header->msg_name != nullptr && static_cast<int>(header->msg_namelen) < 0) return failure(Error::kInvalid);
  if (header->msg_iovlen > kMostParts) return failure(Error::kMessageTooLarge);
  return check_vector(header->msg_iov, header->msg_iovlen);
}

long check_header_to_send(const msghdr* header) {
  if (const long r = check_header(header); r != 0) return r;
  const bool named = header->msg_name != nullptr, with_control = header->msg_control != nullptr;
  if (named && !is_readable(header->msg_name, std::min<std::size_t>(header->msg_namelen, sizeof(sockaddr_storage))))
    return failure(Refusal::kBadPointer);
  constexpr std::size_t kMostControl = 1 << 17;  // above net.core.optmem_max: the kernel refuses more
  if (with_control && !is_readable(header->msg_control, std::min<std::size_t>(header->msg_controllen, kMostControl)))
    return failure(Refusal::kBadPointer);
  return 0;
}

bool report(const Message& message, msghdr& header, int flags) {
  const bool named = header.msg_name == nullptr || copy_to_program(&header.msg_namelen, message.name_length);
  return named && copy_to_program(&header.msg_controllen, message.control_length) &&
         copy_to_program(&header.msg_flags, message.flags | (flags & MSG_CMSG_CLOEXEC));
}

long copy_name_out(const sockaddr_storage& name, socklen_t length, sockaddr* to, socklen_t* room) {
  socklen_t bytes = 0;
  if (!copy_from_program(bytes, room)) return failure(Refusal::kBadPointer);
  if (static_cast<int>(bytes) < 0) return failure(Error::kInvalid);
  const bool told = copy_program_bytes(to, &name, std::min(bytes, length)) && copy_to_program(room, length);
  return told ? 0 : failure(Refusal::kBadPointer);
}

long take_name(sockaddr_storage& name, const sockaddr* from, socklen_t length) {
  if (length > sizeof name) return failure(Error::kInvalid);
  return copy_program_bytes(&name, from, length) ? 0 : failure(Refusal::kBadPointer);
}

}  // namespace bypass::socket
