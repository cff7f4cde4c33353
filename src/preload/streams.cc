#include "preload/streams.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "os/os.h"
#include "os/own/cancellation.h"
#include "preload/escape.h"
#include "preload/fd_table.h"
#include "preload/numbers.h"
#include "preload/symbols.h"

namespace bypass::preload {
namespace {

// A table of functions: struct _IO_jump_t of glibc's libio/libioP.h. Its form has not changed since glibc 2.1.
struct Jumps {
  std::uintptr_t unused[2];
  void* others[12];
  ssize_t (*read)(FILE*, void*, ssize_t);
  ssize_t (*write)(FILE*, const void*, ssize_t);
  void* seek;
  int (*close)(FILE*);
  void* last[3];
};
static_assert(sizeof(Jumps) == 21 * sizeof(void*));

// What libc has in the tables of files. Set once, before a function of ours is in a table.
constinit decltype(Jumps::read) file_read = nullptr;
constinit decltype(Jumps::write) file_write = nullptr;
constinit decltype(Jumps::close) file_close = nullptr;
// Other tables close in a way of their own: popen()'s, and those of files that are mapped.
constexpr std::size_t kOthers = 2;
constinit decltype(Jumps::close) other_close[kOthers] = {};
constinit std::atomic<bool> caught{false};

// Flags of a FILE (libio/libio.h).
constexpr int kErrorSeen = 0x20;
constexpr int kNotCancelled = 2;  // in _flags2: a stream of fopen()'s mode "c"

ssize_t read_stream(FILE* stream, void* buffer, ssize_t length) {
  if (!is_tracked(stream->_fileno)) [[likely]]
    return file_read(stream, buffer, length);
  std::optional<socket::CancellationOff> off;
  if ((stream->_flags2 & kNotCancelled) != 0) off.emplace();
  return ::read(stream->_fileno, buffer, static_cast<size_t>(length));
}

// As _IO_new_file_write() in libio/fileops.c.
ssize_t write_stream(FILE* stream, const void* buffer, ssize_t length) {
  if (!is_tracked(stream->_fileno)) [[likely]]
    return file_write(stream, buffer, length);
  std::optional<socket::CancellationOff> off;
  if ((stream->_flags2 & kNotCancelled) != 0) off.emplace();
  const ssize_t written = write_all(stream->_fileno, static_cast<const char*>(buffer), static_cast<size_t>(length));
  if (written < length) stream->_flags |= kErrorSeen;
  if (stream->_offset >= 0) stream->_offset += written;
  return written;
}

int close_stream(FILE* stream) {
  if (!is_tracked(stream->_fileno)) [[likely]]
    return file_close(stream);
  const socket::CancellationOff off;  // fclose() with nothing to write is no cancellation point
  return ::close(stream->_fileno);
}

// libc's function closes the number where nobody sees that.
template <std::size_t kWhich>
int close_otherwise(FILE* stream) {
  if (is_tracked(stream->_fileno)) [[unlikely]] {
    const KeepErrno keep;
    leave_number(stream->_fileno);
  }
  return other_close[kWhich](stream);
}
constexpr decltype(Jumps::close) kClosesOtherwise[kOthers] = {close_otherwise<0>, close_otherwise<1>};

struct Region {
  std::uintptr_t low = 0, high = 0;
  [[nodiscard]] bool has(const void* place) const {
    const auto at = reinterpret_cast<std::uintptr_t>(place);
    return at >= low && at < high;
  }
};

// libc's memory that the linker makes read-only after relocation, where the tables are.
Region read_only_data_with(const void* place) {
  struct Search {
    const void* place;
    Region found;
  } search{place, {}};
  dl_iterate_phdr(
      [](dl_phdr_info* object, size_t, void* data) {
        auto& wanted = *static_cast<Search*>(data);
        for (const auto& header : std::span(object->dlpi_phdr, object->dlpi_phnum)) {
          const std::uintptr_t begin = object->dlpi_addr + header.p_vaddr;
          const Region region{begin, begin + header.p_memsz};
          if (header.p_type == PT_GNU_RELRO && region.has(wanted.place)) wanted.found = region;
        }
        return wanted.found.high != 0 ? 1 : 0;
      },
      &search);
  return search.found;
}

bool is_table_of_files(const Jumps& jumps) {
  return jumps.unused[0] == 0 && jumps.unused[1] == 0 && jumps.read == file_read && jumps.write == file_write;
}

decltype(Jumps::close) function_to_close(decltype(Jumps::close) theirs) {
  if (theirs == file_close) return close_stream;
  for (std::size_t i = 0; i < kOthers; i++) {
    if (other_close[i] == nullptr) other_close[i] = theirs;
    if (other_close[i] == theirs) return kClosesOtherwise[i];
  }
  return theirs;
}

// Other threads call through the tables meanwhile: each word is the old function or the new one.
void exchange_functions(Jumps& jumps) {
  std::atomic_ref(jumps.read).store(read_stream, std::memory_order_release);
  std::atomic_ref(jumps.write).store(write_stream, std::memory_order_release);
  std::atomic_ref(jumps.close).store(function_to_close(jumps.close), std::memory_order_release);
}

// Every table in the region that reads and writes as files do: also those of wide streams, of popen() and of mmap.
bool exchange_all(Region region) {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  std::uintptr_t first = 0, last = 0;
  const auto for_each_table = [&](auto&& body) {
    for (std::uintptr_t at = region.low; at + sizeof(Jumps) <= region.high; at += sizeof(void*)) {
      auto* jumps = reinterpret_cast<Jumps*>(at);
      if (is_table_of_files(*jumps)) body(jumps);
    }
  };
  for_each_table([&](Jumps* jumps) {
    if (first == 0) first = reinterpret_cast<std::uintptr_t>(jumps);
    last = reinterpret_cast<std::uintptr_t>(jumps + 1);
  });
  if (first == 0) return false;
  // The linker protects whole pages only (_dl_protect_relro): a part of a page at the end stays writable.
  const std::uintptr_t low = first / page * page, high = (last + page - 1) / page * page;
  const std::uintptr_t protected_end = std::min(high, region.high / page * page);
  const auto protect = [&](std::uintptr_t end, long how) {
    return end <= low || os::call(SYS_mprotect, static_cast<long>(low), static_cast<long>(end - low), how) == 0;
  };
  if (!protect(protected_end, PROT_READ | PROT_WRITE)) return false;
  for_each_table([](Jumps* jumps) { exchange_functions(*jumps); });
  protect(protected_end, PROT_READ);
  return true;
}

bool exchange_in_libc() {
  const auto in_libc = [](const char* name) { return dlsym(RTLD_NEXT, name); };
  const auto* stream = static_cast<const std::byte*>(in_libc("_IO_2_1_stdout_"));
  if (stream == nullptr) return false;
  // The table's address follows the public part of the FILE (struct _IO_FILE_plus in libio/libioP.h).
  const Jumps* jumps = *reinterpret_cast<Jumps* const*>(stream + sizeof(FILE));
  const Region region = read_only_data_with(jumps);
  if (!region.has(jumps) || !region.has(reinterpret_cast<const std::byte*>(jumps + 1) - 1)) return false;
  if (jumps->read == nullptr || reinterpret_cast<void*>(jumps->read) != in_libc("_IO_file_read") ||
      reinterpret_cast<void*>(jumps->write) != in_libc("_IO_file_write") ||
      reinterpret_cast<void*>(jumps->close) != in_libc("_IO_file_close"))
    return false;
  file_read = jumps->read;
  file_write = jumps->write;
  file_close = jumps->close;
  return exchange_all(region);
}

// Calls `body` for each stream of the process, with the list of streams held.
template <typename Body>
void for_each_stream(Body body) {
  real._IO_list_lock();
  for (void* at = real._IO_iter_begin(); at != nullptr && at != real._IO_iter_end(); at = real._IO_iter_next(at))
    body(real._IO_iter_file(at));
  real._IO_list_unlock();
}

bool is_any_tracked() {
  for (int fd = 0, end = fd_table.end(); fd < end; fd++) {
    if (is_tracked(fd)) return true;
  }
  return false;
}

}  // namespace

void catch_streams() {
  if (!caught) caught = exchange_in_libc();
}

bool are_streams_caught() {
  return caught;
}

ssize_t write_all(int fd, const char* from, std::size_t length) {
  std::size_t written = 0;
  while (written < length) {
    const ssize_t r = ::write(fd, from + written, length - written);
    if (r < 0) break;
    written += static_cast<size_t>(r);
  }
  return static_cast<ssize_t>(written);
}

void note_uncaught_stream(int fd) {
  note_escape(fd, observe::Reason::kEscapedFdopen, "libc's tables of functions are not as expected");
}

void flush_streams() {
  if (!caught || !is_any_tracked()) return;
  // As at libc's own exit: only what is to be written, and also where a thread has the stream locked.
  for_each_stream([](FILE* stream) {
    if (is_tracked(stream->_fileno) && __fpending(stream) != 0) fflush_unlocked(stream);
  });
}

}  // namespace bypass::preload
