#include "os/own/in_handler.h"

#include <pthread.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "os/os.h"

extern "C" {
[[gnu::weak]] extern void* __libc_stack_end;  // set by ld.so: where the first thread's stack begins
}

namespace bypass::socket {
namespace {

using Address = std::uintptr_t;

constexpr Address kPage = 4096;
constexpr Address kMostOfAKnownStack = 64 << 20, kMostOfAnotherStack = 256 << 10;
/// The kernel puts its frame at most this far below the stack pointer of the interrupted code. The frame holds the red
/// zone and the registers; with AVX-512 and AMX about 11 KiB.
constexpr Address kMostOfAFrame = 32 << 10;

struct KernelAction {  // struct sigaction as rt_sigaction(2) defines it
  void* handler;
  unsigned long flags;
  Address restorer;
  std::uint64_t mask;
};

/// The addresses to which handlers return. The kernel keeps one for each signal, even after the handler was removed
/// (SA_RESETHAND). glibc has one for all signals; a runtime that makes the system call itself may have another.
class Restorers {
 public:
  Restorers() {
    constexpr unsigned long kHasRestorer = 0x04000000;  // SA_RESTORER
    for (long signal = 1; signal <= 64; signal++) {
      KernelAction action{};
      if (os::call(SYS_rt_sigaction, signal, 0, os::address(&action), sizeof action.mask) != 0) continue;
      if ((action.flags & kHasRestorer) != 0) add(action.restorer);
    }
  }
  [[nodiscard]] bool none() const { return count_ == 0; }
  [[nodiscard]] bool has(Address word) const {
    return std::find(each_.begin(), each_.begin() + count_, word) != each_.begin() + count_;
  }

 private:
  void add(Address restorer) {
    if (restorer != 0 && !has(restorer) && count_ < static_cast<std::ptrdiff_t>(each_.size()))
      each_[static_cast<std::size_t>(count_++)] = restorer;
  }

  std::array<Address, 4> each_{};
  std::ptrdiff_t count_ = 0;
};

/// rt_sigprocmask() reads the set before it rejects the bad `how`, so it tests whether memory is readable.
bool is_readable(Address at) {
  constexpr long kNoSuchThing = 0x7fff;
  return os::call(SYS_rt_sigprocmask, kNoSuchThing, static_cast<long>(at & -Address{8}), 0, 8) != -EFAULT;
}

/// One past the last byte of the stack that may be read.
Address end_of_stack(Address here) {
  const auto thread = static_cast<Address>(pthread_self());  // a thread's own data lies at the end of its stack
  const auto first = &__libc_stack_end != nullptr ? reinterpret_cast<Address>(__libc_stack_end) : 0;
  const Address top = here < thread ? thread : first;
  if (here < top && top - here <= kMostOfAKnownStack) return top;
  return here + kMostOfAnotherStack;  // the stack of a coroutine, or one for handlers
}

/// Checks values that the kernel writes into every frame, and that no struct sigaction has after its restorer: see
/// setup_rt_frame() of arch/x86/kernel/signal_64.c.
[[gnu::no_sanitize_address]] bool is_made_by_kernel(const ucontext_t& context) {
  constexpr unsigned long kFlags = 7;  // UC_FP_XSTATE, UC_SIGCONTEXT_SS, UC_STRICT_RESTORE_SS
  constexpr std::uint64_t kSegments = 0xffff'ffff'ffff, kUserCode = 0x33;  // cs, gs and fs, 16 bits each
  const auto segments = static_cast<std::uint64_t>(context.uc_mcontext.gregs[REG_CSGSFS]);
  return context.uc_flags <= kFlags && context.uc_link == nullptr && (segments & kSegments) == kUserCode;
}

/// `at` holds the restorer's address. Returns whether a frame of the kernel begins there, on the stack that `here` is
/// on.
[[gnu::no_sanitize_address]] bool is_frame(Address here, Address at) {
  const Address last = at + sizeof(Address) + sizeof(ucontext_t);
  if (!is_readable(last)) return false;
  const auto& context = *reinterpret_cast<const ucontext_t*>(at + sizeof(Address));
  if (!is_made_by_kernel(context)) return false;
  const auto interrupted = static_cast<Address>(context.uc_mcontext.gregs[REG_RSP]);
  if (interrupted > at && interrupted - at < kMostOfAFrame) return true;
  const auto low = reinterpret_cast<Address>(context.uc_stack.ss_sp);
  return low <= here && at - low < context.uc_stack.ss_size;
}

}  // namespace

[[gnu::no_sanitize_address]] bool is_in_handler() {
  const Restorers restorers;
  if (restorers.none()) return false;
  const Address here = reinterpret_cast<Address>(__builtin_frame_address(0)) & -sizeof(Address);
  const Address end = end_of_stack(here);
  for (Address at = here; at < end; at += sizeof(Address)) {
    if ((at == here || at % kPage == 0) && !is_readable(at)) return false;
    if (restorers.has(*reinterpret_cast<const Address*>(at)) && is_frame(here, at)) return true;
  }
  return false;
}

}  // namespace bypass::socket
