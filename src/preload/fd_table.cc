#include "preload/fd_table.h"

#include <sys/mman.h>
#include <sys/syscall.h>

#include "os/os.h"

namespace bypass::preload {

constinit FdTable fd_table;

FdTable::Word* FdTable::make_word(unsigned number) {
  if (Word* place = word(number); place != nullptr || number >= kNumbers) return place;
  long made = os::call(SYS_mmap, 0, kChunk * sizeof(Word), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (made < 0) return nullptr;
  Word* expected = nullptr;
  auto* chunk = reinterpret_cast<Word*>(made);
  if (!chunks_[number >> kChunkBits].compare_exchange_strong(expected, chunk)) {
    os::call(SYS_munmap, made, kChunk * sizeof(Word));
  }
  return word(number);
}

Entry FdTable::exchange(int fd, Entry entry, bool* placed) {
  Word* place = entry.empty() ? word(static_cast<unsigned>(fd)) : make_word(static_cast<unsigned>(fd));
  if (placed != nullptr) *placed = place != nullptr;
  if (place == nullptr) return {};
  if (entry.empty() && place->load(std::memory_order_relaxed) == 0) return {};
  for (int seen = end_.load(); !entry.empty() && fd >= seen;) {
    if (end_.compare_exchange_weak(seen, fd + 1)) break;
  }
  return Entry(place->exchange(entry.word()));
}

bool FdTable::clear(int fd, Entry expected) {
  Word* place = word(static_cast<unsigned>(fd));
  std::uintptr_t seen = expected.word();
  return place != nullptr && place->compare_exchange_strong(seen, 0);
}

void FdTable::forget() {
  for (int fd = 0, last = end(); fd < last; fd++) exchange(fd, {});
}

}  // namespace bypass::preload
