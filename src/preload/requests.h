// Requests of aio_read() and its like on sockets of ours. libc's threads make their calls inside libc, so threads of
// this process do it here as libc's would: those of one descriptor one after the other, and the urgent ones first.
#pragma once

#include <aio.h>
#include <signal.h>
#include <time.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace bypass::preload {

/// What a request is: the parts of aiocb and aiocb64, which are alike on 64-bit systems.
struct RequestTerms {
  int fd = -1;
  bool writes = false;
  int priority = 0;
  void* data = nullptr;
  std::size_t bytes = 0;
  long offset = 0;
};

/// What is told once all requests of a lio_listio() have ended.
struct RequestList {
  std::atomic<int> left{0};
  std::atomic<bool> failed{false};
  sigevent event{};
};

/// The program's block of a request: where its result is written.
struct RequestBlock {
  void* block = nullptr;  // the aiocb, as its name
  int* error = nullptr;
  ssize_t* result = nullptr;
  sigevent event{};
};

/// Begins a request. 0, or an errno of aio_read(3): EINVAL (priority), EAGAIN (no memory or thread).
int begin_request(const RequestTerms& terms, const RequestBlock& block, std::shared_ptr<RequestList> list);
/// Whether the block is a request that has begun here and has not ended.
bool is_our_request(const void* block);
/// As aio_cancel(3), for one block or (null) for all requests of `fd` that are here.
int cancel_requests(int fd, const void* block);
/// A word that changes whenever a request here ends, and the sleep until it does; 0 or a negative errno. `until`:
/// CLOCK_MONOTONIC, or null.
std::uint32_t requests_ended();
long await_ended_request(std::uint32_t seen, const timespec* until);
/// Tells the program as the sigevent says.
void notify(const sigevent& event);
/// In a forked child no request of its parent's exists.
void forget_requests_after_fork();

}  // namespace bypass::preload
