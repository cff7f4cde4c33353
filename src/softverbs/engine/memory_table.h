// Registered memory: which keys name which bytes of this process, and what may be done with them.
//
// Keys are a count of registrations under a secret permutation. So a key cannot be guessed from another without the
// secret, and the key of a removed region comes again only after 2^32 registrations. Every access looks the key up
// again: nothing keeps a pointer into a region from one packet to the next.
//
// Memory windows have keys of the same table. A program chooses the lowest byte of a window's key each time it binds
// the window. So a window has all 256 keys with the same upper bits, its place.
#pragma once

#include <infiniband/verbs.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "stack/tcp/open/isn.h"

namespace bypass::rdma {

struct Pd {
  std::uint32_t references = 0;
};

struct Mr {
  Pd* pd = nullptr;
  std::byte* addr = nullptr;
  std::uint64_t length = 0;
  std::uint64_t iova = 0;  // the address by which keys name the byte at `addr`
  unsigned access = 0;
  std::uint32_t key = 0;      // lkey and rkey
  std::uint32_t windows = 0;  // that are bound to it
  // A memory window: the fields above say what it is bound to. Its key is an rkey only.
  bool is_window = false;
  ibv_mw_type type = IBV_MW_TYPE_1;
  Mr* region = nullptr;   // null: it is not bound
  std::uint32_t qpn = 0;  // of type 2: the queue pair that has bound it, whose peer alone may use the key
};

class MemoryTable {
 public:
  MemoryTable(std::uint32_t max, const tcp::Secret& secret) : secret_(secret), max_(max), slots_(kFirstSlots) {}

  /// Null: the table is full.
  Mr* add(const Mr& region);
  void remove(Mr& region);
  /// Gives the region another key: the old one is no longer valid.
  void rekey(Mr& region);
  /// A window that is not bound. Null: the table is full.
  Mr* add_window(Pd& pd, ibv_mw_type type);
  [[nodiscard]] static std::uint32_t place(std::uint32_t key) { return key >> 8; }
  /// The window whose keys these are; null: there is no such window.
  [[nodiscard]] Mr* window_at(std::uint32_t place) const;
  /// The window's key becomes `key`, which must be one of its keys.
  void rekey_window(Mr& window, std::uint32_t key);
  /// Unbinds what that queue pair has bound.
  void unbind_all(std::uint32_t qpn);
  static void unbind(Mr& window);
  /// The region of that key; null: there is none.
  [[nodiscard]] Mr* region(std::uint32_t key) const;

  /// Where `len` bytes at `address` lie, if the key names a region of that domain which holds them all and grants every
  /// right of `access`; otherwise null.
  [[nodiscard]] std::byte* find(const Pd& pd, std::uint32_t key, std::uint64_t address, std::uint64_t len,
                                unsigned access) const;
  /// The same for a key that the peer of queue pair `qpn` names: it may be a window's.
  [[nodiscard]] std::byte* find_remote(const Pd& pd, std::uint32_t qpn, std::uint32_t key, std::uint64_t address,
                                       std::uint64_t len, unsigned access) const;
  /// Whether every element lies in registered memory with these rights. Elements of 0 bytes are not checked.
  [[nodiscard]] bool covers(const Pd& pd, std::span<const ibv_sge> sges, unsigned access) const;

 private:
  static constexpr std::size_t kFirstSlots = 16;
  struct Slot {
    std::uint32_t key = 0;  // 0: the slot is empty
    std::unique_ptr<Mr> region;
  };
  [[nodiscard]] std::uint32_t fresh_key();
  [[nodiscard]] bool is_free(std::uint32_t place) const;
  Mr* put_new(const Mr& region, std::uint32_t key);
  [[nodiscard]] std::size_t place_of(std::uint32_t key) const;
  std::unique_ptr<Mr> take(std::uint32_t key);
  void put(std::unique_ptr<Mr> region);
  void grow();

  tcp::Secret secret_;
  std::uint32_t max_;
  std::uint32_t made_ = 0, count_ = 0;
  std::unordered_map<std::uint32_t, Mr*> windows_;  // by place
  std::vector<Slot> slots_;  // a power of two, at least half of them empty; a key is at its own place or after it
};

/// Calls each(address, bytes) for the pieces of a message's bytes from `offset` on, `len` of them, as its elements hold
/// them. The rights are checked piece by piece. False: a piece may not be accessed, or the elements end too early.
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
