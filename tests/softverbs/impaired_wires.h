// The wires on which the verbs must keep their semantics: with loss, duplicates, reordering, corruption, all of these
// together, and with a bottleneck.
#pragma once

#include <array>
#include <string>

#include "softverbs/fabric.h"

namespace bypass::rdma::test {

struct ImpairedWire {
  const char* name;
  sim::Impairment impairment;
};

inline const std::array<ImpairedWire, 7> kImpairedWires = {{
    {"some_loss", {.loss = 0.01, .delay = 20us}},
    {"loss", {.loss = 0.05, .delay = 20us}},
    {"duplication", {.duplicate = 0.2, .delay = 20us}},
    {"reordering", {.reorder = 0.1, .delay = 20us}},
    {"corruption", {.corrupt = 0.03, .delay = 20us}},
    {"all", {.loss = 0.03, .duplicate = 0.05, .corrupt = 0.01, .reorder = 0.05, .delay = 20us, .jitter = 5us}},
    {"narrow", {.loss = 0.01, .delay = 20us, .bits_per_second = 1'000'000'000, .queue_frames = 40}},
}};

/// Changes the wire from now on. Both ends know the other's MAC, like programs that have waited for it before they
/// connect: a lost question for it is asked again much later than packets are.
void impair(Pair& pair, const sim::Impairment& impairment);
/// An IPv4 frame with a RoCE packet; its headers are where they always are.
bool is_roce(std::span<const std::byte> frame);
inline constexpr std::size_t kOpcodeAt = 42, kSyndromeAt = 54;  // of an acknowledgement
/// Removes the mark that says that a packet is from a library's end. Then lost packets are repaired by going back.
void unmark(sim::Bytes& frame);
/// … from all packets.
void make_strangers(sim::Wire& wire);

inline std::string name_of(const ImpairedWire& wire) {
  return wire.name;
}

}  // namespace bypass::rdma::test
