// ARP: packets of 28 bytes and any others, and time between them.
#include "fuzz/one_host.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace bypass;
  fuzz::OneHost host;
  fuzz::Input input(data, size);
  for (int frames = 0; !input.empty() && frames < 64; frames++) {
    const std::uint8_t how = input.byte();
    if ((how & 1) != 0) host.wait(how);
    sim::Bytes frame = test::arp_frame({.to_mac = (how & 2) != 0 ? test::mac(1) : MacAddress::broadcast()});
    const auto arp = input.bytes((how & 4) != 0 ? input.byte() : 28);
    if ((how & 8) != 0) frame.resize(14 + arp.size());
    std::copy_n(arp.begin(), std::min(arp.size(), frame.size() - 14), frame.begin() + 14);
    host.feed(frame);
  }
  host.end();
  return 0;
}
