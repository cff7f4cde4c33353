// aio_read and similar calls. libc's own threads read and write, which no interposer sees. So a request on a socket
// that has bytes here is carried out by threads of this library (preload/requests). Where the bytes are in the kernel's
// socket, or can go back there, libc's threads do it.
#include <aio.h>
#include <errno.h>
#include <pthread.h>

#include <memory>
#include <new>

#include "os/program_memory.h"
#include "preload/escape.h"
#include "preload/numbers.h"
#include "preload/requests.h"
#include "preload/symbols.h"
#include "socket/api.h"

namespace bypass::preload {
namespace {

using socket::Transfer;

template <typename Block>
bool is_for_libc(const Block& block, Transfer transfer) {
  return let_libc_transfer(block.aio_fildes, transfer) == 0;
}

template <typename Block>
bool is_transfer(const Block* block) {
  return block != nullptr && block->aio_lio_opcode != LIO_NOP;
}

/// Returns 0 or an errno, which the block has, too.
template <typename Block>
int begin(Block& block, Transfer transfer, std::shared_ptr<RequestList> list) {
  const RequestTerms terms{.fd = block.aio_fildes,
                           .writes = transfer == Transfer::kWrite,
                           .priority = block.aio_reqprio,
                           .data = const_cast<void*>(block.aio_buf),
                           .bytes = block.aio_nbytes,
                           .offset = block.aio_offset};
  const RequestBlock where{&block, &block.__error_code, &block.__return_value, block.aio_sigevent};
  const int problem = begin_request(terms, where, std::move(list));
  if (problem == 0) return 0;
  block.__error_code = problem;
  block.__return_value = -1;
  return problem;
}

template <typename Block>
int transfer(Block* block, Transfer transfer, int (*in_libc)(Block*)) {
  if (!is_tracked(block->aio_fildes) || is_for_libc(*block, transfer)) return in_libc(block);
  const int problem = begin(*block, transfer, nullptr);
  if (problem != 0) errno = problem;
  return problem == 0 ? 0 : -1;
}

BYPASS_EXPORT(int, aio_read, (aiocb * block)) {
  return transfer(block, Transfer::kRead, real.aio_read);
}

BYPASS_EXPORT(int, aio_read64, (aiocb64 * block)) {
  return transfer(block, Transfer::kRead, real.aio_read64);
}

BYPASS_EXPORT(int, aio_write, (aiocb * block)) {
  return transfer(block, Transfer::kWrite, real.aio_write);
}

BYPASS_EXPORT(int, aio_write64, (aiocb64 * block)) {
  return transfer(block, Transfer::kWrite, real.aio_write64);
}

constexpr sigevent kTellNobody{.sigev_value = {}, .sigev_signo = 0, .sigev_notify = SIGEV_NONE, ._sigev_un = {}};

template <typename Block>
Transfer transfer_of(const Block& block) {
  return (block.aio_lio_opcode & 127) == LIO_READ ? Transfer::kRead : Transfer::kWrite;
}

template <typename Block>
bool is_all_for_libc(Block* const* list, int count) {
  bool all = true;
  for (int i = 0; i < count; i++) {
    if (is_transfer(list[i]) && is_tracked(list[i]->aio_fildes))
      all = is_for_libc(*list[i], transfer_of(*list[i])) && all;
  }
  return all;
}

/// Waits for all requests of the list; 0, or the errno of lio_listio(3).
int await_list(const RequestList& list) {
  while (list.left != 0) {
    const std::uint32_t seen = requests_ended();
    if (list.left == 0) break;
    pthread_testcancel();
    if (await_ended_request(seen, nullptr) == -EINTR) return EINTR;
  }
  return list.failed ? EIO : 0;
}

// All requests of a list with a socket of ours are carried out here, so that one notice tells of them all.
template <typename Block>
int transfer_all(int mode, Block* const* blocks, int count, const sigevent* event) {
  if (mode != LIO_WAIT && mode != LIO_NOWAIT) return EINVAL;
  std::shared_ptr<RequestList> list;
  try {
    list = std::make_shared<RequestList>();
  } catch (const std::bad_alloc&) {
    return EAGAIN;
  }
  list->event = mode == LIO_NOWAIT && event != nullptr ? *event : kTellNobody;
  list->left = 1;  // until all have begun
  int problem = 0;
  bool any = false;
  for (int i = 0; i < count; i++) {
    if (!is_transfer(blocks[i])) continue;
    list->left++;
    const int refused = begin(*blocks[i], transfer_of(*blocks[i]), list);
    any = any || refused == 0;
    if (refused == 0) continue;
    list->left--;
    problem = refused;
  }
  const bool is_last = list->left.fetch_sub(1) == 1;
  if (mode == LIO_NOWAIT) {
    if (is_last) notify(list->event);
    return problem;
  }
  const int failed = await_list(*list);
  return failed != 0 || problem == 0 ? failed : any ? EIO : problem;
}

template <typename Block>
int list_io(int mode, Block* const* list, int count, sigevent* event,
            int (*in_libc)(int, Block* const*, int, sigevent*)) {
  if (fd_table.end() == 0 || list == nullptr || is_all_for_libc(list, count)) return in_libc(mode, list, count, event);
  const int problem = transfer_all(mode, list, count, event);
  if (problem != 0) errno = problem;
  return problem == 0 ? 0 : -1;
}

BYPASS_EXPORT(int, lio_listio, (int mode, aiocb* const* list, int count, sigevent* event)) {
  return list_io(mode, list, count, event, real.lio_listio);
}

BYPASS_EXPORT(int, lio_listio64, (int mode, aiocb64* const* list, int count, sigevent* event)) {
  return list_io(mode, list, count, event, real.lio_listio64);
}

template <typename Block>
bool has_ended(const Block* const* list, int count) {
  for (int i = 0; i < count; i++) {
    if (list[i] != nullptr && std::atomic_ref(const_cast<Block*>(list[i])->__error_code).load() != EINPROGRESS)
      return true;
  }
  return false;
}

timespec end_of(const timespec& timeout) {
  constexpr long kSecond = 1'000'000'000;
  timespec end;
  clock_gettime(CLOCK_MONOTONIC, &end);
  end.tv_sec += timeout.tv_sec;
  end.tv_nsec += timeout.tv_nsec;
  if (end.tv_nsec >= kSecond) end.tv_sec++, end.tv_nsec -= kSecond;
  return end;
}

bool is_later(const timespec& a, const timespec& b) {
  return a.tv_sec != b.tv_sec ? a.tv_sec > b.tv_sec : a.tv_nsec > b.tv_nsec;
}

// A list may have requests of libc's, too, whose end is seen by looking each millisecond.
template <typename Block>
int suspend(const Block* const* list, int count, const timespec* timeout, bool has_others) {
  constexpr timespec kLook{0, 1'000'000};
  const timespec end = timeout != nullptr ? end_of(*timeout) : timespec{};
  for (;;) {
    const std::uint32_t seen = requests_ended();
    if (has_ended(list, count)) return 0;
    pthread_testcancel();
    timespec until = end;
    if (has_others && (timeout == nullptr || is_later(end, end_of(kLook)))) until = end_of(kLook);
    const bool is_bounded = timeout != nullptr || has_others;
    const long r = await_ended_request(seen, is_bounded ? &until : nullptr);
    if (r == -EINTR) return EINTR;
    if (r == -ETIMEDOUT && timeout != nullptr && !is_later(end, end_of({}))) return EAGAIN;
  }
}

template <typename Block>
int suspend_all(const Block* const* list, int count, const timespec* timeout,
                int (*in_libc)(const Block* const*, int, const timespec*)) {
  bool has_ours = false, has_others = false;
  for (int i = 0; fd_table.end() != 0 && i < count; i++) {
    if (list[i] == nullptr) continue;
    const bool ours = is_our_request(list[i]);
    has_ours = has_ours || ours;
    has_others = has_others || !ours;
  }
  if (!has_ours) return in_libc(list, count, timeout);
  const int problem = suspend(list, count, timeout, has_others);
  if (problem != 0) errno = problem;
  return problem == 0 ? 0 : -1;
}

BYPASS_EXPORT(int, aio_suspend, (const aiocb* const* list, int count, const timespec* timeout)) {
  return suspend_all(list, count, timeout, real.aio_suspend);
}

BYPASS_EXPORT(int, aio_suspend64, (const aiocb64* const* list, int count, const timespec* timeout)) {
  return suspend_all(list, count, timeout, real.aio_suspend64);
}

template <typename Block>
int cancel(int fd, Block* block, int (*in_libc)(int, Block*)) {
  if (!is_tracked(fd) || (block != nullptr && block->aio_fildes != fd)) return in_libc(fd, block);
  if (block != nullptr && !is_our_request(block)) return in_libc(fd, block);
  const int ours = cancel_requests(fd, block);
  if (block != nullptr || ours == AIO_NOTCANCELED) return ours;
  const int others = in_libc(fd, block);
  return others == AIO_ALLDONE ? ours : others;
}

BYPASS_EXPORT(int, aio_cancel, (int fd, aiocb* block)) {
  return cancel(fd, block, real.aio_cancel);
}

BYPASS_EXPORT(int, aio_cancel64, (int fd, aiocb64* block)) {
  return cancel(fd, block, real.aio_cancel64);
}

}  // namespace
}  // namespace bypass::preload
