// Uncancelled: libc's cancellation points (pthreads(7)), as functions that are none.
//
// Backends call the kernel while their callers hold a lock (the shard's, a software device's), where a thread must not
// be unwound. To turn cancellation off and on around every call of a backend costs two locked instructions; so a
// backend gets these from Host::libc instead, each a system call and nothing else, with libc's results and errno.
#pragma once

namespace bypass::runtime {

/// The function that stands for libc's of that name; null: libc's own will do.
void* uncancelled(const char* name);

}  // namespace bypass::runtime
