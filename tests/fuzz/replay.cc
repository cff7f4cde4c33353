// replay CORPUS RUNS: a fuzz target without libFuzzer, as any compiler builds it: over its corpus, and over RUNS inputs
// more that are made of the corpus by chance, the same each time. It knows nothing of coverage: libFuzzer does
// (CMakeLists.txt). An input that fails is written to the file that is named at the end.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using Bytes = std::vector<std::uint8_t>;
constexpr std::size_t kMostBytes = 16384;  // run.sh: -max_len

Bytes current;
std::string artifact;

#ifdef __SANITIZE_ADDRESS__
constexpr int kFatal[] = {SIGABRT};  // the others it reports, and aborts where it is told so (CMakeLists.txt)
#else
constexpr int kFatal[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP};
#endif

void write_current(int number) {
  if (FILE* const file = std::fopen(artifact.c_str(), "w")) {
    (void)!std::fwrite(current.data(), 1, current.size(), file);
    (void)!std::fclose(file);
    std::fprintf(stderr, "the input that fails: %s\n", artifact.c_str());
  }
  (void)!signal(number, SIG_DFL);
  (void)!raise(number);
}

void run(Bytes input) {
  current = std::move(input);
  // A block of just its size: AddressSanitizer sees a byte that is read beyond it.
  const Bytes exact(current);
  (void)LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

std::vector<Bytes> read_corpus(const char* folder) {
  std::vector<std::filesystem::path> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path());
  std::ranges::sort(names);
  std::vector<Bytes> corpus;
  for (const auto& name : names) {
    std::ifstream file(name, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return corpus;
}

class Changes {
 public:
  Bytes made_of(const std::vector<Bytes>& corpus) {
    Bytes input = corpus[below(corpus.size())];
    for (std::size_t i = 1 + below(4); i > 0; i--) change(input, corpus);
    if (input.size() > kMostBytes) input.resize(kMostBytes);
    return input;
  }

 private:
  std::size_t below(std::size_t bound) { return bound == 0 ? 0 : random_() % bound; }
  std::uint8_t byte() {
    constexpr std::uint8_t kEdges[] = {0, 1, 2, 4, 0x7f, 0x80, 0xfe, 0xff};
    return below(2) == 0 ? kEdges[below(std::size(kEdges))] : static_cast<std::uint8_t>(below(256));
  }
  void change(Bytes& input, const std::vector<Bytes>& corpus) {
    const auto at = input.begin() + static_cast<std::ptrdiff_t>(below(input.size() + 1));
    const auto rest = static_cast<std::size_t>(input.end() - at);
    switch (below(6)) {
      case 0:
        if (rest != 0) *at = byte();
        return;
      case 1:
        if (rest != 0) *at ^= static_cast<std::uint8_t>(1U << below(8));
        return;
      case 2:
        input.insert(at, 1 + below(16), byte());
        return;
      case 3:
        input.erase(at, at + static_cast<std::ptrdiff_t>(below(rest + 1)));
        return;
      case 4: {
        const Bytes& other = corpus[below(corpus.size())];
        const std::size_t from = below(other.size() + 1);
        const Bytes part(other.begin() + static_cast<std::ptrdiff_t>(from), other.end());
        input.insert(at, part.begin(), part.end());
        return;
      }
      default:
        for (auto each = at; each != input.end() && below(8) != 0; each++)
          *each = static_cast<std::uint8_t>(below(256));
    }
  }

  std::mt19937_64 random_{1};
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  artifact = (std::filesystem::temp_directory_path() / ("replay-" + std::to_string(getpid()))).string();
  for (const int number : kFatal) (void)signal(number, write_current);
  const std::vector<Bytes> corpus = read_corpus(argv[1]);
  if (corpus.empty()) return std::fprintf(stderr, "no corpus: %s\n", argv[1]), 2;
  for (const Bytes& each : corpus) run(each);
  Changes changes;
  for (long i = std::strtol(argv[2], nullptr, 10); i > 0; i--) run(changes.made_of(corpus));
  return 0;
}
