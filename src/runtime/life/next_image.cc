#include "runtime/life/next_image.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "config/settings.h"
#include "fastpath/link/peer_links.h"
#include "os/kernel.h"
#include "os/log/log.h"
#include "os/os.h"
#include "os/own/in_handler.h"
#include "os/own/own_descriptors.h"
#include "os/own/own_work.h"
#include "runtime/family/rights/spare.h"
#include "runtime/host.h"
#include "runtime/life/before_start.h"
#include "runtime/life/state.h"
#include "runtime/process.h"
#include "runtime/process_graph.h"
#include "socket/family/kin.h"
#include "socket/family/next_image.h"
#include "socket/objects.h"

namespace bypass::runtime {

namespace {

using observe::Reason;

std::optional<Heritage> g_heritage;
bool g_is_reserved = false;
Added g_added;              // variables of the environment that the program was not given
int g_handed = -1;          // the heritage's descriptor, in the image that executes
bool g_progressed = false;  // … the progress thread ran

void add(std::uint64_t& sum, const void* data, std::size_t bytes) {
  constexpr std::uint64_t kPrime = 0x100000001b3;  // FNV-1a
  for (std::size_t i = 0; i < bytes; i++) sum = (sum ^ static_cast<const unsigned char*>(data)[i]) * kPrime;
}

void add(std::uint64_t& sum, const std::string& text) {
  add(sum, text.c_str(), text.size() + 1);
}

/// A number for the settings and the ports: two images with the same one understand an arena in the same way.
std::uint64_t settings_identity(const Config& config) {
  std::uint64_t sum = 0xcbf29ce484222325;
  for (const SettingValue& value : config.values) add(sum, value.text);
  for (const PortConfig& port : config.ports) {
    add(sum, port_text(port));
    add(sum, port.interface);
    for (const Prefix& each : port.addresses) {
      add(sum, &each.address, sizeof each.address);
      add(sum, &each.length, sizeof each.length);
    }
    add(sum, &port.mac, sizeof port.mac);
    add(sum, &port.mtu, sizeof port.mtu);
  }
  return sum;
}

void keep_open_at_exec(int fd, bool keep) {
  if (fd >= 0) os::call(SYS_fcntl, fd, F_SETFD, keep ? 0 : FD_CLOEXEC);
}

/// Descriptors of the library's own that the next image takes up, beside that of the arena.
std::vector<int> left_descriptors(const Process& p) {
  const auto spares = spare::descriptors();
  std::vector<int> all(spares.begin(), spares.end());
  const std::vector<int> handovers = p.ports.handovers().descriptors();
  all.insert(all.end(), handovers.begin(), handovers.end());
  return all;
}

/// Whether exec leaves open what this image hands on.
void keep_open_at_exec(bool keep) {
  for (const int fd : {g_handed, arena::descriptor()}) keep_open_at_exec(fd, keep);
  for (const int fd : left_descriptors(*process())) keep_open_at_exec(fd, keep);
}

}  // namespace

const char* why_not_hand_on() {
  Process* const p = process();
  if (p == nullptr || g_forked_child || g_left) return "the process has no arena";
  if (socket::is_in_handler() || socket::thread_signals.in_lock > 0) return "a signal handler executes it";
  if (p->arena.family.own().start_time.load() == 0) return "/proc cannot be read";
  if (arena::descriptor() < 0) return "the process has no descriptor of its memory";
  if (p->ports.failed()) return "the ports did not open";
  return nullptr;
}

const char* const* environment_at_load() {
  return kept_environment();
}

int hand_on(std::span<const HandedNumber> numbers) {
  Process& p = *process();
  const Inside inside;
  HeritageHead head;
  head.library = library_identity();
  head.settings = settings_identity(p.config);
  head.pid = os::getpid();
  head.start_time = p.shard.family().own().start_time.load();
  head.slot = p.shard.family().slot();
  head.arena = arena::descriptor();
  head.address = reinterpret_cast<std::uint64_t>(arena::range().data());
  head.size = arena::range().size();
  head.standing = Standing::now();
  head.memory = p.arena.memory;
  head.stack = &p.shard.stack();
  head.wires = &p.shard.wires();
  head.links = p.links == nullptr ? nullptr : &p.links->table();
  head.objects = socket::objects;
  if (head.library == 0) return -1;
  g_progressed = p.progress.runs();
  p.progress.stop();
  p.ports.hold_for_exec(p.shard);
  head.handovers = p.ports.handovers().id();
  const auto left = left_descriptors(p);
  g_handed = own_high(write_heritage(head, numbers, left));
  if (g_handed < 0 || !socket::leave_to_next_image()) {
    take_back();
    return -1;
  }
  p.ports.close_for_exec(p.shard);
  keep_open_at_exec(true);
  return g_handed;
}

void take_back() {
  Process& p = *process();
  const Inside inside;
  if (g_handed >= 0) {
    keep_open_at_exec(false);
    own_descriptor(g_handed, false);
    os::close(std::exchange(g_handed, -1));
  }
  p.ports.go_on_after_exec();
  socket::go_on_in_this_image();
  if (!g_progressed || !p.progress.start()) return;
  p.progress.join_family();
  p.progress.want_ports();
}

bool has_heritage() {
  return g_heritage.has_value();
}

const Heritage* heritage() {
  return g_heritage.has_value() ? &*g_heritage : nullptr;
}

bool read_heritage_at_load(char** environment) {
  const int fd = take_heritage_number(environment, g_added);
  if (fd < 0) return false;
  g_heritage = read_heritage(fd);
  if (!g_heritage.has_value()) return false;
  keep_open_at_exec(g_heritage->head.arena, false);
  for (const int each : g_heritage->descriptors) keep_open_at_exec(each, false);
  const HeritageHead& head = g_heritage->head;
  if (head.library != library_identity()) return false;
  g_is_reserved = arena::reserve_at({reinterpret_cast<const std::byte*>(head.address), head.size});
  return g_is_reserved;
}

void tidy_environment(char** environment) {
  if (g_heritage.has_value()) take_added_out(environment, g_added);
}

const char* why_not_take_up() {
  const HeritageHead& head = g_heritage->head;
  if (head.library != library_identity()) return "the image before this one had another libbypass";
  if (!g_is_reserved) return "the addresses of the family's memory are in use";
  if (!may_share(Standing::now(), head.standing)) return "it has other rights than the image before it";
  if (head.settings != settings_identity(configuration())) return "the settings have changed";
  return nullptr;
}

void refuse_heritage(const char* why) {
  if (!g_heritage.has_value()) return;
  const HeritageHead& head = g_heritage->head;
  if (head.library == library_identity()) arena::disown(head.arena, head.slot);
  os::close(head.arena);
  for (const int fd : g_heritage->descriptors)
    if (fd >= 0) os::close(fd);
  for (const HandedNumber& each : g_heritage->numbers)
    if (os::call(SYS_fcntl, each.number, F_GETFD) >= 0)
      region().why(Reason::kEscapedExec, each.number, IPPROTO_TCP, {}, why);
  g_heritage.reset();
}

void take_numbers(void (*enter)(int number, socket::File* file)) {
  const Inside inside;
  Process& p = *process();
  const std::span<const int> left(g_heritage->descriptors);
  constexpr std::size_t kSpares = 3;
  if (left.size() >= kSpares && left[0] >= 0) spare::take_up({left[0], left[1], left[2]});
  if (g_heritage->head.handovers != 0) p.ports.take_handovers(g_heritage->head.handovers, left.subspan(kSpares));
  std::vector<HandedNumber> open = std::move(g_heritage->numbers);
  g_heritage.reset();
  std::erase_if(open, [](const HandedNumber& each) { return os::call(SYS_fcntl, each.number, F_GETFD) < 0; });
  std::vector<socket::NumberedFile> files;
  for (const HandedNumber& each : open) files.push_back({each.number, each.file});
  socket::take_up_from_last_image(files);
  for (const HandedNumber& each : open) enter(each.number, each.file);
  BYPASS_LOG_INFO("the image goes on with %zu socket(s) and epoll set(s) of the one before", open.size());
  if (!socket::refers_to_wire() || !p.progress.start()) return;
  p.progress.join_family();
  p.progress.want_ports();
}

}  // namespace bypass::runtime
