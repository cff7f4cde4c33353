// Transfer: two programs on two whole stacks send each other a stream over a bad wire, check every byte, shut down and
// close. One seed decides everything.
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

/// The wire, stacks and programs of a seed: loss up to 10 %, reordering, duplication, corruption, delay, tiny windows,
/// with and without offloads, SACK and timestamps.
TransferConfig transfer_of(std::uint64_t seed, std::size_t bytes);

/// Runs the transfer to its end. Returns what went wrong; empty: nothing.
std::string run_transfer(const TransferConfig& config);

}  // namespace bypass::test
