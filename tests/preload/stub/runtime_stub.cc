// A stand-in for src/runtime. PRELOAD_STUB=on accelerates; else nothing is. At exit, PRELOAD_STUB_REPORT=1
// says on standard error how many objects were left and what was recorded for `bypass why`.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <array>
#include <atomic>

#include "observe/reasons.h"
#include "os/own/own_descriptors.h"
#include "preload/stub/stub.h"
#include "runtime/crash/crash.h"
#include "runtime/family/passing.h"
#include "runtime/family/pump/pump_process.h"
#include "runtime/family/pump/relay_process.h"
#include "runtime/family/rights/privilege.h"
#include "runtime/host.h"
#include "runtime/life/next_image.h"
#include "runtime/life/raw_calls.h"
#include "runtime/process.h"

namespace bypass::runtime {
namespace {

constinit std::array<std::atomic<bool>, 4096> owned{};
std::atomic<bool> reported{false};

bool is_reporting() {
  return getenv("PRELOAD_STUB_REPORT") != nullptr;
}

}  // namespace

void at_load(char**) {}

std::span<const std::byte> arena_range() {
  return {};
}

std::size_t address_bytes() {
  return 0;
}

bool accelerates() {
  const char* mode = getenv("PRELOAD_STUB");
  return mode != nullptr && strcmp(mode, "on") == 0;
}

bool start() {
  return true;
}

void before_exit() {
  if (!is_reporting() || reported.exchange(true)) return;
  fprintf(stderr, "stub: %d objects at exit\n", preload_stub::live_objects());
}

bool leave() {
  return false;
}

// No image hands sockets on.
const char* why_not_hand_on() {
  return "a stand-in for the runtime";
}
int hand_on(std::span<const HandedNumber>) {
  return -1;
}
void take_back() {}
const char* const* environment_at_load() {
  static const char* const none = nullptr;
  return &none;
}
bool has_heritage() {
  return false;
}
void refuse_heritage(const char*) {}
void take_numbers(void (*)(int, socket::File*)) {}

bool may_name_ports() {
  return false;
}

bool names_ports() {
  return false;
}

bool is_threaded_by_us() {
  return false;
}

bool has_one_thread() {
  return true;
}

RightsChange begin_change(const Standing&, PumpNumbers) {
  return {};
}
const char* begin_pumping(socket::File&, int*) {
  return "no pump";
}
void report_unpumped(const char*) {}
// There is no family.
bool is_read_by_family(int) {
  return false;
}
bool exec_leaves_channel() {
  return false;
}
int make_ticket(socket::File&, int) {
  return -1;
}
void close_ticket(int, bool) {}
std::optional<Taken> take_by_ticket(int) {
  return std::nullopt;
}
void go_on_with(const Taken&, int) {}
void settle(const Taken&) {}
void take_nothing() {}
void note_new_program() {}
void expect_exec_in_child(bool) {}
int own_high(int fd) {
  return fd;
}
void own_descriptor(int, bool) {}
void pump_before_passing(int, void (*)(int)) {}
void pump_before_exec(void (*)()) {}
int fetch_pumped(socket::File&) {
  return -1;
}
int ask_to_listen(int, int) {
  return -1;
}
int ask_to_connect(int, const Endpoint&) {
  return -1;
}
bool await_relays_look() {
  return false;
}
void drop_relay() {}
void record_why(int, unsigned, const Endpoint&, const char*) {}
void note_socket(const socket::File&, int) {}
void give_back(socket::File&, int, const RightsChange&) {}
bool leave_arena(RightsChange&) {
  return true;
}
bool end_change(RightsChange, void (*)(int, socket::File*)) {
  return true;
}

bool pause_threads() {
  return false;
}

void resume_threads() {}

void before_exec(bool) {
  before_exit();
}

// The stub's objects lie in ordinary memory: a forked child has copies of its own.
void prepare_fork(ChildsNetwork) {}
void share_with_child(socket::File&) {}
void after_fork_parent(int) {}
bool after_fork_child() {
  return true;
}
bool adopt_number(socket::File&, int) {
  return true;
}
void end_fork_child() {}
void expect_end_of_first_thread(bool) {}
void await_beginning_threads() {}
void before_network_change() {}
bool is_elsewhere(int) {
  return false;
}

bool owns_descriptor(int fd) {
  return fd >= 0 && fd < static_cast<int>(owned.size()) && owned[static_cast<unsigned>(fd)];
}

void record_why(int fd, unsigned reason, const char* detail) {
  if (is_reporting()) fprintf(stderr, "stub: why fd=%d %u %s\n", fd, reason, detail);
}

bool may_catch_raw_calls() {
  return false;
}
void report_uncaught_calls(const char*) {}

namespace crash {
bool concerns(int signal) {
  return signal == SIGSEGV || signal == SIGBUS || signal == SIGFPE || signal == SIGILL || signal == SIGABRT;
}
bool installed(int) {
  return false;
}
void guard_copies(SigactionCall, Resume) {}
int on_program_sigaction(int, const struct sigaction*, struct sigaction*) {
  return -1;
}
}  // namespace crash
}  // namespace bypass::runtime

namespace bypass::preload_stub {

void own(int fd, bool add) {
  if (fd >= 0 && fd < static_cast<int>(runtime::owned.size())) runtime::owned[static_cast<unsigned>(fd)] = add;
}

}  // namespace bypass::preload_stub
