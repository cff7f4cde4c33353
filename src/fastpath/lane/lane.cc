#include "fastpath/lane/lane.h"

#include <algorithm>
#include <type_traits>

#include "fastpath/lane/lane_impl.h"
#include "fastpath/lane/lane_link_impl.h"

namespace bypass::fastpath {

void ByteSource::spans(std::uint64_t offset, std::uint64_t length, std::span<const std::byte> (&out)[2]) const {
  const std::uint64_t at = (offset - origin) & (capacity - 1);
  const std::uint64_t first = std::min(length, capacity - at);
  out[0] = {block + at, static_cast<std::size_t>(first)};
  out[1] = {block, static_cast<std::size_t>(length - first)};
}

template class LaneWriter<LaneRules>;
template class BasicLane<LaneRules>;
static_assert(std::has_unique_object_representations_v<Lane>, "tests compare ends byte by byte");

}  // namespace bypass::fastpath
