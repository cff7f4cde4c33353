// Site: a system call instruction in a program's code, and how a jump can take its place.
//
// The jump takes five bytes, the instruction two. So either the instruction before moves with it, which names the call,
// or those after. They move to a stub of ours. Only forms are taken that do not depend on their own address.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace bypass::preload::raw {

/// Machine code that moves.
struct Moved {
  std::array<std::uint8_t, 16> bytes{};
  std::size_t count = 0;
};

struct Site {
  const std::uint8_t* at = nullptr;    // where the jump goes
  std::size_t room = 0;                // bytes that it replaces: 5 at least
  Moved before, after;                 // around the system call
  const std::uint8_t* back = nullptr;  // where the program goes on; null: `after` ends with a return
};

inline constexpr std::size_t kJumpBytes = 5;

/// Adds the sites in a function's code. False: one of its system calls has a form that is not known.
[[nodiscard]] bool find_sites(std::span<const std::uint8_t> code, std::vector<Site>& sites);

}  // namespace bypass::preload::raw
