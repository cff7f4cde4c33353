// Writes frames to a pcap file with nanosecond stamps, to look at a simulated run in a packet viewer.
#pragma once

#include <cstddef>
#include <cstdio>
#include <span>
#include <string>

#include "stack/time.h"

namespace bypass::sim {

class PcapWriter {
 public:
  explicit PcapWriter(const std::string& path);
  ~PcapWriter();
  PcapWriter(const PcapWriter&) = delete;
  PcapWriter& operator=(const PcapWriter&) = delete;

  [[nodiscard]] bool ok() const { return file_ != nullptr; }
  void write(Instant at, std::span<const std::byte> frame);

 private:
  std::FILE* file_;
};

}  // namespace bypass::sim
