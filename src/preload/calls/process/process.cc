// Events of the process: load, fork, vfork, exec, exit.
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <string>
#include <string_view>

#include "os/os.h"
#include "os/own/cancellation.h"
#include "os/own/in_handler.h"
#include "preload/acceleration.h"
#include "preload/calls/process/address_limit.h"
#include "preload/calls/process/credentials.h"
#include "preload/calls/process/hand_on.h"
#include "preload/calls/process/process.h"
#include "preload/calls/process/signals.h"
#include "preload/calls/process/vfork.h"
#include "preload/escape.h"
#include "preload/numbers.h"
#include "preload/pumped.h"
#include "preload/raw/catch.h"
#include "preload/requests.h"
#include "preload/straight.h"
#include "preload/streams.h"
#include "preload/symbols.h"
#include "runtime/family/passing.h"
#include "runtime/process.h"

namespace bypass::preload {

bool is_straight_path() {
  if (thread_path.depth > 0) return true;
  if (os::call(SYS_getpid) != thread_path.vfork_parent) return true;
  thread_path.vfork_parent = 0;  // this is the parent again: its child has ended or executed
  return false;
}

namespace {

void begin_fork(runtime::ChildsNetwork network) {
  goes_straight();  // an earlier vfork of this thread is over
  decide_before_fork();
  if (!has_started()) return;
  KeepErrno keep;
  exchange_all_pumped();  // a child may have fewer rights by the time of its first call
  runtime::prepare_fork(network);
  for (int fd = 0, end = fd_table.end(); fd < end; fd++) {
    const Entry entry = fd_table.load(fd);
    if (!entry.empty()) runtime::share_with_child(*entry.file());
  }
}

}  // namespace

void before_fork() {
  begin_fork(runtime::ChildsNetwork::kSame);
}

void before_fork_to_new_network() {
  begin_fork(runtime::ChildsNetwork::kNew);
}

void after_fork_in_parent(pid_t child) {
  KeepErrno keep;
  if (has_started()) runtime::after_fork_parent(child);
}

namespace {

// The numbers that the child has inherited name the same objects.
void adopt_numbers() {
  for (int fd = 0, end = fd_table.end(); fd < end; fd++) {
    const Entry entry = fd_table.load(fd);
    if (!entry.empty() && !runtime::adopt_number(*entry.file(), fd)) fd_table.clear(fd, entry);
  }
  runtime::end_fork_child();
}

}  // namespace

void after_fork_in_child() {
  thread_path.vfork_parent = 0;
  decide_again();
  let_handlers_run();  // a child that is forked while its parent ends goes on
  if (!has_started()) return;
  KeepErrno keep;
  forget_uses_after_fork();
  forget_changes_after_fork();
  forget_taking_after_fork();
  forget_requests_after_fork();
  if (runtime::after_fork_child()) return adopt_numbers();
  // In the child, the parent's objects are the kernel sockets under the numbers.
  end_acceleration();
}

void note_vfork() {
  if (thread_path.vfork_parent == 0 || !goes_straight()) {
    if (has_started()) {
      exchange_all_pumped();  // the child cannot
      runtime::note_new_program();
    }
    thread_path.vfork_parent = static_cast<pid_t>(os::call(SYS_getpid));
  }
}

namespace {

bool can_be_run(const std::string& file) {
  return access(file.c_str(), X_OK) == 0;
}

/// The file that execvp() finds; "": none.
std::string find_program(const char* name) {
  const char* path = getenv("PATH");
  if (path == nullptr) path = "/bin:/usr/bin";
  for (const char* folder = path; folder != nullptr; folder = strchr(folder, ':')) {
    if (*folder == ':') folder++;
    const std::string_view where(folder, strcspn(folder, ":"));
    std::string file = where.empty() ? name : std::string(where) + '/' + name;
    if (can_be_run(file)) return file;
  }
  return "";
}

}  // namespace

// An exec that cannot succeed must not end the process's objects; Python tries every folder of PATH.
char* const* before_exec(const Program& program, char* const* environment) {
  KeepErrno keep;
  if (has_started()) runtime::note_new_program();
  if (!has_started() || goes_straight()) {
    if (has_started()) note_vfork_exec();
    give_address_limit_back();
    return environment;
  }
  const bool is_searched = program.is_searched && strchr(program.name, '/') == nullptr;
  const std::string file = is_searched ? find_program(program.name) : program.name != nullptr ? program.name : "";
  if (program.name != nullptr && !can_be_run(file)) return environment;
  const HandingOn handing = hand_on(file.c_str(), environment);
  if (handing.fails) return environment;
  if (handing.environment != nullptr) return handing.environment;
  std::string what = program.name != nullptr ? program.name : "fexecve";
  if (handing.why_not != nullptr) what.append(": ").append(handing.why_not);
  runtime::before_exec(note_exec(what.c_str()));
  stay_outside();  // handlers that were held back run now
  let_handlers_run();
  give_address_limit_back();
  return environment;
}

void after_failed_exec() {
  KeepErrno keep;
  if (take_back()) return;
  hide_in_address_limit();
  if (thread_path.least == 0) return;
  thread_path.depth = thread_path.least = 0;
  end_acceleration();
}

namespace {

void after_fork_in_unknown_parent() {
  after_fork_in_parent(0);
}

void on_quick_exit() {
  runtime::before_exit();
}

/// A set-user-ID program, or one with file capabilities: a caller with fewer rights wrote its environment. So nothing
/// of that is read, and the library only passes calls on. (ld.so(8): /etc/ld.so.preload is loaded there, too.)
bool is_more_privileged_than_caller() {
  return getauxval(AT_SECURE) != 0;
}

[[gnu::constructor(101)]] void on_load(int, char**, char** environment) {
  resolve_symbols();
  if (is_more_privileged_than_caller()) return;
  runtime::at_load(environment);
  begin_deciding();
  catch_raw_calls();
  take_up_numbers();
  pthread_atfork(before_fork, after_fork_in_unknown_parent, after_fork_in_child);
}

// Runs after the program's own exit handlers and destructors.
[[gnu::destructor]] void on_unload() {
  const socket::CancellationOff off;
  if (!has_started()) return;
  flush_streams();
  runtime::before_exit();
  end_acceleration();
}

void leave_process(int status) {
  const socket::CancellationOff off;             // it may deliver remaining bytes, and no exit is a cancellation point
  if (!goes_straight()) runtime::before_exit();  // a process that did not start may have stored the reason
  real._exit(status);
}

BYPASS_EXPORT(void, _exit, (int status)) {
  leave_process(status);
}

BYPASS_EXPORT(void, _Exit, (int status)) {
  leave_process(status);
}

BYPASS_EXPORT(void, pthread_exit, (void* result)) {
  before_thread_ends();
  real.pthread_exit(result);
  __builtin_unreachable();
}

pid_t fork_signal_safely() {
  before_fork();
  const pid_t child = real._Fork();
  child == 0 ? after_fork_in_child() : after_fork_in_parent(child);
  return child;
}

/// In a process with several threads libc's fork takes malloc's lock, which a handler may have interrupted. With a
/// single thread it does not. Our own thread must not make the difference.
bool locks_for_our_thread() {
  return has_started() && !goes_straight() && socket::is_in_handler() && runtime::is_threaded_by_us();
}

// The handlers above run inside; only this function knows which child it was.
BYPASS_EXPORT(pid_t, fork, ()) {
  const socket::CancellationOff off;  // it is no cancellation point
  if (locks_for_our_thread()) {
    const pid_t child = fork_signal_safely();
    if (child >= 0 || errno != ENOSYS) return child;  // a libc before 2.34 has no _Fork
  }
  const pid_t child = real.fork();
  if (child != 0 && !goes_straight()) after_fork_in_parent(child);
  return child;
}
BYPASS_ALIAS(__fork, fork);

BYPASS_EXPORT(pid_t, _Fork, ()) {
  const socket::CancellationOff off;
  return fork_signal_safely();
}

/// The streams of a daemon, as libc's daemon() opens them: 0, 1 and 2 are /dev/null. False with errno.
bool open_null_streams() {
  const dev_t null_device = makedev(1, 3);
  const int fd = ::open("/dev/null", O_RDWR);
  struct stat file {};
  if (fd < 0) return false;
  const bool known = ::fstat(fd, &file) == 0;
  if (!known || !S_ISCHR(file.st_mode) || file.st_rdev != null_device) {
    const int error = known ? ENODEV : errno;
    real.close(fd);
    errno = error;
    return false;
  }
  for (int stream = 0; stream < 3; stream++) ::dup2(fd, stream);
  if (fd > 2) real.close(fd);
  return true;
}

// libc's daemon() ends the calling process by a call that nobody sees. A thread of ours would die there in the middle
// of a change to what the process shares with its family. So this is daemon(3) in its steps.
BYPASS_EXPORT(int, daemon, (int keep_directory, int keep_streams)) {
  const socket::CancellationOff off;
  const pid_t child = ::fork();
  if (child < 0) return -1;
  if (child > 0) leave_process(0);
  if (setsid() < 0) return -1;
  if (keep_directory == 0) (void)!chdir("/");  // libc's daemon() does not look at the answer either
  return keep_streams != 0 || open_null_streams() ? 0 : -1;
}

}  // namespace

void before_thread_ends() {
  if (has_started() && !goes_straight() && os::gettid() == os::getpid()) runtime::expect_end_of_first_thread(true);
}

void prepare_quick_exit() {
  at_quick_exit(on_quick_exit);
}

}  // namespace bypass::preload

// The child returns from vfork on the parent's stack, so nothing of ours may be there: notes the call, then jumps to
// libc's vfork, or to what is done in its place (vfork.h).
extern "C" [[gnu::used, gnu::visibility("hidden")]] void* bypass_before_vfork() {
  bypass::preload::resolve_symbols();
  if (bypass::preload::has_sockets_for_children())
    return reinterpret_cast<void*>(bypass::preload::fork_and_wait_for_exec);
  bypass::preload::note_vfork();
  return reinterpret_cast<void*>(bypass::preload::real.vfork);
}

#define BYPASS_VFORK(name)                 \
  asm(".text\n"                            \
      ".globl " #name                      \
      "\n"                                 \
      ".type " #name ", @function\n" #name \
      ":\n"                                \
      "  endbr64\n"                        \
      "  subq $8, %rsp\n"                  \
      "  call bypass_before_vfork\n"       \
      "  addq $8, %rsp\n"                  \
      "  jmp *%rax\n"                      \
      ".size " #name ", .-" #name "\n")
BYPASS_VFORK(vfork);
BYPASS_VFORK(__vfork);
