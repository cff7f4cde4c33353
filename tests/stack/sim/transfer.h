// Transfer: two programs on two whole stacks send each other a stream over a bad wire, check every byte, shut
// down and close. Everything about it follows from one seed.
#pragma once

#include <cstdint>
#include <string>

#include "stack/world.h"

namespace bypass::test {

struct TransferConfig {
  std::uint64_t seed = 1;
  std::size_t bytes = 10'000'000;  // each way
  sim::Impairment wire;
  HostConfig host[2];
  tcp::Options options[2];
  std::size_t largest_write = 65536, largest_read = 65536;
  std::string text;  // what this seed stands for, for the failure's line
};

/// Wire, stacks and programs of a seed: loss up to 10 %, reordering, duplication, corruption, delay, tiny
/// windows, with and without offloads, SACK, timestamps.
TransferConfig transfer_of(std::uint64_t seed, std::size_t bytes);

/// Runs it to its end. What went wrong, empty if nothing did.
std::string run_transfer(const TransferConfig& config);

}  // namespace bypass::test
