// StatsFile: reads one process's stats file.
//
// The file's owner may write anything into it and shorten it at any time. So it is never mapped: pread(2) copies the
// wanted part, whose size layout.h limits, and the checks are made on the copy. A file that ends early counts as a file
// without the rest.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "observe/layout.h"

namespace bypass::observe {

class StatsFile {
 public:
  StatsFile() = default;
  ~StatsFile();
  StatsFile(const StatsFile&) = delete;
  StatsFile& operator=(const StatsFile&) = delete;

  /// Opens the file in an open directory (with O_RDONLY or O_RDWR) and reads its header. False: `problem` says what is
  /// wrong with the file, without its name.
  bool open(int directory, const std::string& name, int access, std::string& problem);

  [[nodiscard]] const Header& header() const { return header_; }
  [[nodiscard]] uid_t owner() const { return owner_; }

  /// The records of a section without slots (counters, settings), at most `most`. Returns none if the section lies
  /// outside the file or is of another kind.
  template <typename Record>
  std::vector<Record> records(const Section& section, std::size_t most) const;

  /// The content of each of a section's slots: nothing if it is free, or if its writer died while writing.
  template <typename Record>
  std::vector<std::optional<Record>> slots(const Section& section, std::size_t most) const;

  /// Reads all of `bytes` at `offset`. False: the file is too short.
  bool read(void* to, std::size_t bytes, std::uint64_t offset) const;
  bool write(const void* from, std::size_t bytes, std::uint64_t offset) const;

 private:
  /// A copy of a Slot as it lies in the file.
  template <typename Record>
  struct Image {
    std::uint32_t used, sequence;
    std::array<std::uint64_t, Slot<Record>::kWords> words;
  };

  template <typename Record>
  void take_settled(std::uint64_t offset, std::optional<Record>* out, std::size_t count) const;
  [[nodiscard]] std::size_t count_of(const Section& section, std::size_t record_bytes, std::size_t most) const;
  bool take_header(std::string& problem);

  int fd_ = -1;
  uid_t owner_ = 0;
  Header header_{};
};

template <typename Record>
std::vector<Record> StatsFile::records(const Section& section, std::size_t most) const {
  std::vector<Record> out(count_of(section, sizeof(Record), most));
  if (!read(out.data(), out.size() * sizeof(Record), section.offset)) out.clear();
  return out;
}

template <typename Record>
std::vector<std::optional<Record>> StatsFile::slots(const Section& section, std::size_t most) const {
  static_assert(sizeof(Image<Record>) == sizeof(Slot<Record>));
  constexpr std::size_t kAtOnce = 64;
  std::vector<std::optional<Record>> out(count_of(section, sizeof(Slot<Record>), most));
  for (std::size_t i = 0; i < out.size(); i += kAtOnce)
    take_settled<Record>(section.offset + i * sizeof(Slot<Record>), &out[i], std::min(kAtOnce, out.size() - i));
  return out;
}

// Three copies, one after another. If the first and the last have the same even sequence number, the middle one is
// complete. A single pread(2) guarantees no order of its bytes.
template <typename Record>
void StatsFile::take_settled(std::uint64_t offset, std::optional<Record>* out, std::size_t count) const {
  constexpr int kTries = 20;
  std::vector<Image<Record>> before(count), during(count), after(count);
  const std::size_t bytes = count * sizeof(Image<Record>);
  for (int i = 0; i < kTries; i++) {
    if (!read(before.data(), bytes, offset) || !read(during.data(), bytes, offset) ||
        !read(after.data(), bytes, offset))
      return;
    bool unsettled = false;
    for (std::size_t at = 0; at < count; at++) {
      if (out[at].has_value() || during[at].used != kHolds) continue;
      if (before[at].sequence != after[at].sequence || (after[at].sequence & 1) != 0) {
        unsettled = true;
        continue;
      }
      out[at] = std::bit_cast<Record>(during[at].words);
    }
    if (!unsettled) return;
  }
}

}  // namespace bypass::observe
