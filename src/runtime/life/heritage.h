// Heritage: what an image leaves to the next image of the same process, so that that one goes on with the arena.
//
// It lies in a sealed memfd (memfd_create(2), fcntl(2)), which nobody can change any more, and which exec does not
// close. A variable of the environment names its number. The next image believes it only if this user has made it, and
// if it names this very process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/family/standing.h"

namespace bypass {
class Memory;
class Stack;
}  // namespace bypass

namespace bypass::fastpath {
struct PeerTable;
}

namespace bypass::socket {
struct File;
struct Objects;
struct Wires;
}  // namespace bypass::socket

namespace bypass::runtime {

/// A number of the process, and the object that it names.
struct HandedNumber {
  std::int32_t number;
  socket::File* file;
};

/// The fixed part. The pointers are into the arena.
struct HeritageHead {
  std::uint64_t magic = 0;
  std::uint32_t bytes = 0;     // of this
  std::uint32_t count = 0;     // of the numbers that follow
  std::uint64_t library = 0;   // library_identity()
  std::uint64_t settings = 0;  // settings_identity()
  std::uint64_t start_time = 0;
  std::uint32_t pid = 0;
  std::uint32_t slot = 0;
  std::int32_t arena = -1;        // the descriptor of the arena's memory
  std::uint32_t handovers = 0;    // Handovers::id(); 0: there are none
  std::uint32_t descriptors = 0;  // how many follow the numbers
  std::uint32_t unused = 0;
  std::uint64_t address = 0, size = 0;  // where the arena is
  Standing standing;
  Memory* memory = nullptr;
  Stack* stack = nullptr;
  socket::Wires* wires = nullptr;
  fastpath::PeerTable* links = nullptr;
  socket::Objects* objects = nullptr;
};

struct Heritage {
  HeritageHead head;
  std::vector<HandedNumber> numbers;
  std::vector<std::int32_t> descriptors;  // of the library's own: the spare's (spare.h), then the handovers'
};

/// Writes it. Returns a descriptor that exec closes; negative: there is no memory or no number for it.
[[nodiscard]] int write_heritage(HeritageHead head, std::span<const HandedNumber> numbers,
                                 std::span<const std::int32_t> descriptors);
/// Reads what `fd` has, and closes it if it is a heritage. Nullopt: it is none of this process's.
[[nodiscard]] std::optional<Heritage> read_heritage(int fd);

/// A number for this build of the library. 0: none is known.
[[nodiscard]] std::uint64_t library_identity();

/// The name of the variable, with '='.
inline constexpr char kHeritageVariable[] = "LIBBYPASS_HERITAGE=";
/// They follow the number where the exec's environment had no LD_PRELOAD, or no BYPASS_ variables, and got ours.
inline constexpr char kAddedPreload = 'p', kAddedSettings = 's';
struct Added {
  bool preload = false, settings = false;
};
/// Reads the number in the variable, and takes the variable out of the environment. -1: there is none.
[[nodiscard]] int take_heritage_number(char** environment, Added& added);
/// Takes those out of the environment, so that the program sees what it was given.
void take_added_out(char** environment, const Added& added);

}  // namespace bypass::runtime
