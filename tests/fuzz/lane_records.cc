// The framed stream beneath lanes: whole, and cut anywhere, it says the same.
#include <vector>

#include "fastpath/framed/control.h"
#include "fuzz/check.h"
#include "fuzz/exact.h"

namespace {

using namespace bypass;
using fastpath::Decoder;
using Event = Decoder::Event;

struct Said {
  std::vector<fastpath::Record> records;
  std::vector<std::byte> program, bodies;
  bool bad = false;
  bool operator==(const Said&) const = default;
};

void take(Decoder& decoder, std::span<const std::byte> input, Said& said) {
  while (!said.bad) {
    const Decoder::Step step = decoder.next(input);
    fuzz::expect(step.taken <= input.size(), "more is taken than there is");
    if (step.event == Event::kData || step.event == Event::kRaw) {
      fuzz::expect(step.data <= step.taken, "more data than was taken");
      const auto data = input.first(step.taken).last(step.data);
      said.program.insert(said.program.end(), data.begin(), data.end());
    } else if (step.event == Event::kRecord) {
      said.records.push_back(step.record);
      const auto body = decoder.link_body();
      fuzz::expect(body.size() <= fastpath::kMaxLinkBody, "a body that is too long");
      said.bodies.insert(said.bodies.end(), body.begin(), body.end());
      std::byte room[fastpath::kMaxControl];
      fuzz::expect(fastpath::encode(step.record, room, body) <= sizeof room, "it cannot be said again");
    }
    said.bad = step.event == Event::kBad;
    input = input.subspan(step.taken);
    if (input.empty() || said.bad) return;
    fuzz::expect(step.taken != 0 || step.event != Event::kMore, "it stands still");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  const std::size_t piece = 1 + input.byte() % 40U;
  const auto stream = input.rest();
  Decoder whole, cut;
  Said at_once, in_pieces;
  take(whole, fuzz::Exact(stream).bytes(), at_once);
  for (auto left = stream; !left.empty() && !in_pieces.bad;) {
    const auto front = left.first(std::min(piece, left.size()));
    take(cut, fuzz::Exact(front).bytes(), in_pieces);
    left = left.subspan(front.size());
  }
  fuzz::expect(at_once == in_pieces, "cut in pieces it says something else");
  return 0;
}
