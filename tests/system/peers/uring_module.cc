// A module that needs uring_library, as a Python extension may: loaded for itself alone.
extern "C" int io_uring_queue_init(unsigned entries, void* params, unsigned flags);

// The ring's descriptor, or a negative error number. `params`: a struct io_uring_params, all zero.
extern "C" int make_ring(void* params) {
  const volatile int ring = io_uring_queue_init(8, params, 0);
  return ring;
}

// The same by a jump, so that it seems to be called by the one that has called this.
extern "C" int make_ring_by_a_jump(void* params) {
  return io_uring_queue_init(8, params, 0);
}
