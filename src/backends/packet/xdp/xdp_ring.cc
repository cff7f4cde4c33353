#include "backends/packet/xdp/xdp_ring.h"

#include <sys/mman.h>

#include "backends/packet/libc.h"

namespace bypass::packet {

template <typename Entry>
XdpRing<Entry>::~XdpRing() {
  if (memory_ != nullptr) munmap(memory_, bytes_);
}

template <typename Entry>
bool XdpRing<Entry>::create(int socket, int size_option, off_t page_offset, const xdp_ring_offset& offsets,
                            std::uint32_t entries) {
  bytes_ = offsets.desc + std::size_t{entries} * sizeof(Entry);
  if (libc.setsockopt(socket, SOL_XDP, size_option, &entries, sizeof entries) != 0) return false;
  void* const memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, socket, page_offset);
  if (memory == MAP_FAILED) return false;
  // A forked child's mapping would keep the socket alive.
  madvise(memory, bytes_, MADV_DONTFORK);
  memory_ = memory;
  entries_ = entries;
  auto* const base = static_cast<std::byte*>(memory);
  producer_ = reinterpret_cast<std::uint32_t*>(base + offsets.producer);
  consumer_ = reinterpret_cast<std::uint32_t*>(base + offsets.consumer);
  flags_ = reinterpret_cast<std::uint32_t*>(base + offsets.flags);
  ring_ = reinterpret_cast<Entry*>(base + offsets.desc);
  return true;
}

template class XdpRing<xdp_desc>;
template class XdpRing<std::uint64_t>;

}  // namespace bypass::packet
