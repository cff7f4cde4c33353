#include "preload/calls/process/hand_on.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include <string>
#include <utility>
#include <vector>

#include "preload/acceleration.h"
#include "preload/calls/process/filter.h"
#include "preload/calls/process/image_check.h"
#include "preload/escape.h"
#include "preload/numbers.h"
#include "preload/pumped.h"
#include "preload/straight.h"
#include "preload/symbols.h"
#include "runtime/family/passing.h"
#include "runtime/life/next_image.h"
#include "runtime/process.h"
#include "socket/family/next_image.h"

namespace bypass::preload {

namespace {

/// The environment of an exec that is under way.
struct Environment {
  std::vector<std::string> added;
  std::vector<char*> entries;
};
Environment* environment_of_next = nullptr;
bool is_handed = false;

/// The numbers that exec leaves open, as far as objects of ours can go on under them.
std::vector<runtime::HandedNumber> inherited_numbers(bool& any_on_wire) {
  std::vector<runtime::HandedNumber> numbers;
  for (int fd = 0, end = fd_table.end(); fd < end; fd++) {
    (void)exchange_if_pumped(fd);
    const Entry entry = fd_table.load(fd);
    if (entry.empty()) continue;
    const int flags = real.fcntl(fd, F_GETFD);
    if (flags < 0 || (flags & FD_CLOEXEC) != 0) continue;
    const socket::Inherited as = socket::inherited_as(*entry.file());
    if (as == socket::Inherited::kNot) continue;
    any_on_wire = any_on_wire || as == socket::Inherited::kOnWire;
    numbers.push_back({fd, entry.file()});
  }
  return numbers;
}

/// Connections within the host go back to the kernel, which has them beneath.
void give_local_ones_back() {
  for (int fd = 0, end = fd_table.end(); fd < end; fd++) {
    const Entry entry = fd_table.load(fd);
    if (entry.is_socket() && socket::is_in_kernel(*entry.file())) socket::leave_shared_memory(*entry.file());
  }
}

char* const* make_environment(char* const* environment, int heritage) {
  delete environment_of_next;
  environment_of_next = new Environment{missing_variables(environment), {}};
  std::vector<char*>& entries = environment_of_next->entries;
  std::vector<std::string>& added = environment_of_next->added;
  for (; environment != nullptr && *environment != nullptr; environment++) entries.push_back(*environment);
  std::string heritage_entry = runtime::kHeritageVariable + std::to_string(heritage);
  const bool adds_preload = !added.empty() && added.front().starts_with("LD_PRELOAD=");
  if (adds_preload) heritage_entry.push_back(runtime::kAddedPreload);
  if (added.size() > (adds_preload ? 1U : 0U)) heritage_entry.push_back(runtime::kAddedSettings);
  added.push_back(std::move(heritage_entry));
  for (std::string& each : added) entries.push_back(each.data());
  entries.push_back(nullptr);
  return entries.data();
}

}  // namespace

HandingOn hand_on(const char* file, char* const* environment) {
  const char* why = is_filtered() ? "the process is under a filter of system calls" : runtime::why_not_hand_on();
  bool any = false;
  const auto numbers = inherited_numbers(any);
  // Node's workers get their sockets later, by a Unix socket.
  if (!any && (why != nullptr || !runtime::exec_leaves_channel())) return {};
  if (*file == 0) return {.why_not = "it is executed by a descriptor"};
  const ImageCheck image = check_image(file, environment);
  if (image.fails) return {.fails = true};
  if (why == nullptr) why = image.why_not;
  if (why != nullptr) return {.why_not = any ? why : nullptr};
  give_local_ones_back();
  const int heritage = runtime::hand_on(numbers);
  if (heritage < 0) return {.why_not = "there is no memory, or no number, for what is handed on"};
  is_handed = true;
  return {.environment = make_environment(environment, heritage)};
}

bool take_back() {
  if (!is_handed) return false;
  is_handed = false;
  runtime::take_back();
  return true;
}

void take_up_numbers() {
  if (!runtime::has_heritage()) return;
  const bool starts = is_accelerating();
  if (starts && runtime::has_heritage()) {
    return runtime::take_numbers([](int fd, File* object) {
      bool placed = false;
      (void)fd_table.exchange(fd, Entry(object), &placed);
      if (!placed) socket::release(*object, -1);
    });
  }
  runtime::refuse_heritage("the program that inherits it does not use the library");
}

}  // namespace bypass::preload
