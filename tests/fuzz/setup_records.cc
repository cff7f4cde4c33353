// What two ends tell each other before they have a link: the SYN's option, and the bodies of LINK_* records.
#include "fastpath/framed/handshake.h"
#include "fastpath/setup/rc_record.h"
#include "fastpath/setup/shm_record.h"
#include "fuzz/check.h"
#include "fuzz/exact.h"

namespace {

using namespace bypass;
using namespace bypass::fastpath;

template <typename End>
void say_again(std::span<const std::byte> body, const End& end, auto&& decode_end) {
  LinkHead head;
  if (decode(body, head) != Reason::kNone) return;
  std::byte room[256];
  const std::size_t length = encode(head, end, room);
  fuzz::expect(length <= sizeof room, "it cannot be said again");
  End again;
  fuzz::expect(decode_end(std::span(room).first(length), again) == Reason::kNone && again == end,
               "said again, it means something else");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  const std::uint8_t what = input.byte();
  const fuzz::Exact body(input.rest());
  if (what % 3 == 0) {
    const auto option = parse_syn_option(body.bytes());
    std::byte room[kSynAckOptionBytes];
    if (option) fuzz::expect(write_syn_option(room, *option) != 0, "an option that cannot be written");
  } else if (what % 3 == 1) {
    const IpAddress peer = IpAddress::from_v4(0x0a090002);
    const auto decode_end = [&peer](std::span<const std::byte> bytes, RcEnd& end) { return decode(bytes, peer, end); };
    RcEnd end;
    if (decode_end(body.bytes(), end) == Reason::kNone) say_again(body.bytes(), end, decode_end);
  } else {
    const auto decode_end = [](std::span<const std::byte> bytes, ShmEnd& end) { return decode(bytes, true, end); };
    ShmEnd end;
    if (decode_end(body.bytes(), end) == Reason::kNone) say_again(body.bytes(), end, decode_end);
  }
  return 0;
}
