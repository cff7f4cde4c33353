#include "preload/raw/site.h"

#include <algorithm>
#include <initializer_list>

namespace bypass::preload::raw {
namespace {

using Bytes = std::span<const std::uint8_t>;

constexpr std::size_t kCallBytes = 2;
constexpr std::uint8_t kReturn = 0xc3, kPadding = 0xcc;

bool begins_with(Bytes code, std::initializer_list<std::uint8_t> wanted) {
  return code.size() >= wanted.size() && std::equal(wanted.begin(), wanted.end(), code.begin());
}

void append(Moved& moved, Bytes code) {
  std::copy(code.begin(), code.end(), moved.bytes.begin() + static_cast<std::ptrdiff_t>(moved.count));
  moved.count += code.size();
}

/// mov $NUMBER,%eax or mov $NUMBER,%rax, which ends where `code` ends. Returns its bytes, or 0.
std::size_t number_before(Bytes code) {
  constexpr std::size_t kShort = 5, kLong = 7, kNumber = 4;
  // numbers are below 1024: the last two bytes are 0
  const auto is_number = [&](std::size_t bytes, std::initializer_list<std::uint8_t> opcode) {
    if (code.size() < bytes || !begins_with(code.last(bytes), opcode)) return false;
    const Bytes number = code.last(kNumber);
    return number[1] < 4 && number[2] == 0 && number[3] == 0;
  };
  if (is_number(kLong, {0x48, 0xc7, 0xc0})) return kLong;
  return is_number(kShort, {0xb8}) ? kShort : 0;
}

/// The length of an instruction of a known form that may move; 0: another form.
std::size_t movable(Bytes code) {
  if (begins_with(code, {0x48, 0x3d})) return 6;              // cmp $…,%rax
  if (begins_with(code, {0x48, 0x89, 0x44, 0x24})) return 5;  // mov %rax,…(%rsp)
  if (begins_with(code, {0x89, 0x44, 0x24})) return 4;        // mov %eax,…(%rsp)
  if (begins_with(code, {0x48, 0x89, 0x54, 0x24})) return 5;  // mov %rdx,…(%rsp)
  if (begins_with(code, {0x41, 0x54})) return 2;              // push %r12
  return 0;
}

/// Moves instructions that follow the call, as many as the jump needs.
bool move_following(Bytes code, Site& site) {
  site.room = kCallBytes;
  while (site.room < kJumpBytes) {
    const Bytes rest = code.subspan(site.room);
    if (begins_with(rest, {kReturn, kPadding, kPadding})) {
      append(site.after, rest.first(1));
      site.room = kJumpBytes;
      return true;
    }
    const std::size_t bytes = movable(rest);
    if (bytes == 0 || bytes > rest.size()) return false;
    append(site.after, rest.first(bytes));
    site.room += bytes;
  }
  site.back = code.data() + site.room;
  return true;
}

}  // namespace

bool find_sites(Bytes code, std::vector<Site>& sites) {
  for (std::size_t at = 0; at + kCallBytes <= code.size(); at++) {
    if (!begins_with(code.subspan(at), {0x0f, 0x05})) continue;
    Site site;
    if (const std::size_t bytes = number_before(code.first(at)); bytes != 0) {
      site.at = code.data() + at - bytes;
      site.room = bytes;  // the old instruction stays behind it, and is never reached
      append(site.before, code.subspan(at - bytes, bytes));
      site.back = code.data() + at + kCallBytes;
    } else {
      site.at = code.data() + at;
      if (!move_following(code.subspan(at), site)) return false;
    }
    sites.push_back(site);
    at += kCallBytes - 1;
  }
  return true;
}

}  // namespace bypass::preload::raw
