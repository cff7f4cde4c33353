#include "backends/sim/pcap.h"

#include <cstdint>

namespace bypass::sim {
namespace {

constexpr std::uint32_t kMagicNanoseconds = 0xa1b23c4d;
constexpr std::uint32_t kLinkTypeEthernet = 1;

}  // namespace

PcapWriter::PcapWriter(const std::string& path) : file_(std::fopen(path.c_str(), "wb")) {
  if (file_ == nullptr) return;
  const std::uint32_t header[] = {kMagicNanoseconds, 2 | 4 << 16, 0, 0, 262144, kLinkTypeEthernet};
  std::fwrite(header, sizeof header, 1, file_);
}

PcapWriter::~PcapWriter() {
  if (file_ != nullptr) std::fclose(file_);
}

void PcapWriter::write(Instant at, std::span<const std::byte> frame) {
  if (file_ == nullptr) return;
  const auto ns = static_cast<std::uint64_t>(at.time_since_epoch().count());
  const auto len = static_cast<std::uint32_t>(frame.size());
  const std::uint32_t header[] = {static_cast<std::uint32_t>(ns / 1'000'000'000),
                                  static_cast<std::uint32_t>(ns % 1'000'000'000), len, len};
  std::fwrite(header, sizeof header, 1, file_);
  std::fwrite(frame.data(), 1, frame.size(), file_);
}

}  // namespace bypass::sim
