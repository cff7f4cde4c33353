// Values that only the kernel knows: how many bytes have gone through a connection, whichever calls wrote or read them,
// and what other means than calls may read it.
#pragma once

#include <cstdint>
#include <optional>

namespace bypass::socket {

struct KernelWritten {
  std::uint64_t bytes = 0;    // bytes that it was given to send
  std::uint32_t unsent = 0;   // those that have not left yet
  std::uint32_t segment = 0;  // bytes of a full segment
};
/// Nullopt: the kernel cannot tell.
std::optional<KernelWritten> kernel_written(int fd);

struct KernelRead {
  std::uint64_t bytes = 0;
  int error = 0;  // an errno that the kernel reports once, and has reported now: only if nothing is left to read
};
/// How many bytes were read from the connection. No other thread may be reading.
std::optional<KernelRead> kernel_bytes_read(int fd);

/// Whether the kernel would take a send of so many bytes whole without waiting, as far as this can be known.
bool has_kernel_room(int fd, std::uint64_t bytes);

/// The program's own settings of a socket's buffers.
struct KernelBuffers {
  std::uint32_t most_unsent = 0;  // how much the kernel takes before it returns EAGAIN; 0: no bound was set
  std::uint32_t window = 0;       // the peer's window, only with `most_unsent`; 0: not known
};
[[nodiscard]] KernelBuffers kernel_buffers(int fd);
/// SO_RCVBUF as getsockopt() returns it; 0: it cannot be read.
[[nodiscard]] std::uint32_t kernel_receive_buffer(int fd);

/// Sends what Nagle's algorithm holds (RFC 9293 section 3.7.4), or MSG_MORE. It waits for an acknowledgement that the
/// peer's bytes would carry if they went over the kernel. What the program holds back by TCP_CORK stays.
void push_held_bytes(int fd);
/// Sends the acknowledgement that the kernel delays, as a segment with data would carry it (RFC 1122 section 4.2.3.2).
/// Bytes that Nagle's algorithm holds at the peer's end may wait for it.
void send_held_acknowledgement(int fd);

/// Whether the connection is over, or there was none.
bool is_closed_in_kernel(int fd);

/// Whether no filter of system calls (seccomp(2)) forbids the calls that pass descriptors.
bool may_pass_messages();

/// Whether this process has an io_uring mapped.
bool has_io_uring();

}  // namespace bypass::socket
