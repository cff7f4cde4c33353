// Segment: the memory that the two ends of one connection share. It is a sealed memfd: a page with each side's indices,
// and a byte ring for each direction.
//
// The host makes it and passes its descriptor. The guest trusts only the kernel (seals, kind and size of the file) and
// a header that is copied out once and then checked. The size is sealed, so what is mapped always lies within the file
// and no access raises SIGBUS. (One exception: with vm.overcommit_memory=2 a page can still be missing when it is first
// touched.)
//
// A mapping survives fork: the child is on the same side, at the same address. A child that uses it must share the
// counters (ring.h). Exec and exit unmap it. The memory is freed when no process maps it any more and no descriptor
// refers to it, including one in a message under way. This holds however the processes died.
// Tests: tests/fastpath/shm/ring_threads_test.cc, tests/fastpath/shm/pairing_test.cc.
#pragma once

#include <cstddef>
#include <cstdint>

#include "fastpath/shm/refusal.h"
#include "fastpath/shm/rendezvous/descriptor.h"
#include "fastpath/shm/rendezvous/rendezvous.h"
#include "fastpath/shm/ring.h"

namespace bypass::fastpath::shm {

struct RingSizes {
  std::uint64_t to_guest = 0;  // bytes; a power of two
  std::uint64_t to_host = 0;
};
inline constexpr std::uint64_t kLeastRing = 4096;
inline constexpr std::uint64_t kMostRing = std::uint64_t{64} << 20;

class Segment {
 public:
  Segment() = default;
  ~Segment() { unmap(); }
  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;

  /// Makes the host's segment: new, zeroed, sealed, mapped.
  static Outcome<Segment> create(const RingSizes& sizes);
  /// Opens the guest's segment: checks what `fd` is, then maps it. `fd` stays the caller's and may be closed
  /// afterwards.
  static Outcome<Segment> open(int fd);

  [[nodiscard]] bool is_mapped() const { return at_ != nullptr; }
  /// The host's descriptor, which is kept until the guest has the memory.
  [[nodiscard]] int descriptor() const { return file_.get(); }
  void close_descriptor() { file_.reset(); }

  /// The ring that this side writes. incoming(): the ring that it reads.
  [[nodiscard]] RingView outgoing() const;
  [[nodiscard]] RingView incoming() const;
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  static Outcome<Segment> map(int fd, const RingSizes& sizes, Role role);
  void unmap();
  [[nodiscard]] RingView view(Role writer) const;

  std::byte* at_ = nullptr;
  std::size_t bytes_ = 0;
  RingSizes sizes_;
  Role role_ = Role::kHost;
  Descriptor file_;
};

/// The beginning of the file.
struct SegmentHeader {
  static constexpr std::uint64_t kMagic = 0x316d'6873'7079'6221U;  // "!bypshm1"
  static constexpr std::uint32_t kVersion = 3;

  std::uint64_t magic = kMagic;
  std::uint32_t version = kVersion;
  std::uint32_t side_bytes = sizeof(SideBlock);
  RingSizes rings;
};

/// The first page: the header, then the host's block and the guest's.
struct SegmentFront {
  alignas(kLine) SegmentHeader header;
  SideBlock side[2];
};
inline constexpr std::uint64_t kFrontBytes = 4096;
static_assert(sizeof(SegmentFront) <= kFrontBytes);

}  // namespace bypass::fastpath::shm
