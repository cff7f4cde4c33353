#include "softverbs/abi/cm/channel_table.h"

#include "os/os.h"

namespace bypass::softverbs {

bool ChannelTable::add(int fd, int own) {
  const auto number = static_cast<std::size_t>(static_cast<unsigned>(fd));
  const std::uint64_t inode = os::inode_of(own);
  if (number >= kMost || inode == 0) return false;
  inodes_[number].store(inode, std::memory_order_relaxed);
  return true;
}

void ChannelTable::remove(int fd) {
  inodes_[static_cast<std::size_t>(static_cast<unsigned>(fd))].store(0, std::memory_order_relaxed);
}

bool ChannelTable::is_still_there(int fd) {
  auto& inode = inodes_[static_cast<std::size_t>(static_cast<unsigned>(fd))];
  if (os::inode_of(fd) == inode.load(std::memory_order_relaxed)) return true;
  inode.store(0, std::memory_order_relaxed);
  return false;
}

}  // namespace bypass::softverbs
