#include "preload/raw/entry.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <cstddef>

#include "os/os.h"

namespace bypass::preload::raw {
namespace {

/// A thread's stack of ours. Only the code below uses it, and it knows the places of its members.
struct OwnStack {
  std::uint64_t busy;      // bit 0: a call of this thread is on it
  std::uintptr_t top;      // 0: not made yet
  const void* back;        // the system call in the stub
  std::uintptr_t program;  // the program's stack pointer
  std::uint64_t noted;     // it is unmapped at the thread's end
  std::uint64_t saved[7];
};
static_assert(offsetof(OwnStack, top) == 8 && offsetof(OwnStack, back) == 16 && offsetof(OwnStack, program) == 24 &&
              offsetof(OwnStack, saved) == 40);

/// A port may be opened on it. Pages that are never touched cost nothing.
constexpr std::size_t kStackBytes = 1 << 20;
/// Pages at both ends that are never mapped in: nothing is read or written there by mistake.
constexpr std::size_t kGuardBytes = 4096;

pthread_key_t g_end_key;
/// For a later key libc allocates, and the call may be a handler's. Then the stacks of threads stay.
constexpr pthread_key_t kKeysWithoutAllocation = 32;

}  // namespace

extern "C" {
[[gnu::used, gnu::visibility("hidden"),
  gnu::tls_model("initial-exec")]] constinit thread_local OwnStack bypass_own_stack{};

[[gnu::visibility("hidden")]] void bypass_raw_entry();
}

// %rax: the number; %rdi, %rsi, %rdx, %r10, %r8, %r9: the words; %rcx: the system call in the stub; %r11: free. All but
// %rax, %rcx and %r11 must be kept, as the kernel keeps them. Go has 0 in %xmm15 around its calls.
//
// A handler may interrupt every instruction and make such a call itself. `btsq` takes the stack in one instruction, so
// a handler finds it taken or free.
extern "C" [[gnu::naked, gnu::used, gnu::visibility("hidden")]] void bypass_raw_entry() {
  asm(R"(
    movq bypass_own_stack@gottpoff(%rip), %r11
    addq %fs:0, %r11
    btsq $0, (%r11)
    jc 9f
    movq %rcx, 16(%r11)
    movq %rsp, 24(%r11)
    movq 8(%r11), %rcx
    testq %rcx, %rcx
    jz 5f
  1:
    movq %rcx, %rsp
    pushq 24(%r11)
    pushq %r9
    pushq %r8
    pushq %r10
    pushq %rdx
    pushq %rsi
    pushq %rdi
    pushq %rax
    movq %rsp, %rdi
    call bypass_answer_raw_call
    movq %rdx, %rcx
    testq %rdx, %rdx
    jz 2f
    movq %rax, (%rsp)
  2:
    popq %rax
    popq %rdi
    popq %rsi
    popq %rdx
    popq %r10
    popq %r8
    popq %r9
    pxor %xmm15, %xmm15
    movq bypass_own_stack@gottpoff(%rip), %r11
    addq %fs:0, %r11
    addq 16(%r11), %rcx
    movq 24(%r11), %rsp
    movq $0, (%r11)
  9:
    jmp *%rcx

  5:                              # the thread's first call: maps its stack
    movq %rax, 40(%r11)
    movq %rdi, 48(%r11)
    movq %rsi, 56(%r11)
    movq %rdx, 64(%r11)
    movq %r10, 72(%r11)
    movq %r8, 80(%r11)
    movq %r9, 88(%r11)
    movl $9, %eax                 # mmap
    xorl %edi, %edi
    movl $0x102000, %esi
    xorl %edx, %edx               # PROT_NONE
    movl $0x4022, %r10d           # MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE
    movq $-1, %r8
    xorl %r9d, %r9d
    syscall
    movq %rax, %rdi
    cmpq $-4096, %rax
    ja 7f
    addq $0x1000, %rdi
    movl $0x100000, %esi
    movl $3, %edx                 # PROT_READ | PROT_WRITE
    movl $10, %eax                # mprotect
    syscall
    testq %rax, %rax
    jnz 7f
    leaq 0x100000(%rdi), %rcx
    jmp 6f
  7:
    xorl %ecx, %ecx
  6:
    movq bypass_own_stack@gottpoff(%rip), %r11
    addq %fs:0, %r11
    movq %rcx, 8(%r11)
    movq 40(%r11), %rax
    movq 48(%r11), %rdi
    movq 56(%r11), %rsi
    movq 64(%r11), %rdx
    movq 72(%r11), %r10
    movq 80(%r11), %r8
    movq 88(%r11), %r9
    testq %rcx, %rcx
    jnz 1b
    movq 16(%r11), %rcx           # without a stack the kernel answers
    movq $0, (%r11)
    jmp *%rcx
  )");
}
static_assert(kStackBytes == 0x100000 && kGuardBytes == 0x1000, "as written above");
static_assert(SYS_mmap == 9 && SYS_mprotect == 10 && MAP_NORESERVE == 0x4000);

namespace {

void unmap_stack(void* top) {
  bypass_own_stack.top = 0;
  bypass_own_stack.noted = 0;
  os::call(SYS_munmap, os::address(static_cast<char*>(top) - kStackBytes - kGuardBytes), kStackBytes + 2 * kGuardBytes);
}

}  // namespace

const void* entry() {
  return reinterpret_cast<const void*>(&bypass_raw_entry);
}

void note_stack_of_thread() {
  if (bypass_own_stack.noted != 0) [[likely]]
    return;
  bypass_own_stack.noted = 1;
  if (g_end_key < kKeysWithoutAllocation) pthread_setspecific(g_end_key, reinterpret_cast<void*>(bypass_own_stack.top));
}

void prepare_stacks() {
  pthread_key_create(&g_end_key, unmap_stack);
}

}  // namespace bypass::preload::raw
