#include "observe/region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "observe/process_identity.h"
#include "observe/stats_file.h"
#include "os/log/run_dir.h"

namespace bypass::observe {
namespace {

constexpr std::uint32_t kCountersAt = sizeof(Header);
constexpr std::uint32_t kPortsAt = kCountersAt + kMaxCounters * sizeof(CounterRecord);
constexpr std::uint32_t kWhysAt = kPortsAt + kMaxPorts * sizeof(PortSlot);
constexpr std::uint32_t kSettingsAt = kWhysAt + kMaxWhys * sizeof(WhySlot);
constexpr std::uint32_t kSocketsAt = kSettingsAt + kMaxSettingBytes;  // must be last: only this section grows
constexpr std::uint32_t kFileBytes = kSocketsAt + kMaxSockets * sizeof(SocketSlot);
constexpr std::uint32_t kFirstBytes = kSocketsAt + kSocketChunk * sizeof(SocketSlot);

std::uint64_t realtime_ns() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME_COARSE, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000U + static_cast<std::uint64_t>(now.tv_nsec);
}

template <typename T>
T* at(Header* header, std::size_t offset) {
  return reinterpret_cast<T*>(reinterpret_cast<char*>(header) + offset);
}
CounterRecord* counters(Header* header) {
  return at<CounterRecord>(header, kCountersAt);
}
PortSlot* ports(Header* header) {
  return at<PortSlot>(header, kPortsAt);
}
WhySlot* whys(Header* header) {
  return at<WhySlot>(header, kWhysAt);
}
SocketSlot* sockets(Header* header) {
  return at<SocketSlot>(header, kSocketsAt);
}

void set_section(Section& section, std::uint32_t offset, std::size_t record, std::size_t capacity, std::size_t used) {
  section.offset = offset;
  section.record_bytes = static_cast<std::uint32_t>(record);
  section.capacity = static_cast<std::uint32_t>(capacity);
  section.used.store(static_cast<std::uint32_t>(used), std::memory_order_relaxed);
}

void fill_header(Header* header, const RegionStart& start, const ProcessIdentity& self) {
  header->version = kLayoutVersion;
  header->header_bytes = sizeof(Header);
  header->file_bytes = kFileBytes;
  header->pid = self.pid;
  header->uid = geteuid();
  header->start_time = self.start_time;
  header->pid_namespace = self.pid_namespace;
  header->created_ns = realtime_ns();
  header->updated_ns.store(header->created_ns, std::memory_order_relaxed);
  command_of_self(header->command.data(), header->command.size());
  set_text(header->library_version, start.library_version);
  set_text(header->profile, start.profile);
  const std::size_t names = std::min(start.counters.size(), kMaxCounters);
  for (std::size_t i = 0; i < names; i++) {
    set_text(counters(header)[i].name, start.counters[i].name);
    set_text(counters(header)[i].unit, start.counters[i].unit);
  }
  set_section(header->counters, kCountersAt, sizeof(CounterRecord), kMaxCounters, names);
  set_section(header->ports, kPortsAt, sizeof(PortSlot), kMaxPorts, 0);
  set_section(header->sockets, kSocketsAt, sizeof(SocketSlot), kMaxSockets, 0);
  set_section(header->whys, kWhysAt, sizeof(WhySlot), kMaxWhys, 0);
  const std::size_t text = std::min(start.settings.size(), kMaxSettingBytes);
  std::memcpy(at<char>(header, kSettingsAt), start.settings.data(), text);
  set_section(header->settings, kSettingsAt, 1, kMaxSettingBytes, text);
  // Release: a reader that acquires the magic sees everything above.
  header->magic.store(kMagic, std::memory_order_release);
}

// A reader looks at records below `used`, which only grows.
void raise_used(Section& section, std::size_t to) {
  auto used = section.used.load(std::memory_order_relaxed);
  while (used < to &&
         !section.used.compare_exchange_weak(used, static_cast<std::uint32_t>(to), std::memory_order_release)) {
  }
}

// FNV-1a over what makes two reports equal: reason and address. For a report about the whole process: reason and text.
std::uint64_t why_key(Reason reason, int fd, std::uint8_t protocol, const Endpoint& address, const char* detail) {
  std::uint64_t hash = 0xcbf29ce484222325;
  const auto mix = [&hash](std::uint64_t byte) { hash = (hash ^ byte) * 0x100000001b3; };
  mix(static_cast<std::uint16_t>(reason));
  mix(protocol);
  for (const std::uint8_t byte : address.address.bytes) mix(byte);
  mix(address.port & 0xff);
  mix(address.port >> 8);
  for (; fd < 0 && *detail != 0; detail++) mix(static_cast<std::uint8_t>(*detail));
  return hash;
}

bool is_handed_on(const WhyRecord& record) {
  return record.reason == static_cast<std::uint16_t>(Reason::kEscapedExec);
}

bool limit_forbids(std::uint64_t bytes) {
  rlimit limit{};
  return getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < bytes;
}

}  // namespace

Header* Region::map_file(int directory, const std::string& name, std::string& problem) {
  const auto failed = [&](const char* what) {
    problem = "stats file " + name + ": " + what + ": " + strerrordesc_np(errno);
    unlinkat(directory, name.c_str(), 0);
    return nullptr;
  };
  unlinkat(directory, name.c_str(), 0);  // our own name: it was left by the program that exec replaced
  const int fd = openat(directory, name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) return failed("cannot be made");
  // The space is taken now: a full /dev/shm then gives an error here and no SIGBUS later.
  const int error = posix_fallocate(fd, 0, kFirstBytes);
  void* memory = MAP_FAILED;
  if (error == 0 && ftruncate(fd, kFileBytes) == 0)
    memory = mmap(nullptr, kFileBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (error != 0) errno = error;
  const int saved = errno;
  close(fd);
  errno = saved;
  if (memory == MAP_FAILED) return failed("cannot be mapped");
  madvise(memory, kFileBytes, MADV_DONTDUMP);
  return static_cast<Header*>(memory);
}

void Region::take_from_replaced(int directory, const std::string& name) {
  StatsFile left;
  std::string problem;
  if (!left.open(directory, name, O_RDONLY, problem) || left.owner() != geteuid()) return;
  const auto told = left.slots<WhyRecord>(left.header().whys, kMaxWhys);
  while (!lock_whys()) {
  }
  for (const auto& record : told) {
    if (!record.has_value() || !is_handed_on(*record)) continue;
    Kept old{0, *record};
    old.key = why_key(Reason::kEscapedExec, record->fd, record->protocol, {record->address, record->port}, "");
    keep(old);
  }
  why_lock_.clear(std::memory_order_release);
}

void Region::keep_for_exec() {
  Header* const h = header();
  if (h == nullptr || !lock_whys()) return;
  for (std::size_t i = 0; i < why_used_; i++) {
    Kept each{};
    each.key = why_keys_[i];
    if (load_record(whys(h)[i], each.record) && is_handed_on(each.record)) keep(each);
  }
  why_lock_.clear(std::memory_order_release);
}

bool Region::create(const RegionStart& start, std::string& problem) {
  if (active()) return true;
  if (limit_forbids(kFileBytes)) {
    problem = "stats file: the limit on file sizes (RLIMIT_FSIZE) is below " + std::to_string(kFileBytes) + " bytes";
    return false;
  }
  const int directory = runtime::open_run_dir(start.run_dir, true, problem);
  if (directory < 0) return false;
  sweep_dead(directory);
  const ProcessIdentity self = self_identity();
  const std::string name = file_name(self.pid, self.start_time);
  take_from_replaced(directory, name);
  Header* const mapped = map_file(directory, name, problem);
  close(directory);
  if (mapped == nullptr) return false;
  path_ = start.run_dir + "/" + name;
  owner_ = self.pid;
  fill_header(mapped, start, self);
  begin_showing(mapped);
  return true;
}

void Region::remove() {
  Header* const mapped = header_.exchange(nullptr, std::memory_order_acq_rel);
  if (mapped == nullptr) return;
  // A forked child that did not call abandon() leaves the parent's file alone.
  if (getpid() == owner_) unlink(path_.c_str());
}

// Another thread's frame on this copy of the stack may still point into the region, so something must stay mapped. But
// the child must not write into the parent's file, because the parent has rights that the child may give up.
void Region::abandon() {
  Header* const parents = header_.exchange(nullptr, std::memory_order_acq_rel);
  constexpr int kOwn = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE;
  if (parents != nullptr) mmap(parents, kFileBytes, PROT_READ | PROT_WRITE, kOwn, -1, 0);
  why_lock_.clear(std::memory_order_release);
  why_used_ = why_next_ = kept_used_ = 0;
  kept_lost_ = 0;
  socket_hint_.store(0, std::memory_order_relaxed);
}

void Region::publish_counters(std::span<const std::uint64_t> values, std::uint64_t now_ns) {
  Header* const h = header();
  if (h == nullptr) return;
  const std::size_t count = h->counters.used.load(std::memory_order_relaxed);
  for (std::size_t i = 0; i < count; i++)
    counters(h)[i].value.store(i < values.size() ? values[i] : 0, std::memory_order_relaxed);
  h->updated_ns.store(now_ns, std::memory_order_relaxed);
}

void Region::set_port_owner(pid_t pid) {
  if (Header* const h = header(); h != nullptr) h->port_owner.store(pid, std::memory_order_relaxed);
}

Drill Region::wanted_drill() const {
  const Header* const h = header();
  if (h == nullptr) return Drill::kNone;
  const std::uint32_t asked = h->drills_asked.load(std::memory_order_acquire);
  if (asked == h->drills_done.load(std::memory_order_relaxed)) return Drill::kNone;
  return static_cast<Drill>(h->drill.load(std::memory_order_relaxed));
}

void Region::finish_drill(std::uint32_t count) {
  Header* const h = header();
  if (h == nullptr) return;
  h->drill_result.store(count, std::memory_order_relaxed);
  h->drills_done.store(h->drills_asked.load(std::memory_order_relaxed), std::memory_order_release);
}

void Region::set_port(std::size_t index, const PortRecord& record) {
  Header* const h = header();
  if (h == nullptr || index >= kMaxPorts) return;
  store_record(ports(h)[index], record);
  raise_used(h->ports, index + 1);
}

// Populating here turns "no space left in /dev/shm" into an error; an unpopulated page would raise SIGBUS.
bool Region::grow_sockets(Header* h, std::uint32_t have) {
  if (have >= kMaxSockets) return false;
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto from = reinterpret_cast<std::uintptr_t>(&sockets(h)[have]) & ~(page - 1);
  const auto to =
      reinterpret_cast<std::uintptr_t>(&sockets(h)[std::min<std::size_t>(have + kSocketChunk, kMaxSockets)]);
  const int saved = errno;
  const bool grown = madvise(reinterpret_cast<void*>(from), to - from, MADV_POPULATE_WRITE) == 0;
  errno = saved;
  return grown;
}

int Region::claim_socket() {
  Header* const h = header();
  if (h == nullptr) return -1;
  const std::uint32_t used = h->sockets.used.load(std::memory_order_relaxed);
  const auto take = [h](std::uint32_t i) {
    std::uint32_t empty = kFree;
    return sockets(h)[i].used.compare_exchange_strong(empty, kClaimed, std::memory_order_acq_rel);
  };
  // Freed slots are tried first, from the last freed one on.
  const std::uint32_t hint = std::min(socket_hint_.load(std::memory_order_relaxed), used);
  for (std::uint32_t i = hint; i < used; i++) {
    if (sockets(h)[i].used.load(std::memory_order_relaxed) != kFree || !take(i)) continue;
    socket_hint_.store(i + 1, std::memory_order_relaxed);
    return static_cast<int>(i);
  }
  for (std::uint32_t i = used; i < kMaxSockets; i++) {
    if (i != 0 && i % kSocketChunk == 0 && !grow_sockets(h, i)) break;
    if (!take(i)) continue;
    raise_used(h->sockets, i + 1);
    socket_hint_.store(i + 1, std::memory_order_relaxed);
    return static_cast<int>(i);
  }
  h->sockets_missing.fetch_add(1, std::memory_order_relaxed);
  return -1;
}

void Region::update_socket(int slot, const SocketRecord& record) {
  Header* const h = header();
  if (h != nullptr && slot >= 0) store_record(sockets(h)[slot], record);
}

void Region::release_socket(int slot) {
  Header* const h = header();
  if (h == nullptr || slot < 0) return;
  sockets(h)[slot].used.store(kFree, std::memory_order_release);
  const auto freed = static_cast<std::uint32_t>(slot);
  if (freed < socket_hint_.load(std::memory_order_relaxed)) socket_hint_.store(freed, std::memory_order_relaxed);
}

// A signal handler may run in the thread that holds the lock. Then this returns false, and the handler gives up.
bool Region::lock_whys() {
  for (int tries = 0; tries < 1000; tries++)
    if (!why_lock_.test_and_set(std::memory_order_acquire)) return true;
  return false;
}

void Region::why(Reason reason, int fd, std::uint8_t protocol, const Endpoint& address, const char* detail) {
  if (detail == nullptr) detail = "";
  Kept news{};
  news.key = why_key(reason, fd, protocol, address, detail);
  WhyRecord& record = news.record;
  record.reason = static_cast<std::uint16_t>(reason);
  record.protocol = protocol;
  record.fd = fd;
  record.address = address.address;
  record.port = address.port;
  record.count = 1;
  record.first_ns = record.last_ns = realtime_ns();
  set_sentence(record.detail, detail);
  if (!lock_whys()) {
    if (Header* const h = header(); h != nullptr) h->whys_lost.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  if (Header* const h = header(); h != nullptr)
    show(h, news);
  else
    keep(news);
  why_lock_.clear(std::memory_order_release);
}

// --- With why_lock_ held

namespace {

// The same thing has happened again.
void repeat(WhyRecord& record, const WhyRecord& news) {
  record.fd = news.fd;
  record.count += news.count;
  record.last_ns = news.last_ns;
  record.detail = news.detail;
}

}  // namespace

void Region::show(Header* h, const Kept& news) {
  const auto known = std::find(why_keys_.begin(), why_keys_.begin() + static_cast<std::ptrdiff_t>(why_used_), news.key);
  auto place = static_cast<std::size_t>(known - why_keys_.begin());
  WhyRecord record{};
  if (place < why_used_ && load_record(whys(h)[place], record)) {
    repeat(record, news.record);
  } else {
    place = why_next_;
    why_next_ = (why_next_ + 1) % kMaxWhys;
    if (place < why_used_) h->whys_lost.fetch_add(1, std::memory_order_relaxed);
    why_used_ = std::max(why_used_, place + 1);
    why_keys_[place] = news.key;
    record = news.record;
  }
  store_record(whys(h)[place], record);
  raise_used(h->whys, place + 1);
}

void Region::keep(const Kept& news) {
  const auto end = kept_.begin() + static_cast<std::ptrdiff_t>(kept_used_);
  const auto known = std::find_if(kept_.begin(), end, [&](const Kept& each) { return each.key == news.key; });
  if (known != end)
    repeat(known->record, news.record);
  else if (kept_used_ < kept_.size())
    kept_[kept_used_++] = news;
  else
    kept_lost_++;
}

// For a new region. From here on other threads may write reports: not before the file has its sections, and after those
// that were kept.
void Region::begin_showing(Header* h) {
  while (!lock_whys()) {
  }
  why_used_ = why_next_ = 0;
  for (std::size_t i = 0; i < kept_used_; i++) show(h, kept_[i]);
  h->whys_lost.fetch_add(kept_lost_, std::memory_order_relaxed);
  kept_used_ = 0;
  kept_lost_ = 0;
  header_.store(h, std::memory_order_release);
  why_lock_.clear(std::memory_order_release);
}

}  // namespace bypass::observe
