// libbypass-crash.so: the backtrace of a crash report, by libunwind. It is a separate object, so that libbypass.so
// needs only libc. It is opened before a crash, as a signal handler cannot open it.
#define UNW_LOCAL_ONLY
#include <dlfcn.h>
#include <libunwind.h>

#include <cstdint>
#include <cstdio>
#include <cstring>

namespace {

constexpr int kMaxFrames = 48;

const char* file_name(const char* path) {
  const char* const slash = std::strrchr(path, '/');
  return slash == nullptr ? path : slash + 1;
}

void print_frame(int number, unw_cursor_t& cursor, unw_word_t address, void (*line)(const char*)) {
  char function[160] = "";
  unw_word_t offset = 0;
  if (unw_get_proc_name(&cursor, function, sizeof function, &offset) != 0) function[0] = 0;
  Dl_info object{};
  char text[400];
  if (dladdr(reinterpret_cast<void*>(address), &object) != 0 && object.dli_fname != nullptr) {
    // addr2line needs the offset in the file.
    const auto in_file = static_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(object.dli_fbase);
    std::snprintf(text, sizeof text, "#%-2d %s + 0x%zx  %s", number, file_name(object.dli_fname), in_file, function);
  } else {
    std::snprintf(text, sizeof text, "#%-2d 0x%zx  %s", number, static_cast<std::size_t>(address), function);
  }
  line(text);
}

}  // namespace

extern "C" [[gnu::visibility("default")]] void bypass_backtrace(void* context, void (*line)(const char*)) {
  unw_cursor_t cursor;
  // A signal's context is what libunwind takes for the place to start from.
  if (unw_init_local2(&cursor, static_cast<unw_context_t*>(context), UNW_INIT_SIGNAL_FRAME) != 0) return;
  for (int i = 0; i < kMaxFrames; i++) {
    unw_word_t address = 0;
    if (unw_get_reg(&cursor, UNW_REG_IP, &address) != 0 || address == 0) return;
    print_frame(i, cursor, address, line);
    if (unw_step(&cursor) <= 0) return;
  }
}
