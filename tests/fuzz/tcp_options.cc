// TCP's options, as a segment has them.
#include "stack/tcp/input/options.h"

#include "fuzz/check.h"
#include "fuzz/exact.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace bypass;
  if (size > tcp::kMaxOptionBytes) return 0;
  const fuzz::Exact options({reinterpret_cast<const std::byte*>(data), size});
  tcp::SegmentOptions parsed;
  const bool good = tcp::parse_options(options.bytes(), parsed);
  fuzz::expect(parsed.sack_count <= tcp::kMaxSackBlocks, "more SACK blocks than there is room for");
  fuzz::expect(parsed.window_scale <= tcp::kMaxWindowScale, "a window scale above 14");
  if (!good) return 0;
  tcp::UnknownOption unknown[16];
  const std::size_t count = tcp::unknown_options(options.bytes(), unknown);
  fuzz::expect(count <= 16 && (count != 0) == (parsed.unknown_count != 0), "unknown options are counted");
  for (std::size_t i = 0; i < count; i++)
    fuzz::expect(unknown[i].body.empty() || (unknown[i].body.data() >= options.bytes().data() &&
                                             unknown[i].body.data() + unknown[i].body.size() <=
                                                 options.bytes().data() + options.bytes().size()),
                 "a body outside of the options");
  // What we write is what we read.
  tcp::SynOptions syn{.mss = parsed.mss,
                      .sack_permitted = parsed.sack_permitted,
                      .timestamps = parsed.has_timestamps,
                      .window_scaling = parsed.has_window_scale,
                      .window_scale = parsed.window_scale,
                      .ts_value = parsed.ts_value,
                      .ts_echo = parsed.ts_echo};
  std::byte room[tcp::kMaxOptionBytes];
  const std::size_t written = tcp::write_syn_options(room, syn);
  tcp::SegmentOptions again;
  fuzz::expect(tcp::parse_options(std::span(room).first(written), again), "own options are illegal");
  fuzz::expect(again.mss == parsed.mss && again.sack_permitted == parsed.sack_permitted &&
                   again.has_timestamps == parsed.has_timestamps && again.window_scale == parsed.window_scale,
               "own options say something else");
  return 0;
}
