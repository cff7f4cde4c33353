#include "backends/packet/flows/claim_holder.h"

#include <dirent.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <netinet/tcp.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>

#include "backends/packet/descriptor.h"
#include "backends/packet/libc.h"

namespace bypass::packet {
namespace {

struct Found {
  std::uint32_t inode = 0;
  uid_t user = 0;
};

struct Question {
  nlmsghdr header{};
  unix_diag_req request{};
};

bool ask(int fd) {
  Question question;
  question.header.nlmsg_len = sizeof question;
  question.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  question.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
  question.request.sdiag_family = AF_UNIX;
  // A connected socket has the name of the listener that it connected to, and belongs to root until it is accepted.
  question.request.udiag_states = 1U << TCP_CLOSE | 1U << TCP_LISTEN;
  question.request.udiag_show = UDIAG_SHOW_NAME | UDIAG_SHOW_UID;
  return libc.sendto(fd, &question, sizeof question, 0, nullptr, 0) == static_cast<ssize_t>(sizeof question);
}

/// The socket in an answer, if it has that name.
std::optional<Found> read_answer(const nlmsghdr* message, std::string_view name) {
  const auto* const socket = static_cast<const unix_diag_msg*>(NLMSG_DATA(message));
  if (socket->udiag_type != SOCK_STREAM || socket->udiag_ino == 0) return std::nullopt;
  Found found{.inode = socket->udiag_ino};
  bool is_named = false, has_user = false;
  auto length = static_cast<int>(NLMSG_PAYLOAD(message, sizeof *socket));
  for (const auto* at = reinterpret_cast<const rtattr*>(socket + 1); RTA_OK(at, length); at = RTA_NEXT(at, length)) {
    if (at->rta_type == UNIX_DIAG_NAME)
      is_named = std::string_view(static_cast<const char*>(RTA_DATA(at)), RTA_PAYLOAD(at)) == name;
    if (at->rta_type == UNIX_DIAG_UID && RTA_PAYLOAD(at) >= sizeof found.user) {
      std::memcpy(&found.user, RTA_DATA(at), sizeof found.user);
      has_user = true;
    }
  }
  return is_named && has_user ? std::optional(found) : std::nullopt;
}

/// Reads the whole list. False: the kernel has no list.
bool read_answers(int fd, std::string_view name, std::optional<Found>& found) {
  alignas(nlmsghdr) std::array<char, 32768> buffer;
  for (;;) {
    const ssize_t got = libc.recv(fd, buffer.data(), buffer.size(), 0);
    if (got <= 0) return false;
    auto left = static_cast<unsigned>(got);
    for (const auto* at = reinterpret_cast<const nlmsghdr*>(buffer.data()); NLMSG_OK(at, left);
         at = NLMSG_NEXT(at, left)) {
      if (at->nlmsg_type == NLMSG_DONE) return true;
      if (at->nlmsg_type != SOCK_DIAG_BY_FAMILY) return false;
      if (const auto one = read_answer(at, name)) found = one;
    }
  }
}

bool has_socket(const std::string& process, const std::string& socket) {
  const std::string folder = "/proc/" + process + "/fd";
  const std::unique_ptr<DIR, int (*)(DIR*)> list(opendir(folder.c_str()), closedir);
  if (list == nullptr) return false;
  while (const dirent* const entry = readdir(list.get())) {
    std::array<char, 64> target{};
    const ssize_t length = readlinkat(dirfd(list.get()), entry->d_name, target.data(), target.size());
    if (length > 0 && std::string_view(target.data(), static_cast<std::size_t>(length)) == socket) return true;
  }
  return false;
}

pid_t process_with(std::uint32_t inode) {
  const std::string socket = "socket:[" + std::to_string(inode) + "]";
  const std::unique_ptr<DIR, int (*)(DIR*)> list(opendir("/proc"), closedir);
  if (list == nullptr) return 0;
  while (const dirent* const entry = readdir(list.get()))
    if (const int pid = std::atoi(entry->d_name); pid > 0 && has_socket(entry->d_name, socket)) return pid;
  return 0;
}

}  // namespace

ClaimHolder holder_of(std::string_view name) {
  const Descriptor list(libc.socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  std::optional<Found> found;
  if (!list.is_open() || !ask(list.get()) || !read_answers(list.get(), name, found)) return {};
  if (!found) return {.is = ClaimHolder::Is::kGone};
  return {.is = ClaimHolder::Is::kThere, .user = found->user, .pid = process_with(found->inode)};
}

}  // namespace bypass::packet
