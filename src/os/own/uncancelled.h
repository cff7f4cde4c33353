// Uncancelled: libc's cancellation points (pthreads(7)) as functions that are no cancellation points.
//
// Backends call the kernel while their callers hold a lock (the shard's, or a software device's), where a thread must
// not be unwound. To turn cancellation off and on around every call of a backend costs two locked instructions. So a
// backend gets these from Host::libc instead: each is only a system call, with libc's results and errno.
#pragma once

namespace bypass::runtime {

/// The replacement for libc's function of that name; null: use libc's own.
void* uncancelled(const char* name);

}  // namespace bypass::runtime
