#include "stack/tcp/output/send_map.h"

#include <algorithm>
#include <utility>

#include "stack/copy.h"

namespace bypass::tcp {
namespace {

constexpr std::uint32_t kFirstChunks = 8;
constexpr std::uint32_t kFirstOwn = 256;

}  // namespace

bool SendMap::prepare(Memory& memory, std::uint32_t own) {
  const bool chunks = count_ < capacity_ || grow_chunks(memory);
  return chunks && (own_capacity_ - (own_end_ - own_begin_) >= own || grow_own(memory, own));
}

bool SendMap::grow_chunks(Memory& memory) {
  const std::uint32_t wanted = capacity_ == 0 ? kFirstChunks : 2 * capacity_;
  if (wanted > kMostChunks) return false;
  auto* larger = static_cast<Chunk*>(memory.allocate(wanted * sizeof(Chunk)));
  if (larger == nullptr) return false;
  for (std::uint32_t i = 0; i < count_; i++) larger[i] = chunk(i);
  Chunk* smaller = std::exchange(chunks_, larger);
  capacity_ = wanted;
  head_ = 0;
  if (smaller != nullptr) memory.release(smaller);
  return true;
}

bool SendMap::grow_own(Memory& memory, std::uint32_t needed) {
  const std::uint32_t used = own_end_ - own_begin_;
  if (used + needed > kMostOwn) return false;
  const std::size_t wanted = Memory::block_size(std::max(used + needed, kFirstOwn));
  auto* larger = static_cast<std::byte*>(memory.allocate(wanted));
  if (larger == nullptr) return false;
  for (std::uint32_t at = own_begin_; at != own_end_; at++) larger[at & (wanted - 1)] = own_[at & (own_capacity_ - 1)];
  std::byte* smaller = std::exchange(own_, larger);
  own_capacity_ = static_cast<std::uint32_t>(wanted);
  if (smaller != nullptr) memory.release(smaller);
  return true;
}

void SendMap::copy_own(std::uint32_t at, std::span<const std::byte> bytes) {
  const std::uint32_t begin = at & (own_capacity_ - 1);
  const std::size_t first = std::min<std::size_t>(bytes.size(), own_capacity_ - begin);
  copy_bytes(own_ + begin, bytes.data(), first);
  if (first != bytes.size()) copy_bytes(own_, bytes.data() + first, bytes.size() - first);
}

void SendMap::append(std::span<const std::byte> own) {
  const auto length = static_cast<std::uint32_t>(own.size());
  copy_own(own_end_, own);
  if (count_ != 0 && ring_bytes(count_ - 1) == 0) {
    chunk(count_ - 1).own_length += length;
  } else {
    count_++;
    chunk(count_ - 1) = {end_, 0, own_end_, length};
  }
  own_end_ += length;
  end_ += length;
}

void SendMap::append_ring(std::uint64_t source, std::uint64_t bytes) {
  const std::uint64_t last = count_ == 0 ? 0 : ring_bytes(count_ - 1);
  if (count_ != 0 && last == 0) {
    chunk(count_ - 1).source = source;
  } else if (count_ == 0 || chunk(count_ - 1).source + last != source) {
    count_++;
    chunk(count_ - 1) = {end_, source, own_end_, 0};
  }
  end_ += bytes;
}

/// The chunk that holds the position, which is not below begin().
std::uint32_t SendMap::find(std::uint64_t position) const {
  std::uint32_t low = 0, high = count_;
  while (high - low > 1) {
    const std::uint32_t middle = (low + high) / 2;
    (chunk(middle).position <= position ? low : high) = middle;
  }
  return low;
}

std::size_t SendMap::own_pieces(std::uint32_t at, std::size_t length, std::span<const std::byte>* out) const {
  const std::uint32_t begin = at & (own_capacity_ - 1);
  const std::size_t first = std::min<std::size_t>(length, own_capacity_ - begin);
  out[0] = {own_ + begin, first};
  if (first == length) return 1;
  out[1] = {own_, length - first};
  return 2;
}

std::size_t SendMap::pieces(const SendRing& ring, std::uint64_t position, std::size_t length,
                            std::span<std::span<const std::byte>> out, std::size_t& covered) const {
  std::size_t n = 0;
  covered = 0;
  for (std::uint32_t i = find(position); covered < length && n + kPiecesOfOne <= out.size(); i++) {
    const Chunk& c = chunk(i);
    std::uint64_t skip = position + covered - c.position;
    if (skip < c.own_length) {
      const std::size_t own = std::min<std::size_t>(c.own_length - skip, length - covered);
      n += own_pieces(c.own_at + static_cast<std::uint32_t>(skip), own, &out[n]);
      covered += own;
      skip += own;
    }
    const auto rest =
        static_cast<std::size_t>(std::min<std::uint64_t>(end_of(i) - c.position - skip, length - covered));
    const SendRing::Spans spans = ring.spans(c.source + skip - c.own_length, rest);
    for (const auto& part : spans.part)
      if (!part.empty()) out[n++] = part;
    covered += rest;
  }
  return n;
}

std::uint64_t SendMap::run(std::uint64_t position) const {
  return end_of(find(position)) - position;
}

std::size_t SendMap::own_bytes(std::uint64_t position, std::size_t length) const {
  const Chunk& c = chunk(find(position));
  const std::uint64_t skip = position - c.position;
  return skip >= c.own_length ? 0 : static_cast<std::size_t>(std::min<std::uint64_t>(c.own_length - skip, length));
}

bool SendMap::has_ring_bytes(std::uint64_t position, std::uint64_t length) const {
  for (std::uint32_t i = length == 0 ? count_ : find(position); i < count_ && chunk(i).position < position + length;
       i++) {
    const std::uint64_t first = std::max(position, chunk(i).position + chunk(i).own_length);
    if (first < std::min(position + length, end_of(i))) return true;
  }
  return false;
}

void SendMap::advance(Memory& memory, std::uint64_t una) {
  while (count_ != 0) {
    const Chunk& c = chunk(0);
    const std::uint64_t end = std::min(una, end_of(0)), ring_begin = c.position + c.own_length;
    if (end > ring_begin) acknowledged_ = c.source + (end - ring_begin);
    if (una < end_of(0)) break;
    own_begin_ = c.own_at + c.own_length;
    head_++;
    count_--;
  }
  if (count_ == 0) release(memory);
}

void SendMap::release(Memory& memory) {
  head_ = capacity_ = own_begin_ = own_end_ = own_capacity_ = 0;
  if (chunks_ != nullptr) memory.release(std::exchange(chunks_, nullptr));
  if (own_ != nullptr) memory.release(std::exchange(own_, nullptr));
}

void SendMap::clear(Memory& memory) {
  count_ = 0;
  release(memory);
}

const char* SendMap::violated(const SendRing& ring) const {
  std::uint64_t position = begin(), source = acknowledged_;
  std::uint32_t own = own_begin_;
  if (count_ > capacity_) return "no more chunks than places";
  for (std::uint32_t i = 0; i < count_; i++) {
    const Chunk& c = chunk(i);
    if (c.position != position || c.own_at != own) return "chunks follow each other";
    if (end_of(i) < c.position + c.own_length) return "a chunk holds its own bytes";
    const std::uint64_t bytes = ring_bytes(i);
    if (bytes != 0 && i != 0 && c.source < source) return "ranges of the ring never lead back";
    if (bytes != 0 && (c.source + bytes > ring.end() || (i != 0 && c.source < ring.begin())))
      return "a chunk's bytes are in the ring";
    if (bytes != 0) source = c.source + bytes;
    position = end_of(i);
    own += c.own_length;
  }
  return own == own_end_ && own_end_ - own_begin_ <= own_capacity_ ? nullptr : "own bytes add up";
}

}  // namespace bypass::tcp
