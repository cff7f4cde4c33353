// shm_large: ways to bring a large write from one process's buffer into another's, beside the rings of
// src/fastpath/shm as they are used. Two processes, pinned; Gbit/s, medians.
//
//   shm_large [CPU CPU [RUNS]]     prints a JSON object, `WAY SIZE`: each write is waited for with one read as large
//     ring        the two copies of today: 256 KiB, written in pieces of 64 KiB, read as far as there is anything
//     ring R/P    the same with rings of R KiB, and pieces of P KiB at both ends
//     whole       nothing is read before all of it has been written: two copies, one after the other
//     pull        the reader copies from the writer's buffer (process_vm_readv), which waits for it
//     splice      the writer's pages go through a pipe (vmsplice), and are copied when they are read; it waits as well
//     map         the writer copies into a memfd, and its pages take the place of the reader's buffer (mmap)
//     …, used     and the reader then looks at every byte: where the bytes are by then is part of the price
//     …, cold     the writer's and the reader's buffers go through 64 MiB each, which no cache holds
//
// A way that is not permitted here is left out, and said on standard error with the reason.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cacheline.h"
#include "fastpath/shm/segment.h"

namespace {

using namespace bypass;
namespace shm = fastpath::shm;

using Bytes = std::span<std::byte>;

constexpr std::size_t kKi = 1024;
constexpr std::size_t kLargest = 4 * kKi * kKi, kArea = 64 * kKi * kKi;
constexpr std::size_t kMoved =
    128 * kKi * kKi;                           // in one measurement, of which the median slice counts: one that others'
constexpr std::size_t kSlice = 4 * kKi * kKi;  // programs interrupt takes many times as long

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "shm_large: %s: %s\n", what.c_str(), std::strerror(errno));
  std::exit(1);
}

void* map_pages(std::size_t bytes, int flags, int fd = -1) {
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (at == MAP_FAILED) fail("mmap");
  return at;
}

/// What both processes see, apart from a way's own memory.
struct Shared {
  alignas(128) std::atomic<std::uint64_t> ready{0};    // the reader begins
  alignas(128) std::atomic<std::uint64_t> written{0};  // writes that may be read
  alignas(128) std::atomic<std::uint64_t> read{0};     // and that have been
  alignas(128) std::atomic<int> refused{0};            // errno of what the reader may not do
};

void wait_until(const std::atomic<std::uint64_t>& counter, std::uint64_t value) {
  while (counter.load(std::memory_order_acquire) < value) {
  }
}

/// One way. The object is the parent's and its child's; each has one side. False: not permitted, errno says why.
class Way {
 public:
  Way() = default;
  Way(const Way&) = delete;
  Way& operator=(const Way&) = delete;
  virtual ~Way() = default;
  virtual void begin_reading() {}
  // Whole buffers; `from` is the writer's, to be looked at by system calls only.
  [[nodiscard]] virtual bool write(Bytes from) = 0;
  [[nodiscard]] virtual bool read(Bytes into, Bytes from) = 0;
};

class Rings : public Way {
 public:
  struct Sizes {
    std::size_t ring, write_piece, read_piece;
  };
  explicit Rings(const Sizes& sizes) : sizes_(sizes) {
    auto made = shm::Segment::create({sizes.ring, shm::kLeastRing});
    if (!made.ok()) fail(to_string(made.refusal));
    host_ = std::move(made.value);
    out_ = host_.outgoing();
  }
  void begin_reading() override {
    auto opened = shm::Segment::open(host_.descriptor());
    if (!opened.ok()) fail(to_string(opened.refusal));
    guest_ = std::move(opened.value);
    in_ = guest_.incoming();
  }
  bool write(Bytes from) override {
    while (!from.empty()) {
      const std::size_t wanted = std::min(from.size(), sizes_.write_piece);
      const auto room = producer_.room(out_, wanted);
      const std::size_t n = std::min(room.size(), wanted), first = std::min(n, room.part[0].size());
      std::memcpy(room.part[0].data(), from.data(), first);
      if (n != first) std::memcpy(room.part[1].data(), from.data() + first, n - first);
      if (n != 0) (void)producer_.publish(out_, n);
      from = from.subspan(n);
    }
    return true;
  }
  bool read(Bytes into, Bytes) override {
    while (!into.empty()) {
      const std::size_t wanted = std::min(into.size(), sizes_.read_piece);
      const auto there = consumer_.peek(in_, wanted);
      const std::size_t n = std::min(there.size(), wanted), first = std::min(n, there.part[0].size());
      std::memcpy(into.data(), there.part[0].data(), first);
      if (n != first) std::memcpy(into.data() + first, there.part[1].data(), n - first);
      if (n != 0) (void)consumer_.consume(in_, n);
      into = into.subspan(n);
    }
    return true;
  }

 private:
  Sizes sizes_;
  shm::Segment host_, guest_;
  shm::RingView out_, in_;
  shm::Producer producer_;
  shm::Consumer consumer_;
};

class Whole : public Way {
 public:
  ~Whole() override { munmap(place_, kLargest); }
  bool write(Bytes from) override {
    std::memcpy(place_, from.data(), from.size());
    return true;
  }
  bool read(Bytes into, Bytes) override {
    std::memcpy(into.data(), place_, into.size());
    return true;
  }

 private:
  void* place_ = map_pages(kLargest, MAP_SHARED | MAP_ANONYMOUS);
};

/// The writer is the reader's parent, and its buffer where it was before the fork.
class Pull : public Way {
 public:
  bool write(Bytes) override { return true; }
  bool read(Bytes into, Bytes from) override {
    const iovec here{into.data(), into.size()}, there{from.data(), from.size()};
    return process_vm_readv(writer_, &here, 1, &there, 1, 0) == static_cast<ssize_t>(into.size());
  }

 private:
  pid_t writer_ = getpid();
};

class Splice : public Way {
 public:
  Splice() {
    if (pipe2(ends_, O_NONBLOCK) != 0 || fcntl(ends_[1], F_SETPIPE_SZ, 1024 * kKi) < 0) fail("a pipe of 1 MiB");
  }
  ~Splice() override {
    close(ends_[0]);
    close(ends_[1]);
  }
  bool write(Bytes from) override {
    while (!from.empty()) {
      const iovec pages{from.data(), from.size()};
      const ssize_t n = vmsplice(ends_[1], &pages, 1, SPLICE_F_NONBLOCK);
      if (n < 0 && errno != EAGAIN) return false;
      if (n > 0) from = from.subspan(static_cast<std::size_t>(n));
    }
    return true;
  }
  bool read(Bytes into, Bytes) override {
    while (!into.empty()) {
      const ssize_t n = ::read(ends_[0], into.data(), into.size());
      if (n < 0 && errno != EAGAIN) return false;
      if (n > 0) into = into.subspan(static_cast<std::size_t>(n));
    }
    return true;
  }

 private:
  int ends_[2];
};

/// The best case: a reader's buffer of whole pages, which it only reads. A page that it wrote to would be copied then.
class Map : public Way {
 public:
  Map() {
    if (file_ < 0 || ftruncate(file_, kLargest) != 0) fail("a memfd");
    place_ = map_pages(kLargest, MAP_SHARED, file_);
  }
  ~Map() override {
    munmap(place_, kLargest);
    close(file_);
  }
  bool write(Bytes from) override {
    std::memcpy(place_, from.data(), from.size());
    return true;
  }
  bool read(Bytes into, Bytes) override {
    constexpr int kFlags = MAP_PRIVATE | MAP_FIXED | MAP_POPULATE;
    return mmap(into.data(), into.size(), PROT_READ, kFlags, file_, 0) != MAP_FAILED;
  }

 private:
  int file_ = memfd_create("shm_large", MFD_CLOEXEC);
  void* place_ = nullptr;
};

// --- Measuring

volatile std::uint64_t seen;

void look_at(Bytes bytes) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < bytes.size(); i += sizeof sum) {
    std::uint64_t word;
    std::memcpy(&word, &bytes[i], sizeof word);
    sum += word;
  }
  seen = seen + sum;
}

struct Buffers {
  Bytes source{static_cast<std::byte*>(map_pages(kArea, MAP_PRIVATE | MAP_ANONYMOUS)), kArea};
  Bytes target{static_cast<std::byte*>(map_pages(kArea, MAP_PRIVATE | MAP_ANONYMOUS)), kArea};
  Shared* shared = new (map_pages(sizeof(Shared), MAP_SHARED | MAP_ANONYMOUS)) Shared;
};

enum class Care : std::uint8_t { kNone, kUsed, kCold };

struct Task {
  std::size_t size;
  Care care;
  bool waits_to_read;   // until all has been written
  bool waits_to_write;  // until what was written last has been read
  int cpu_writer, cpu_reader;
  /// Bytes of the buffers' memory that are used.
  [[nodiscard]] std::size_t area() const { return care == Care::kCold ? kArea : size; }
  /// The buffer of that round in an area.
  [[nodiscard]] Bytes of(Bytes whole, std::uint64_t round) const { return whole.subspan(round * size % area(), size); }
  [[nodiscard]] std::uint64_t rounds() const { return std::max<std::uint64_t>(kMoved / size, 16); }
};

[[noreturn]] void read_all(Way& way, const Buffers& buffers, const Task& task) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  bench::pin(task.cpu_reader);
  way.begin_reading();
  Shared& shared = *buffers.shared;
  std::memset(buffers.target.data(), 0, task.area());  // its pages are there
  shared.ready.store(1, std::memory_order_release);
  for (std::uint64_t i = 1; i <= task.rounds(); i++) {
    if (task.waits_to_read) wait_until(shared.written, i);
    const Bytes target = task.of(buffers.target, i);
    if (!way.read(target, task.of(buffers.source, i))) {
      shared.refused = errno;
      break;
    }
    if (task.care == Care::kUsed) look_at(target);
    shared.read.store(i, std::memory_order_release);
  }
  _exit(0);
}

/// Gbit/s; or errno of what is not permitted, negative.
double move(Way& way, const Buffers& buffers, const Task& task) {
  new (buffers.shared) Shared;
  Shared& shared = *buffers.shared;
  const pid_t reader = fork();
  if (reader < 0) fail("fork");
  if (reader == 0) read_all(way, buffers, task);
  bench::pin(task.cpu_writer);
  const std::uint64_t slice = std::max<std::uint64_t>(kSlice / task.size, 1);
  std::vector<double> times;                             // of a slice each, ns
  std::memset(buffers.source.data(), 'x', task.area());  // and the writer's own: the fork had made them common
  wait_until(shared.ready, 1);
  auto last = std::chrono::steady_clock::now();
  for (std::uint64_t i = 1; i <= task.rounds() && shared.refused == 0; i++) {
    if (!way.write(task.of(buffers.source, i))) shared.refused = errno;
    shared.written.store(i, std::memory_order_release);
    while (task.waits_to_write && shared.refused == 0 && shared.read.load(std::memory_order_acquire) < i) {
    }
    if (i % slice != 0) continue;
    const auto now = std::chrono::steady_clock::now();
    times.push_back(std::chrono::duration<double, std::nano>(now - last).count());
    last = now;
  }
  if (shared.refused != 0) kill(reader, SIGKILL);  // it may wait for what does not come
  waitpid(reader, nullptr, 0);
  if (shared.refused != 0) return -shared.refused;
  std::sort(times.begin(), times.end());
  return static_cast<double>(slice * task.size) * 8 / times[times.size() / 2];
}

struct Named {
  std::string name;
  std::function<std::unique_ptr<Way>()> make;
  bool waits_to_read = false, waits_to_write = false;
};

std::vector<Named> ways() {
  const auto rings = [](const Rings::Sizes& sizes) {
    return [sizes]() -> std::unique_ptr<Way> { return std::make_unique<Rings>(sizes); };
  };
  std::vector<Named> all{{"ring", rings({256 * kKi, 64 * kKi, kLargest})}};
  for (const auto& [ring, piece] : {std::pair{256, 32}, {256, 128}, {1024, 64}, {4096, 64}})
    all.push_back(
        {"ring " + std::to_string(ring) + "/" + std::to_string(piece), rings({ring * kKi, piece * kKi, piece * kKi})});
  all.push_back({"whole", [] { return std::make_unique<Whole>(); }, true, true});
  all.push_back({"pull", [] { return std::make_unique<Pull>(); }, true, true});
  all.push_back({"splice", [] { return std::make_unique<Splice>(); }, false, true});
  all.push_back({"map", [] { return std::make_unique<Map>(); }, true, true});
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  const int writer = argc > 2 ? std::atoi(argv[1]) : 0, reader = argc > 2 ? std::atoi(argv[2]) : 1;
  const int runs = argc > 3 ? std::atoi(argv[3]) : 3;
  Buffers buffers;
  const char* between = "{";
  for (const Named& named : ways()) {
    for (const std::size_t size : {64 * kKi, 256 * kKi, 1024 * kKi, 4096 * kKi}) {
      for (const auto& [care, suffix] :
           {std::pair{Care::kNone, ""}, {Care::kUsed, ", used"}, {Care::kCold, ", cold"}}) {
        std::vector<double> rates;
        for (int i = 0; i < runs; i++) {
          const std::unique_ptr<Way> way = named.make();
          rates.push_back(move(*way, buffers, {size, care, named.waits_to_read, named.waits_to_write, writer, reader}));
        }
        std::sort(rates.begin(), rates.end());
        const double rate = rates[rates.size() / 2];
        if (rate < 0) {
          std::fprintf(stderr, "shm_large: %s: %s\n", named.name.c_str(), std::strerror(static_cast<int>(-rate)));
          continue;
        }
        std::printf("%s\"%s %zu KiB%s\": %.2f", between, named.name.c_str(), size / kKi, suffix, rate);
        between = ", ";
      }
    }
  }
  std::printf("}\n");
}
