#include "rc_peers.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "backends/plain_host.h"

namespace bypass::bench {
namespace {

std::string folder_of_build() {
  char self[4096] = {};
  need(readlink("/proc/self/exe", self, sizeof self - 1) > 0, "/proc/self/exe");
  const std::string program = self;
  const std::string bin = program.substr(0, program.rfind('/'));
  return bin.substr(0, bin.rfind('/')) + "/";
}

}  // namespace

IpAddress read_address(const std::string& text) {
  in_addr v4{};
  if (inet_pton(AF_INET, text.c_str(), &v4) != 1) die(text + " is no IPv4 address");
  return IpAddress::from_v4(ntohl(v4.s_addr));
}

Backend& load_verbs_plugin() {
  static Host host = PlainHost::host();
  host.file_of_build = [](const char* name, char* path, std::size_t size) {
    const std::string file = folder_of_build() + name;
    return file.size() < size && access(std::strcpy(path, file.c_str()), R_OK) == 0;
  };
  void* const plugin = dlopen((folder_of_build() + "libbypass-verbs.so").c_str(), RTLD_NOW | RTLD_LOCAL);
  if (plugin == nullptr) die(dlerror());
  const auto entry = reinterpret_cast<BackendEntry>(dlsym(plugin, "bypass_backend"));
  Backend* const backend = entry == nullptr ? nullptr : entry(&host);
  if (backend == nullptr) die("libbypass-verbs.so is not of this build");
  return *backend;
}

void RecordLine::say(const fastpath::Record& record, std::span<const std::byte> body) {
  std::array<std::byte, fastpath::kMaxControl> room;
  const bool is_data = record.type == fastpath::RecordType::kData;
  const std::size_t n = encode(record, room, is_data ? std::span<const std::byte>{} : body);
  waiting_.insert(waiting_.end(), room.begin(), room.begin() + static_cast<std::ptrdiff_t>(n));
  if (is_data) waiting_.insert(waiting_.end(), body.begin(), body.end());
  flush();
}

bool RecordLine::flush() {
  if (waiting_.empty()) return true;
  const ssize_t sent = send(fd_, waiting_.data(), waiting_.size(), MSG_NOSIGNAL);
  need(sent >= 0 || errno == EAGAIN, "the line");
  if (sent > 0) waiting_.erase(waiting_.begin(), waiting_.begin() + sent);
  return waiting_.empty();
}

void RecordLine::end() {
  need(shutdown(fd_, SHUT_WR) == 0, "the line");
}

}  // namespace bypass::bench
