#include "calls.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <set>
#include <vector>

#include "options.h"

namespace random_calls {
namespace {

constexpr unsigned kFirstPort = 1'024, kSequences = 7'900;  // below the range of ephemeral ports
constexpr unsigned kFirstEphemeral = 32'768;

volatile std::sig_atomic_t g_broken_pipes = 0;

std::string hex(std::uint64_t value) {
  std::array<char, 20> text{};
  snprintf(text.data(), text.size(), "%llx", static_cast<unsigned long long>(value));
  return text.data();
}

std::uint64_t sum(const char* data, std::size_t bytes) {
  std::uint64_t value = 14'695'981'039'346'656'037u;
  for (std::size_t i = 0; i < bytes; ++i) value = (value ^ static_cast<unsigned char>(data[i])) * 1'099'511'628'211u;
  return value >> 40;
}

/// Urgent data is not compared where the library does not have it (docs/conformance.md).
bool has_urgent() {
  static const bool has = getenv("RANDOM_CALLS_WITHOUT_URGENT") == nullptr;
  return has;
}

/// An edge-triggered set may report once more what it has reported, when a connection moves between memory and kernel.
bool has_edges() {
  static const bool has = getenv("RANDOM_CALLS_WITHOUT_EDGES") == nullptr;
  return has;
}

int receive_flags(std::uint32_t choice) {
  static constexpr std::array<int, 11> kFlags{
      0, 0, 0, 0, MSG_PEEK, MSG_PEEK, MSG_WAITALL, MSG_TRUNC, MSG_PEEK | MSG_TRUNC, MSG_DONTWAIT, MSG_OOB};
  return kFlags[choice % (has_urgent() ? kFlags.size() : kFlags.size() - 1)];
}

int send_flags(std::uint32_t choice, bool may_hold) {
  static constexpr std::array<int, 11> kFlags{0,       0,       0,       0, 0, MSG_NOSIGNAL, MSG_DONTWAIT, MSG_NOSIGNAL,
                                              MSG_OOB, MSG_EOR, MSG_MORE};
  const int flags = kFlags[choice % (may_hold ? kFlags.size() : kFlags.size() - 1)];
  return flags == MSG_OOB && !has_urgent() ? 0 : flags;
}

/// Three pieces, of which one is empty.
std::array<iovec, 3> pieces(char* data, std::size_t bytes, std::uint32_t choice) {
  const std::size_t first = bytes == 0 ? 0 : (choice >> 8) % bytes;
  return {iovec{data, first}, iovec{data, 0}, iovec{data + first, bytes - first}};
}

}  // namespace

struct Caller::Name {
  sockaddr_in address{};
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

void count_broken_pipes() {
  struct sigaction action {};
  action.sa_handler = [](int) { g_broken_pipes = g_broken_pipes + 1; };
  sigaction(SIGPIPE, &action, nullptr);
}

void Caller::begin(std::uint64_t seed) {
  seed_ = seed;
  slots.fill(-1);
}

void Caller::end() {
  for (int& fd : slots) {
    if (fd >= 0) close(fd);
    fd = -1;
  }
}

std::string Caller::describe(long result) {
  const int error = errno;
  std::string text = std::to_string(result);
  if (result < 0) text += std::string(" ") + strerrorname_np(error);
  if (g_broken_pipes != 0) text += " SIGPIPE";
  g_broken_pipes = 0;
  return text;
}

Caller::Name Caller::make_name(unsigned port, bool any) const {
  Name name;
  name.address.sin_family = AF_INET;
  const std::uint32_t end = port % kPorts < 2 ? addresses_.server : addresses_.client;
  name.address.sin_addr.s_addr = any ? INADDR_ANY : end;
  name.address.sin_port = htons(static_cast<std::uint16_t>(kFirstPort + (seed_ % kSequences) * kPorts + port % kPorts));
  return name;
}

std::string Caller::show_name(const void* name, unsigned bytes) const {
  sockaddr_in address{};
  if (bytes == 0) return " no name";
  memcpy(&address, name, std::min<std::size_t>(bytes, sizeof(address)));
  if (address.sin_family != AF_INET) return " family " + std::to_string(address.sin_family);
  const std::uint32_t ip = address.sin_addr.s_addr;
  std::string text = ip == INADDR_ANY          ? " any"
                     : ip == addresses_.server ? " server"
                     : ip == addresses_.client ? " client"
                                               : " " + hex(ntohl(ip));
  const unsigned port = ntohs(address.sin_port);
  const unsigned base = kFirstPort + static_cast<unsigned>(seed_ % kSequences) * kPorts;
  if (port >= kFirstEphemeral) return text + ":ephemeral";
  return text + ":" +
         (port >= base && port < base + kPorts ? "port" + std::to_string(port - base) : std::to_string(port));
}

std::string Caller::take(int& where, int fd) {
  std::string text = fd >= 0 && !shows_numbers ? "a descriptor" : describe(fd);
  if (fd >= 0) {
    if (where >= 0) close(where);
    where = fd;
    const int on = 1;
    if (!waits_for_acknowledgements(seed_)) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  }
  return text;
}

std::string Caller::perform(const Step& step, unsigned index) {
  errno = 0;
  if (step.op <= Op::kAccept) return perform_setup(step);
  if (step.op <= Op::kRead) return perform_transfer(step, index);
  if (step.op <= Op::kSelect) return perform_control(step);
  if (step.op == Op::kPass) return pass(step);
  return perform_epoll(step);
}

std::string Caller::perform_setup(const Step& step) {
  const int cloexec = (step.choice & 1) != 0 ? SOCK_CLOEXEC : 0;
  switch (step.op) {
    case Op::kSocket:
      return take(slot(step),
                  socket(AF_INET, (step.other != 0 ? SOCK_DGRAM : SOCK_STREAM) | SOCK_NONBLOCK | cloexec, 0));
    case Op::kBind: {
      const Name name = make_name(step.amount, step.other != 0);
      return describe(bind(slot(step), name.get(), sizeof(name.address)));
    }
    case Op::kListen:
      return describe(listen(slot(step), static_cast<int>(step.choice % 4)));
    case Op::kConnect: {
      const Name name = make_name(step.amount, false);
      return describe(connect(slot(step), name.get(), sizeof(name.address)));
    }
    default: {
      sockaddr_in from{};
      socklen_t bytes = sizeof(from);
      const int fd = accept4(slot(step), reinterpret_cast<sockaddr*>(&from), &bytes, SOCK_NONBLOCK | cloexec);
      const int error = errno;
      const std::string name = fd >= 0 ? show_name(&from, bytes) : "";
      errno = error;
      return take(other(step), fd) + name;
    }
  }
}

std::string Caller::perform_transfer(const Step& step, unsigned index) {
  switch (step.op) {
    case Op::kSend:
    case Op::kSendTo:
    case Op::kSendMessage:
    case Op::kWrite:
      return send(step, index);
    default:
      return receive(step);
  }
}

std::string Caller::send(const Step& step, unsigned index) {
  std::vector<char> data(step.amount);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * 7 + index * 31 + seed_);
  const int fd = slot(step), flags = send_flags(step.choice, may_hold_back(seed_));
  const Name name = make_name(step.choice >> 16, false);
  if (step.op == Op::kSend) return describe(::send(fd, data.data(), data.size(), flags));
  if (step.op == Op::kSendTo)
    return describe(sendto(fd, data.data(), data.size(), flags, name.get(), sizeof(name.address)));
  auto parts = pieces(data.data(), data.size(), step.choice);
  if (step.op == Op::kWrite) return describe(writev(fd, parts.data(), parts.size()));
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  if ((step.choice >> 24) % 4 == 0) {
    message.msg_name = const_cast<sockaddr*>(name.get());
    message.msg_namelen = sizeof(name.address);
  }
  return describe(sendmsg(fd, &message, flags));
}

std::string Caller::receive(const Step& step) {
  std::vector<char> data(step.amount);
  const int fd = slot(step), flags = receive_flags(step.choice);
  sockaddr_in from{};
  socklen_t bytes = sizeof(from);
  auto parts = pieces(data.data(), data.size(), step.choice);
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  message.msg_name = &from;
  message.msg_namelen = sizeof(from);
  long got = 0;
  if (step.op == Op::kReceive)
    got = recv(fd, data.data(), data.size(), flags);
  else if (step.op == Op::kRead)
    got = (step.choice >> 20) % 2 != 0 ? readv(fd, parts.data(), parts.size()) : read(fd, data.data(), data.size());
  else if (step.op == Op::kReceiveFrom)
    got = recvfrom(fd, data.data(), data.size(), flags, reinterpret_cast<sockaddr*>(&from), &bytes);
  else
    got = recvmsg(fd, &message, flags);
  std::string text = describe(got);
  if (got < 0) return text;
  // MSG_TRUNC of a stream leaves the buffer alone; of a datagram it returns more than the buffer has.
  text += " sum " + hex(sum(data.data(), std::min<std::size_t>(data.size(), static_cast<std::size_t>(got))));
  if (step.op == Op::kReceiveFrom) text += show_name(&from, bytes);
  if (step.op == Op::kReceiveMessage)
    text += show_name(&from, message.msg_namelen) + " flags " + hex(static_cast<unsigned>(message.msg_flags));
  return text;
}

std::string Caller::perform_control(const Step& step) {
  const int fd = slot(step);
  sockaddr_in name{};
  socklen_t bytes = sizeof(name);
  switch (step.op) {
    case Op::kShutDown: {
      const int result = shutdown(fd, static_cast<int>(step.choice % 3));
      return describe(result);
    }
    case Op::kClose: {
      const int result = close(fd);
      const int error = errno;
      slot(step) = -1;
      errno = error;
      return describe(result);
    }
    case Op::kDuplicate:
      return take(other(step), step.choice % 2 != 0 ? dup(fd) : fcntl(fd, F_DUPFD_CLOEXEC, 0));
    case Op::kDuplicateTo: {
      const int to = other(step);
      if (to < 0) return "no number";
      const int result = step.choice % 2 != 0 ? dup2(fd, to) : dup3(fd, to, O_CLOEXEC);
      return describe(result);
    }
    case Op::kGetFlags: {
      const int result = fcntl(fd, step.choice % 2 != 0 ? F_GETFL : F_GETFD);
      return describe(result);
    }
    case Op::kName:
    case Op::kPeerName: {
      auto* const to = reinterpret_cast<sockaddr*>(&name);
      const int result = step.op == Op::kName ? getsockname(fd, to, &bytes) : getpeername(fd, to, &bytes);
      return describe(result) + (result == 0 ? show_name(&name, bytes) : "");
    }
    case Op::kGetOption:
      return get_option(step);
    case Op::kSetOption:
      return set_option(step);
    case Op::kControl: {
      int value = -1;
      const int result = ioctl(
          fd, step.choice % 2 != 0 ? static_cast<unsigned long>(FIONREAD) : static_cast<unsigned long>(SIOCATMARK),
          &value);
      return describe(result) + " value " + std::to_string(value);
    }
    default: {
      fd_set read, write, except;
      FD_ZERO(&read);
      if (fd >= 0) FD_SET(fd, &read);
      write = except = read;
      timeval now{};
      const int result = select(fd + 1, &read, &write, &except, &now);
      std::string text = describe(result);
      if (result > 0)
        text += std::string(FD_ISSET(fd, &read) ? " r" : "") + (FD_ISSET(fd, &write) ? " w" : "") +
                (FD_ISSET(fd, &except) ? " x" : "");
      return text;
    }
  }
}

std::string Caller::get_option(const Step& step) {
  const Option& option = kOptions[step.choice % kOptions.size()];
  std::array<unsigned char, 16> value{};
  static constexpr std::array<socklen_t, 5> kLengths{4, 4, 16, 1, 0};
  socklen_t bytes = kLengths[(step.choice >> 8) % kLengths.size()];
  const int result = getsockopt(slot(step), option.level, option.name, value.data(), &bytes);
  std::string text = std::string(option.label) + " " + describe(result) + " bytes " + std::to_string(bytes);
  if (result < 0) return text;
  for (std::size_t i = 0; i < std::min<std::size_t>(bytes, value.size()); ++i) text += " " + hex(value[i]);
  return text;
}

std::string Caller::set_option(const Step& step) {
  const Option& option = kOptions[step.choice % kOptions.size()];
  if (option.name == TCP_CORK && option.level == IPPROTO_TCP && !may_hold_back(seed_)) return "not tried";
  static constexpr std::array kValues{0, 1, 1, 2, 5, -1, 300, 100'000};
  static constexpr std::array<socklen_t, 6> kLengths{4, 4, 4, 8, 1, 0};
  const std::array<int, 2> value{kValues[(step.choice >> 8) % kValues.size()],
                                 static_cast<int>((step.choice >> 12) % 3)};
  const socklen_t bytes = kLengths[(step.choice >> 16) % kLengths.size()];
  const int result = setsockopt(slot(step), option.level, option.name, value.data(), bytes);
  return std::string(option.label) + "=" + std::to_string(value[0]) + "/" + std::to_string(bytes) + " " +
         describe(result);
}

std::string Caller::pass(const Step& step) {
  const bool sends = (step.actor == Actor::kChild) == is_child;
  char byte = 'p';
  iovec data{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  if (sends) {
    cmsghdr* const head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(head), &slot(step), sizeof(int));
    return describe(sendmsg(pass_end, &message, MSG_DONTWAIT));
  }
  const long got = recvmsg(pass_end, &message, MSG_DONTWAIT | (step.choice % 2 != 0 ? MSG_CMSG_CLOEXEC : 0));
  std::string text = describe(got);
  const cmsghdr* const head = got > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (head == nullptr || head->cmsg_type != SCM_RIGHTS) return text;
  int fd = -1;
  memcpy(&fd, CMSG_DATA(head), sizeof(fd));
  text += " flags " + hex(static_cast<unsigned>(message.msg_flags & ~MSG_CMSG_CLOEXEC));
  errno = 0;
  take(other(step), fd);
  return text;
}

std::string Caller::perform_epoll(const Step& step) {
  if (step.op == Op::kEpollCreate) return take(slot(step), epoll_create1(step.choice % 2 != 0 ? EPOLL_CLOEXEC : 0));
  if (step.op == Op::kEpollControl) {
    static constexpr std::array<int, 6> kActions{EPOLL_CTL_ADD, EPOLL_CTL_ADD, EPOLL_CTL_ADD,
                                                 EPOLL_CTL_MOD, EPOLL_CTL_MOD, EPOLL_CTL_DEL};
    static constexpr std::array<std::uint32_t, 6> kEvents{EPOLLIN,  EPOLLOUT, EPOLLIN | EPOLLOUT | EPOLLRDHUP,
                                                          EPOLLPRI, 0,        EPOLLIN | EPOLLRDHUP};
    static constexpr std::array<std::uint32_t, 4> kForms{0, 0, EPOLLET, EPOLLONESHOT};
    epoll_event event{};
    event.events = kEvents[step.choice % kEvents.size()] | kForms[(step.choice >> 8) % kForms.size()];
    if (!has_edges()) event.events &= ~static_cast<std::uint32_t>(EPOLLET);
    event.data.u32 = step.other;
    const int result = epoll_ctl(slot(step), kActions[step.amount % kActions.size()], other(step), &event);
    return describe(result);
  }
  std::array<epoll_event, 4> events{};
  const int count =
      epoll_wait(slot(step), events.data(), static_cast<int>(std::min<unsigned>(step.amount, events.size())), 0);
  std::string text = describe(count);
  std::set<std::string> found;  // in no order
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events[static_cast<std::size_t>(i)];
    found.insert(" " + std::to_string(event.data.u32) + ":" + hex(event.events));
  }
  for (const std::string& event : found) text += event;
  return text;
}

std::string Caller::readiness() const {
  std::array<pollfd, kSlots> asked{};
  for (std::size_t i = 0; i < kSlots; ++i) asked[i] = {slots[i], POLLIN | POLLOUT | POLLPRI | POLLRDHUP, 0};
  poll(asked.data(), asked.size(), 0);
  std::string text;
  for (std::size_t i = 0; i < kSlots; ++i) {
    if (slots[i] < 0) continue;
    int bytes = 0;
    const bool counted = ioctl(slots[i], FIONREAD, &bytes) == 0;
    text += " " + std::to_string(i) + ":" + hex(static_cast<unsigned short>(asked[i].revents)) +
            (counted ? "/" + std::to_string(bytes) : "");
  }
  return text;
}

bool Caller::has_unsent() const {
  return std::any_of(slots.begin(), slots.end(), [](int fd) {
    int bytes = 0;
    return fd >= 0 && ioctl(fd, SIOCOUTQNSD, &bytes) == 0 && bytes > 0;
  });
}

}  // namespace random_calls
