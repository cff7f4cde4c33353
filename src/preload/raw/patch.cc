// The pages of the program that have such calls are replaced by changed copies of theirs. No page is ever writable and
// executable. A machine that forbids changed code (SELinux, execmod and execmem) says so when the copy is made
// executable, before anything is changed.
#include "preload/raw/patch.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <algorithm>
#include <initializer_list>

#include "os/os.h"

namespace bypass::preload::raw {
namespace {

constexpr std::uintptr_t kPage = 4096;
constexpr std::size_t kStubBytes = 64;
constexpr const char* kNoMemory = "there is no memory near its code";
constexpr const char* kForbidden = "the system forbids to change its code";

using Address = std::uintptr_t;

Address address_of(const void* at) {
  return reinterpret_cast<Address>(at);
}

bool is_error(long result) {
  return result < 0 && result >= -4095;
}

long map(Address at, std::size_t bytes, int flags) {
  return os::call(SYS_mmap, static_cast<long>(at), static_cast<long>(bytes), PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
}

/// Memory that a jump of 32 bits reaches from everywhere in the program's code; null: there is none.
std::uint8_t* map_near(Address code, std::size_t bytes) {
  constexpr Address kStep = Address{1} << 20, kReach = Address{1} << 30, kLowest = Address{1} << 16;
  for (Address distance = kStep; distance < kReach; distance += kStep) {
    for (const Address place : {(code - distance) & -kPage, (code + distance) & -kPage}) {
      if (place < kLowest || (place < code && distance > code)) continue;
      const long made = map(place, bytes, MAP_FIXED_NOREPLACE);
      if (!is_error(made) && static_cast<Address>(made) == place) return reinterpret_cast<std::uint8_t*>(made);
      if (!is_error(made)) os::call(SYS_munmap, made, static_cast<long>(bytes));  // a kernel before 4.17
    }
  }
  return nullptr;
}

/// Writes machine code.
class Writer {
 public:
  explicit Writer(std::uint8_t* at) : at_(at) {}
  void put(std::initializer_list<std::uint8_t> bytes) { at_ = std::copy(bytes.begin(), bytes.end(), at_); }
  void put(const Moved& moved) { at_ = std::copy_n(moved.bytes.begin(), moved.count, at_); }
  template <typename T>
  void put_value(T value) {
    memcpy(at_, &value, sizeof value);
    at_ += sizeof value;
  }
  /// jmp `to`, if this code will run at `here`.
  void put_jump(Address here, Address to) {
    put({0xe9});
    put_value(static_cast<std::int32_t>(to - (here + kJumpBytes)));
  }
  [[nodiscard]] std::uint8_t* at() const { return at_; }

 private:
  std::uint8_t* at_;
};

/// The stub tells `entry` by %rcx where the system call itself is; two bytes further the call has been made.
void write_stub(std::uint8_t* stub, const Site& site, const void* entry) {
  constexpr std::int32_t kToCall = 13;  // bytes of the two instructions between
  Writer to(stub);
  to.put(site.before);
  to.put({0x48, 0x8d, 0x0d});  // lea kToCall(%rip),%rcx
  to.put_value(kToCall);
  to.put({0x49, 0xbb});  // movabs $entry,%r11
  to.put_value(address_of(entry));
  to.put({0x41, 0xff, 0xe3});  // jmp *%r11
  to.put({0x0f, 0x05});        // syscall
  to.put(site.after);
  if (site.back != nullptr) to.put_jump(address_of(to.at()), address_of(site.back));
}

/// A changed copy of pages of the program.
struct Copy {
  Address pages = 0;
  std::size_t bytes = 0;
  std::uint8_t* changed = nullptr;

  [[nodiscard]] bool covers(Address begin, Address end) const { return begin >= pages && end <= pages + bytes; }
};

/// One copy for each run of pages with sites, in the order of the sites.
bool make_copies(std::span<const Site> sites, std::vector<Copy>& copies) {
  for (const Site& site : sites) {
    const Address begin = address_of(site.at), end = begin + site.room;
    if (std::ranges::any_of(copies, [=](const Copy& each) { return each.covers(begin, end); })) continue;
    Copy copy{begin & -kPage, 0, nullptr};
    copy.bytes = ((end + kPage - 1) & -kPage) - copy.pages;
    // two copies never have a page in common
    if (!copies.empty() && copies.back().pages + copies.back().bytes > copy.pages) {
      copy.pages = copies.back().pages + copies.back().bytes;
      if (begin < copy.pages) return false;
    }
    const long made = map(0, copy.bytes, 0);
    if (is_error(made)) return false;
    copy.changed = reinterpret_cast<std::uint8_t*>(made);
    memcpy(copy.changed, reinterpret_cast<const void*>(copy.pages), copy.bytes);
    copies.push_back(copy);
  }
  return true;
}

void write_jump(const Copy& copy, const Site& site, const std::uint8_t* stub) {
  constexpr std::uint8_t kNop = 0x90;
  const Address here = address_of(site.at);
  std::uint8_t* const at = copy.changed + (here - copy.pages);
  Writer(at).put_jump(here, address_of(stub));
  memset(at + kJumpBytes, kNop, site.room - kJumpBytes);
}

bool make_executable(const void* at, std::size_t bytes) {
  return os::call(SYS_mprotect, os::address(at), static_cast<long>(bytes), PROT_READ | PROT_EXEC) == 0;
}

bool put_in_place(const Copy& copy) {
  const auto bytes = static_cast<long>(copy.bytes);
  return !is_error(os::call(SYS_mremap, os::address(copy.changed), bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED,
                            static_cast<long>(copy.pages)));
}

void drop(std::span<const Copy> copies) {
  for (const Copy& copy : copies) os::call(SYS_munmap, os::address(copy.changed), static_cast<long>(copy.bytes));
}

}  // namespace

const char* replace_calls(std::span<const Site> sites, const void* entry) {
  const std::size_t bytes = (sites.size() * kStubBytes + kPage - 1) & -kPage;
  std::uint8_t* const stubs = map_near(address_of(sites.front().at), bytes);
  if (stubs == nullptr) return kNoMemory;
  std::vector<Copy> copies;
  if (!make_copies(sites, copies)) {
    drop(copies);
    return kNoMemory;
  }
  for (std::size_t i = 0; i < sites.size(); i++) {
    const Address begin = address_of(sites[i].at);
    const auto copy =
        std::ranges::find_if(copies, [&](const Copy& each) { return each.covers(begin, begin + sites[i].room); });
    write_stub(stubs + i * kStubBytes, sites[i], entry);
    write_jump(*copy, sites[i], stubs + i * kStubBytes);
  }
  const bool allowed = make_executable(stubs, bytes) && std::ranges::all_of(copies, [](const Copy& copy) {
                         return make_executable(copy.changed, copy.bytes);
                       });
  if (!allowed) {
    drop(copies);
    os::call(SYS_munmap, os::address(stubs), static_cast<long>(bytes));
    return kForbidden;
  }
  // The program's own mapping of a page is in place until its copy is, so a failure leaves a call as it was.
  return std::ranges::all_of(copies, put_in_place) ? nullptr : kNoMemory;
}

}  // namespace bypass::preload::raw
