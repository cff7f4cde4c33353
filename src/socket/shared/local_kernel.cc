#include "socket/shared/local_kernel.h"

#include <asm/ioctls.h>
#include <linux/sock_diag.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <string_view>

#include "os/os.h"

namespace bypass::socket {

namespace {

/// tcpi_state, as <netinet/tcp.h> has it, which cannot stand beside <linux/tcp.h>.
enum KernelState : std::uint8_t { kTimeWait = 6, kClose = 7, kCloseWait = 8, kLastAck = 9, kClosing = 11 };

// The peer's FIN has a sequence number, and tcpi_bytes_received counts it; SIOCINQ does not.
bool has_counted_fin(KernelState state) {
  return state == kTimeWait || state == kCloseWait || state == kLastAck || state == kClosing;
}

constexpr int kInq = 36;  // TCP_INQ, and the message's type

int set_inq(int fd, int on) {
  int before = 0;
  socklen_t bytes = sizeof before;
  if (os::call(SYS_getsockopt, fd, IPPROTO_TCP, kInq, os::address(&before), os::address(&bytes)) != 0) return -1;
  return os::call(SYS_setsockopt, fd, IPPROTO_TCP, kInq, os::address(&on), sizeof on) == 0 ? before : -1;
}

std::optional<int> inq_of(msghdr& header) {
  for (cmsghdr* each = CMSG_FIRSTHDR(&header); each != nullptr; each = CMSG_NXTHDR(&header, each)) {
    if (each->cmsg_level != IPPROTO_TCP || each->cmsg_type != kInq) continue;
    int inq = 0;
    std::memcpy(&inq, CMSG_DATA(each), sizeof inq);
    return inq;
  }
  return std::nullopt;
}

// A socket that was in TIME-WAIT says kClose. So does one that was reset, before or after the peer's FIN. They differ
// in that TCP_INQ counts the FIN and SIOCINQ does not. Nothing comes any more, so the two values do not change.
std::optional<KernelRead> read_of_closed(int fd, std::uint64_t received, int unread) {
  const int before = set_inq(fd, 1);
  if (before < 0) return std::nullopt;
  std::byte first{};
  iovec part{&first, 1};
  alignas(cmsghdr) char control[256] = {};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  const long got = os::call(SYS_recvmsg, fd, os::address(&header), MSG_PEEK | MSG_DONTWAIT);
  set_inq(fd, before);
  // An error comes before an end that has no FIN.
  if (got < 0) return KernelRead{received, static_cast<int>(-got)};
  const std::optional<int> inq = inq_of(header);
  if (!inq.has_value()) return std::nullopt;
  return KernelRead{received - static_cast<std::uint64_t>(*inq == unread + 1 ? unread + 1 : unread)};
}

std::optional<tcp_info> info_of(int fd) {
  tcp_info info{};
  socklen_t bytes = sizeof info;
  const long r = os::call(SYS_getsockopt, fd, IPPROTO_TCP, TCP_INFO, os::address(&info), os::address(&bytes));
  // The last field that is needed here; Linux 4.19.
  if (r != 0 || bytes < offsetof(tcp_info, tcpi_bytes_retrans) + sizeof info.tcpi_bytes_retrans) return std::nullopt;
  return info;
}

}  // namespace

// tcpi_bytes_sent counts payload each time it is sent.
std::optional<KernelWritten> kernel_written(int fd) {
  const auto info = info_of(fd);
  if (!info) return std::nullopt;
  const std::uint64_t sent = info->tcpi_bytes_sent - info->tcpi_bytes_retrans;
  return KernelWritten{sent + info->tcpi_notsent_bytes, info->tcpi_notsent_bytes, info->tcpi_snd_mss};
}

// While the peer writes, the number of unread bytes changes between the two requests.
std::optional<KernelRead> kernel_bytes_read(int fd) {
  for (;;) {
    const auto before = info_of(fd);
    int unread = 0;
    if (!before || os::call(SYS_ioctl, fd, SIOCINQ, os::address(&unread)) != 0 || unread < 0) return std::nullopt;
    const auto after = info_of(fd);
    if (!after) return std::nullopt;
    const bool changed =
        before->tcpi_bytes_received != after->tcpi_bytes_received || before->tcpi_state != after->tcpi_state;
    if (changed) continue;
    const auto state = static_cast<KernelState>(after->tcpi_state);
    if (state == kClose) return read_of_closed(fd, after->tcpi_bytes_received, unread);
    const std::uint64_t fin = has_counted_fin(state) ? 1 : 0;
    return KernelRead{after->tcpi_bytes_received - fin - static_cast<std::uint64_t>(unread)};
  }
}

namespace {

// True also if the option cannot be read.
bool has_tcp_option(int fd, int name) {
  int value = 0;
  socklen_t bytes = sizeof value;
  const long r = os::call(SYS_getsockopt, fd, IPPROTO_TCP, name, os::address(&value), os::address(&bytes));
  return r != 0 || value != 0;
}

// Each of these options acts at once when it is set, even if it was on already: tcp(7).
void set_once(int fd, int name) {
  const auto set = [fd, name](int value) {
    os::call(SYS_setsockopt, fd, IPPROTO_TCP, name, os::address(&value), sizeof value);
  };
  const bool stays = has_tcp_option(fd, name);
  set(1);
  if (!stays) set(0);
}

}  // namespace

void push_held_bytes(int fd) {
  if (!has_tcp_option(fd, TCP_CORK)) set_once(fd, TCP_NODELAY);
}

void send_held_acknowledgement(int fd) {
  set_once(fd, TCP_QUICKACK);
}

bool is_closed_in_kernel(int fd) {
  const auto info = info_of(fd);
  return info.has_value() && info->tcpi_state == kClose;
}

// The buffer counts the memory that holds the bytes: at most twice as much (sock(7), SO_SNDBUF).
bool has_kernel_room(int fd, std::uint64_t bytes) {
  std::array<std::uint32_t, SK_MEMINFO_VARS> info{};
  socklen_t length = sizeof info;
  const long r = os::call(SYS_getsockopt, fd, SOL_SOCKET, SO_MEMINFO, os::address(info.data()), os::address(&length));
  if (r != 0 || length < (SK_MEMINFO_WMEM_QUEUED + 1) * sizeof info[0]) return false;
  return info[SK_MEMINFO_WMEM_QUEUED] + 2 * bytes <= info[SK_MEMINFO_SNDBUF];
}

namespace {

std::optional<std::uint32_t> number_of(int fd, int level, int name) {
  std::uint32_t value = 0;
  socklen_t bytes = sizeof value;
  if (os::call(SYS_getsockopt, fd, level, name, os::address(&value), os::address(&bytes)) != 0) return std::nullopt;
  return value;
}

/// socket(7) of Linux 5.16: which of the two sizes the program has set; the kernel leaves those alone.
constexpr int kBufLock = 72;
constexpr std::uint32_t kSendBufferLocked = 1;

}  // namespace

std::uint32_t kernel_receive_buffer(int fd) {
  return number_of(fd, SOL_SOCKET, SO_RCVBUF).value_or(0);
}

// A buffer that nobody has set grows to megabytes within a host. A buffer that is not full yet takes one more segment,
// at most half of the window or the largest packet.
KernelBuffers kernel_buffers(int fd) {
  constexpr std::uint32_t kNone = ~std::uint32_t{0};
  const bool is_set = (number_of(fd, SOL_SOCKET, kBufLock).value_or(kSendBufferLocked) & kSendBufferLocked) != 0;
  const std::uint32_t buffer = is_set ? number_of(fd, SOL_SOCKET, SO_SNDBUF).value_or(kNone) : kNone;
  const std::uint32_t low_water = number_of(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT).value_or(0);
  if (buffer == kNone && low_water == 0) return {};
  constexpr std::uint32_t kLargeSegment = std::uint32_t{32} << 10;
  const auto info = info_of(fd);
  const std::uint32_t window = info.has_value() ? info->tcpi_snd_wnd : 0;
  const std::uint32_t more = window != 0 ? std::min(window, kLargeSegment) : kLargeSegment;
  const std::uint32_t most = buffer < kNone - more ? buffer + more : kNone;
  return {low_water == 0 ? most : std::min(most, low_water), window};
}

bool may_pass_messages() {
  return os::call(SYS_recvmsg, -1, 0, 0) == -EBADF && os::call(SYS_sendmsg, -1, 0, 0) == -EBADF;
}

bool has_io_uring() {
  constexpr std::string_view kName = "anon_inode:[io_uring]";
  const long maps = os::call(SYS_openat, AT_FDCWD, os::address("/proc/self/maps"), O_RDONLY | O_CLOEXEC);
  if (maps < 0) return false;
  std::array<char, 4096> text;
  bool found = false;
  std::size_t kept = 0;  // length of the last part's end, in which a name may have begun
  for (;;) {
    const long got = os::call(SYS_read, maps, os::address(text.data() + kept), static_cast<long>(text.size() - kept));
    if (got <= 0) break;
    const std::string_view part(text.data(), kept + static_cast<std::size_t>(got));
    if (found = part.find(kName) != part.npos; found) break;
    kept = std::min(part.size(), kName.size() - 1);
    std::memmove(text.data(), part.data() + part.size() - kept, kept);
  }
  os::call(SYS_close, maps);
  return found;
}

}  // namespace bypass::socket
