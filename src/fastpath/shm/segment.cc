#include "fastpath/shm/segment.h"

#include <linux/magic.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <bit>
#include <utility>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

namespace bypass::fastpath::shm {
namespace {

constexpr long kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

bool is_ring_size(std::uint64_t bytes) {
  return std::has_single_bit(bytes) && bytes >= kLeastRing && bytes <= kMostRing;
}

constexpr std::uint64_t total_bytes(const RingSizes& sizes) {
  return kFrontBytes + sizes.to_guest + sizes.to_host;
}

/// ftruncate beyond the limit would send the program SIGXFSZ.
bool is_below_file_limit(std::uint64_t bytes) {
  rlimit limit{};
  return os::call(SYS_prlimit64, 0, RLIMIT_FSIZE, 0, os::address(&limit)) == 0 && bytes <= limit.rlim_cur;
}

Descriptor make_file() {
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  const char* const name = "bypass-connection";
  // Linux before 6.3 does not know MFD_NOEXEC_SEAL.
  const long fd = os::call(SYS_memfd_create, os::address(name), kFlags | MFD_NOEXEC_SEAL);
  return Descriptor::kept(fd != -EINVAL ? fd : os::call(SYS_memfd_create, os::address(name), kFlags));
}

/// The seals are checked first: after that the size cannot change.
Refusal check_file(int fd, std::uint64_t& bytes) {
  const long seals = os::call(SYS_fcntl, fd, F_GET_SEALS);
  if (seals < 0) return Refusal::kNotMemory;
  if ((seals & kSizeSeals) != kSizeSeals) return Refusal::kNotSealed;
  struct stat status {};
  struct statfs system {};
  if (os::call(SYS_fstat, fd, os::address(&status)) != 0 || os::call(SYS_fstatfs, fd, os::address(&system)) != 0)
    return Refusal::kNotMemory;
  // A file of huge pages is refused: they can run out when one is touched.
  if (!S_ISREG(status.st_mode) || system.f_type != TMPFS_MAGIC) return Refusal::kNotMemory;
  bytes = static_cast<std::uint64_t>(status.st_size);
  return Refusal::kNone;
}

Refusal check_header(const SegmentHeader& header, std::uint64_t bytes) {
  if (header.magic != SegmentHeader::kMagic) return Refusal::kBadHeader;
  if (header.version != SegmentHeader::kVersion) return Refusal::kOtherVersion;
  if (header.side_bytes != sizeof(SideBlock)) return Refusal::kBadHeader;
  if (!is_ring_size(header.rings.to_guest) || !is_ring_size(header.rings.to_host)) return Refusal::kBadSize;
  return total_bytes(header.rings) == bytes ? Refusal::kNone : Refusal::kBadSize;
}

}  // namespace

Outcome<Segment> Segment::create(const RingSizes& sizes) {
  if (!is_ring_size(sizes.to_guest) || !is_ring_size(sizes.to_host)) return Refusal::kBadSize;
  const std::uint64_t bytes = total_bytes(sizes);
  if (!is_below_file_limit(bytes)) return Refusal::kNoResources;
  Descriptor file = make_file();
  if (!file.is_open()) return Refusal::kNoResources;
  if (os::call(SYS_ftruncate, file.get(), static_cast<long>(bytes)) != 0) return Refusal::kNoResources;
  if (os::call(SYS_fcntl, file.get(), F_ADD_SEALS, kSizeSeals) != 0) return Refusal::kNoResources;
  Outcome<Segment> made = map(file.get(), sizes, Role::kHost);
  if (!made.ok()) return made;
  new (made.value.at_) SegmentFront{.header = {.rings = sizes}, .side = {}};
  made.value.file_ = std::move(file);
  return made;
}

Outcome<Segment> Segment::open(int fd) {
  std::uint64_t bytes = 0;
  if (const Refusal why = check_file(fd, bytes); why != Refusal::kNone) return why;
  SegmentHeader header;  // a copy: the checked values are the used ones
  if (os::call(SYS_pread64, fd, os::address(&header), sizeof header, 0) != sizeof header) return Refusal::kBadSize;
  if (const Refusal why = check_header(header, bytes); why != Refusal::kNone) return why;
  return map(fd, header.rings, Role::kGuest);
}

Outcome<Segment> Segment::map(int fd, const RingSizes& sizes, Role role) {
  const std::uint64_t bytes = total_bytes(sizes);
  const long at = os::call(SYS_mmap, 0, static_cast<long>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at < 0 && at > -4096) return Refusal::kNotMapped;
  os::call(SYS_madvise, at, static_cast<long>(bytes), MADV_DONTDUMP);
  Segment made;
  made.at_ = reinterpret_cast<std::byte*>(at);
  made.bytes_ = bytes;
  made.sizes_ = sizes;
  made.role_ = role;
  return Outcome<Segment>(std::move(made));
}

Segment::Segment(Segment&& other) noexcept
    : at_(std::exchange(other.at_, nullptr)),
      bytes_(other.bytes_),
      sizes_(other.sizes_),
      role_(other.role_),
      file_(std::move(other.file_)) {}

Segment& Segment::operator=(Segment&& other) noexcept {
  if (this == &other) return *this;
  unmap();
  at_ = std::exchange(other.at_, nullptr);
  bytes_ = other.bytes_;
  sizes_ = other.sizes_;
  role_ = other.role_;
  file_ = std::move(other.file_);
  return *this;
}

void Segment::unmap() {
  if (at_ != nullptr) os::call(SYS_munmap, os::address(at_), static_cast<long>(bytes_));
  at_ = nullptr;
}

RingView Segment::view(Role writer) const {
  auto* const front = reinterpret_cast<SegmentFront*>(at_);
  const bool to_guest = writer == Role::kHost;
  const auto own = static_cast<std::size_t>(role_);
  return {.own = &front->side[own],
          .peer = &front->side[1 - own],
          .bytes = at_ + kFrontBytes + (to_guest ? 0 : sizes_.to_guest),
          .size = to_guest ? sizes_.to_guest : sizes_.to_host};
}

RingView Segment::outgoing() const {
  return view(role_);
}

RingView Segment::incoming() const {
  return view(role_ == Role::kHost ? Role::kGuest : Role::kHost);
}

}  // namespace bypass::fastpath::shm
