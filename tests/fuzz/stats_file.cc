// A process's stats file, as another user may have written it: its size, and pieces of it at their places.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "fuzz/check.h"
#include "observe/reader.h"

namespace {

void expect_done(bool done) {
  bypass::fuzz::expect(done, "the file cannot be made");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace bypass;
  char directory[] = "/tmp/bypass-fuzz-XXXXXX";
  expect_done(mkdtemp(directory) != nullptr);
  const int at = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const int file = openat(at, "1.stats", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  fuzz::Input input(data, size);
  expect_done(ftruncate(file, input.byte() % 8 * 0x4'0000L) == 0);
  while (!input.empty()) {
    const long place = input.byte() | input.byte() << 8 | input.byte() << 16;
    const std::size_t length = input.byte() | static_cast<std::size_t>(input.byte()) << 8;
    const auto bytes = input.bytes(length);
    expect_done(pwrite(file, bytes.data(), bytes.size(), place) == static_cast<ssize_t>(bytes.size()));
  }
  observe::Snapshot snapshot;
  std::string problem;
  const bool good = observe::read_stats(at, "1.stats", snapshot, problem);
  fuzz::expect(good || !problem.empty(), "it does not say what is wrong");
  close(file);
  unlinkat(at, "1.stats", 0);
  close(at);
  rmdir(directory);
  return 0;
}
