// What the kernel knows that our calls do not: how many bytes have gone through a connection, whatever calls wrote or
// read them, and whether others than calls may.
#pragma once

#include <cstdint>
#include <optional>

namespace bypass::socket {

struct KernelWritten {
  std::uint64_t bytes = 0;    // that were given to it to send
  std::uint32_t unsent = 0;   // … of which have not left yet
  std::uint32_t segment = 0;  // bytes of one that is full
};
/// Nothing: it cannot be told.
std::optional<KernelWritten> kernel_written(int fd);

struct KernelRead {
  std::uint64_t bytes = 0;
  int error = 0;  // an errno that the kernel tells once, and has told now: only where nothing is left to be read
};
/// What was read from it. No other thread may be reading.
std::optional<KernelRead> kernel_bytes_read(int fd);

/// Whether a send of so many bytes is taken whole without waiting, as far as can be told.
bool has_kernel_room(int fd, std::uint64_t bytes);

/// What a program has asked of its buffers.
struct KernelBuffers {
  std::uint32_t most_unsent = 0;  // that the kernel takes before it says EAGAIN; 0: no bound was asked for
  std::uint32_t window = 0;       // the peer's, with `most_unsent` only; 0: not known
};
[[nodiscard]] KernelBuffers kernel_buffers(int fd);
/// SO_RCVBUF as it is read back; 0: it cannot be.
[[nodiscard]] std::uint32_t kernel_receive_buffer(int fd);

/// Sends what Nagle's algorithm holds (RFC 9293 section 3.7.4), or MSG_MORE. It waits for an acknowledgement that the
/// peer's bytes would bring along, were they to go over the kernel. What the program holds back by TCP_CORK stays.
void push_held_bytes(int fd);
/// Sends the acknowledgement that the kernel holds back, as a segment with data would bring it along (RFC 1122 section
/// 4.2.3.2). What Nagle's algorithm holds at the peer's end may wait for it.
void send_held_acknowledgement(int fd);

/// Its connection is over, or there has been none.
bool is_closed_in_kernel(int fd);

/// Whether no filter of system calls (seccomp(2)) forbids what descriptors are passed with.
bool may_pass_messages();

/// Whether this process has an io_uring mapped.
bool has_io_uring();

}  // namespace bypass::socket
