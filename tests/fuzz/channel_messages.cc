// Messages of a rendezvous, and the words on the channel of a connection within the host.
#include "fastpath/shm/carrier_switch.h"
#include "fastpath/shm/rendezvous/message.h"
#include "fuzz/check.h"
#include "fuzz/exact.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace bypass;
  using namespace bypass::fastpath;
  const fuzz::Exact packet({reinterpret_cast<const std::byte*>(data), size});
  const auto message = shm::parse_message(packet.bytes());
  if (message.ok()) {
    fuzz::expect(message.value.magic == shm::Message::kMagic, "a message without its mark");
    fuzz::expect(message.value.version == shm::Message::kVersion, "a message of another version");
    fuzz::expect(size >= sizeof(shm::Message), "a message that is cut off");
    fuzz::expect(message.value.kind >= shm::MessageKind::kWelcome && message.value.kind <= shm::MessageKind::kRefused,
                 "a kind that there is not");
  }
  const auto word = shm::parse_switch(packet.bytes());
  if (word) fuzz::expect(size == sizeof(shm::SwitchMessage), "a word of another length");
  return 0;
}
