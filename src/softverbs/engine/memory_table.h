// Registered memory: which keys name which bytes of this process, and what may be done with them.
//
// A key is an index and a generation beside it, so that the key of a region that is gone names nothing. Every access
// asks anew: nothing keeps a pointer into a region from one packet to the next.
#pragma once

#include <infiniband/verbs.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace bypass::rdma {

struct Pd {
  std::uint32_t references = 0;
};

struct Mr {
  Pd* pd = nullptr;
  std::byte* addr = nullptr;
  std::uint64_t length = 0;
  std::uint64_t iova = 0;  // what keys address `addr` by
  unsigned access = 0;
  std::uint32_t key = 0;  // lkey and rkey
};

class MemoryTable {
 public:
  MemoryTable(std::uint32_t max, std::uint64_t seed) : max_(max), generation_(static_cast<std::uint16_t>(seed)) {}

  /// Null: the table is full.
  Mr* add(const Mr& region);
  void remove(Mr& region);
  /// Gives it another key: what went out under the old one is void.
  void rekey(Mr& region);

  /// Where `len` bytes at `address` lie, if the key names a region of that domain which holds them all and grants
  /// every right of `access`; else null.
  [[nodiscard]] std::byte* find(const Pd& pd, std::uint32_t key, std::uint64_t address, std::uint64_t len,
                                unsigned access) const;
  /// Whether every element lies in registered memory with these rights. Elements of no bytes are not looked at.
  [[nodiscard]] bool covers(const Pd& pd, std::span<const ibv_sge> sges, unsigned access) const;

 private:
  static constexpr unsigned kIndexBits = 16;
  std::uint32_t fresh_key(std::uint32_t index);

  std::uint32_t max_;
  std::uint16_t generation_;
  std::vector<std::unique_ptr<Mr>> slots_;
  std::vector<std::uint32_t> free_;
};

/// Calls each(address, bytes) for the pieces of a message's bytes from `offset` on, `len` of them, as its elements hold
/// them; with the rights checked piece by piece. False: a piece that may not be touched, or the elements end too early.
template <typename F>
bool for_each_piece(const MemoryTable& memory, const Pd& pd, std::span<const ibv_sge> sges, unsigned access,
                    std::uint64_t offset, std::uint64_t len, F&& each) {
  for (const ibv_sge& sge : sges) {
    if (len == 0) break;
    if (offset >= sge.length) {
      offset -= sge.length;
      continue;
    }
    const std::uint64_t n = std::min<std::uint64_t>(len, sge.length - offset);
    std::byte* at = memory.find(pd, sge.lkey, sge.addr + offset, n, access);
    if (at == nullptr) return false;
    each(at, static_cast<std::size_t>(n));
    len -= n;
    offset = 0;
  }
  return len == 0;
}

}  // namespace bypass::rdma
