// Fragments of IP packets, of TCP, UDP and ICMP among them, and time between them.
#include "fuzz/one_host.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace bypass;
  fuzz::OneHost host;
  fuzz::Input input(data, size);
  for (int frames = 0; !input.empty() && frames < 64; frames++) {
    const std::uint8_t how = input.byte();
    if ((how & 1) != 0) host.wait(how);
    static constexpr std::uint8_t kProtocols[] = {17, 6, 1, 47};
    const unsigned word =
        (how & 2) != 0 ? input.byte() << 8U | input.byte() : (input.byte() & 7U) | ((how & 4) != 0 ? 0x2000U : 0U);
    const sim::Bytes frame = test::ipv4_frame({.protocol = kProtocols[how >> 3 & 3],
                                               .tos = static_cast<std::uint8_t>(how >> 5),
                                               .fragment = static_cast<std::uint16_t>(word),
                                               .id = static_cast<std::uint16_t>(input.byte() & 3),
                                               .option_words = static_cast<std::size_t>(how >> 6)},
                                              input.bytes(input.byte()));
    host.feed(frame);
  }
  host.end();
  return 0;
}
