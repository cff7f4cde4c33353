// aio_read and similar calls. libc's own threads read and write, which no interposer sees, so the bytes must be in the
// kernel's socket.
#include <aio.h>
#include <errno.h>

#include "preload/escape.h"
#include "preload/symbols.h"
#include "socket/api.h"

namespace bypass::preload {
namespace {

using socket::Transfer;

/// Whether libc's threads may use it. Otherwise sets errno to ENOSYS or EAGAIN; programs then read and write by
/// themselves.
template <typename Block>
bool may_queue(const Block& block, Transfer transfer) {
  const int problem = let_libc_transfer(block.aio_fildes, transfer);
  if (problem != 0) errno = problem;
  return problem == 0;
}

template <typename Block>
bool is_transfer(const Block* block) {
  return block != nullptr && block->aio_lio_opcode != LIO_NOP;
}

template <typename Block>
bool may_queue_all(Block* const* list, int count) {
  for (int i = 0; i < count && list != nullptr; i++) {
    if (!is_transfer(list[i])) continue;
    const Transfer transfer = list[i]->aio_lio_opcode == LIO_READ ? Transfer::kRead : Transfer::kWrite;
    if (may_queue(*list[i], transfer)) continue;
    // None of the requests is queued; lio_listio(3) lets programs find that out request by request.
    for (int each = 0; each < count; each++) {
      if (!is_transfer(list[each])) continue;
      list[each]->__error_code = errno;
      list[each]->__return_value = -1;
    }
    return false;
  }
  return true;
}

BYPASS_EXPORT(int, aio_read, (aiocb * block)) {
  return may_queue(*block, Transfer::kRead) ? real.aio_read(block) : -1;
}

BYPASS_EXPORT(int, aio_read64, (aiocb64 * block)) {
  return may_queue(*block, Transfer::kRead) ? real.aio_read64(block) : -1;
}

BYPASS_EXPORT(int, aio_write, (aiocb * block)) {
  return may_queue(*block, Transfer::kWrite) ? real.aio_write(block) : -1;
}

BYPASS_EXPORT(int, aio_write64, (aiocb64 * block)) {
  return may_queue(*block, Transfer::kWrite) ? real.aio_write64(block) : -1;
}

BYPASS_EXPORT(int, lio_listio, (int mode, aiocb* const* list, int count, sigevent* event)) {
  return may_queue_all(list, count) ? real.lio_listio(mode, list, count, event) : -1;
}

BYPASS_EXPORT(int, lio_listio64, (int mode, aiocb64* const* list, int count, sigevent* event)) {
  return may_queue_all(list, count) ? real.lio_listio64(mode, list, count, event) : -1;
}

}  // namespace
}  // namespace bypass::preload
