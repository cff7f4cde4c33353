#include "observe/stats_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace bypass::observe {

StatsFile::~StatsFile() {
  if (fd_ >= 0) close(fd_);
}

bool StatsFile::open(int directory, const std::string& name, int access, std::string& problem) {
  // O_NONBLOCK: neither a FIFO nor the owner's lease (fcntl(2) F_SETLEASE) can block the reader.
  fd_ = openat(directory, name.c_str(), access | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  struct stat status {};
  if (fd_ < 0 || fstat(fd_, &status) != 0) {
    problem = strerrordesc_np(errno);
    return false;
  }
  owner_ = status.st_uid;
  // A second name may be in another user's directory.
  if (!S_ISREG(status.st_mode))
    problem = "is no regular file";
  else if (status.st_nlink > 1)
    problem = "has more than one name";
  else
    return take_header(problem);
  return false;
}

bool StatsFile::take_header(std::string& problem) {
  // The magic is stored last: what is read after the magic is complete.
  std::uint64_t magic = 0;
  if (!read(&magic, sizeof magic, offsetof(Header, magic)) || !read(&header_, sizeof header_, 0)) {
    problem = "is too short";
  } else if (magic != kMagic) {
    problem = "is not complete";
  } else if (header_.version != kLayoutVersion || header_.header_bytes != sizeof(Header)) {
    problem = "was written by another version of libbypass";
  } else {
    return true;
  }
  return false;
}

std::size_t StatsFile::count_of(const Section& section, std::size_t record_bytes, std::size_t most) const {
  if (section.record_bytes != record_bytes || section.capacity > most) return 0;
  return std::min(section.used.load(std::memory_order_relaxed), section.capacity);
}

bool StatsFile::read(void* to, std::size_t bytes, std::uint64_t offset) const {
  auto* at = static_cast<char*>(to);
  while (bytes != 0) {
    const ssize_t n = pread(fd_, at, bytes, static_cast<off_t>(offset));
    if (n <= 0) return false;
    at += n;
    bytes -= static_cast<std::size_t>(n);
    offset += static_cast<std::uint64_t>(n);
  }
  return true;
}

bool StatsFile::write(const void* from, std::size_t bytes, std::uint64_t offset) const {
  return pwrite(fd_, from, bytes, static_cast<off_t>(offset)) == static_cast<ssize_t>(bytes);
}

}  // namespace bypass::observe
