#include "backends/dpdk/buffer_pool.h"

#include <rte_errno.h>
#include <rte_malloc.h>
#include <rte_memory.h>

#include <algorithm>

#include "backends/dpdk/card/iova.h"
#include "backends/dpdk/eal/eal.h"

namespace bypass::dpdk {
namespace {

constexpr char kOpsName[] = "bypass";

FreeStack* stack_of(const rte_mempool* pool) {
  return static_cast<FreeStack*>(pool->pool_data);
}

// --- The mempool driver
int ops_alloc(rte_mempool* pool) {
  pool->pool_data = pool->pool_config;
  return 0;
}
void ops_free(rte_mempool*) {}
int ops_enqueue(rte_mempool* pool, void* const* objects, unsigned n) {
  stack_of(pool)->put(objects, n);
  return 0;
}
int ops_dequeue(rte_mempool* pool, void** objects, unsigned n) {
  return stack_of(pool)->take(objects, n) ? 0 : -ENOBUFS;
}
unsigned ops_count(const rte_mempool* pool) {
  return stack_of(pool)->count;
}

// Gives each object of a chunk its place. None is usable yet, because they are not initialised.
int ops_populate(rte_mempool* pool, unsigned max, void* address, rte_iova_t iova, size_t length,
                 rte_mempool_populate_obj_cb_t* on_object, void* argument) {
  const std::size_t size = pool->header_size + pool->elt_size + pool->trailer_size;
  unsigned made = 0;
  for (std::size_t offset = 0; made < max && offset + size <= length; offset += size, made++) {
    const std::size_t start = offset + pool->header_size;
    void* object = static_cast<char*>(address) + start;
    on_object(pool, argument, object, iova == RTE_BAD_IOVA ? RTE_BAD_IOVA : iova + start);
    stack_of(pool)->staged.push_back(object);
  }
  return static_cast<int>(made);
}

rte_mempool_ops make_ops() {
  rte_mempool_ops ops{};
  std::copy_n(kOpsName, sizeof kOpsName, ops.name);
  ops.alloc = ops_alloc;
  ops.free = ops_free;
  ops.enqueue = ops_enqueue;
  ops.dequeue = ops_dequeue;
  ops.get_count = ops_count;
  ops.populate = ops_populate;
  return ops;
}
const rte_mempool_ops pool_ops = make_ops();

bool register_ops() {
  static const int index = rte_mempool_register_ops(&pool_ops);
  return index >= 0;
}

// By what EAL noted when it took the page. /proc/self/pagemap hides physical addresses from a process that has given
// its rights up (proc_pid_pagemap(5)).
std::uint64_t address_of(std::uintptr_t place) {
  static_assert(kNoCardAddress == RTE_BAD_IOVA);
  auto* const memory = reinterpret_cast<void*>(place);
  if (!eal_has_physical_addresses()) return rte_mem_virt2iova(memory);
  const rte_memseg* const page = rte_mem_virt2memseg(memory, nullptr);
  if (page == nullptr || page->iova == RTE_BAD_IOVA) return kNoCardAddress;
  return page->iova + RTE_PTR_DIFF(memory, page->addr);
}

void init_packet(rte_mbuf* m, std::uint16_t port_index) {
  Packet* p = packet_of(m);
  *p = Packet{};
  p->buffer = static_cast<std::byte*>(m->buf_addr);
  p->capacity = m->buf_len;
  p->port = port_index;
}

}  // namespace

BufferPool::~BufferPool() {
  // Frames that are still out stay readable: then the memory is kept to the end of the process.
  if (pool_ == nullptr || stack_.count != total()) return;
  rte_mempool_free(pool_);
  for (void* chunk : chunks_) rte_free(chunk);
}

bool BufferPool::create(const char* name, const PoolConfig& config, std::uint16_t port_index, std::string& problem) {
  config_ = config;
  port_index_ = port_index;
  const std::uint32_t buffer = buffer_bytes();
  const std::uint32_t element = sizeof(rte_mbuf) + kPacketRoom + buffer;
  limit_ = std::max(config.initial, config.budget_bytes / element);
  stack_.slots = std::make_unique<void*[]>(limit());
  stack_.capacity = limit();
  pool_ = register_ops()
              ? rte_mempool_create_empty(name, limit(), element, 0, sizeof(rte_pktmbuf_pool_private), SOCKET_ID_ANY, 0)
              : nullptr;
  if (pool_ == nullptr || rte_mempool_set_ops_byname(pool_, kOpsName, &stack_) != 0) {
    problem = "no memory for the buffer pool: " + std::string(rte_strerror(rte_errno));
    return false;
  }
  rte_pktmbuf_pool_private room{};
  room.mbuf_data_room_size = static_cast<std::uint16_t>(buffer);
  room.mbuf_priv_size = kPacketRoom;
  rte_pktmbuf_pool_init(pool_, &room);
  if (!add_chunk(config.initial)) {
    problem = "no memory for " + std::to_string(config.initial) + " buffers of " + std::to_string(buffer) + " bytes";
    return false;
  }
  adopt_chunk();
  take_all_at_once();
  return true;
}

// A process that gives root up later gets no more memory whose physical address EAL may see.
void BufferPool::take_all_at_once() {
  if (!eal_has_physical_addresses() || total() == limit()) return;
  if (add_chunk(limit() - total())) return adopt_chunk();
  limit_ = total();
}

bool BufferPool::add_chunk(std::uint32_t count) {
  const std::size_t object = pool_->header_size + pool_->elt_size + pool_->trailer_size;
  const std::size_t bytes = object * count;
  void* memory = rte_malloc("bypass-buffers", bytes, RTE_CACHE_LINE_SIZE);
  if (memory == nullptr) return false;
  chunks_.push_back(memory);
  stack_.staged.reserve(count);
  if (lay_out(static_cast<char*>(memory), bytes) <= 0) return false;
  for (void* each : stack_.staged) {
    rte_pktmbuf_init(pool_, nullptr, each, 0);
    init_packet(static_cast<rte_mbuf*>(each), port_index_);
  }
  chunk_ready_.store(true, std::memory_order_release);
  return true;
}

// Makes buffers in a chunk's memory, and returns how many. No buffer lies across the border of two parts.
int BufferPool::lay_out(char* memory, std::size_t bytes) {
  const Iova mode = eal_has_physical_addresses() ? Iova::kPhysical : Iova::kVirtual;
  int made = 0;
  for (const CardMemory& part : reachable_parts(reinterpret_cast<std::uintptr_t>(memory), bytes, mode, address_of)) {
    const int more = rte_mempool_populate_iova(pool_, memory + part.offset, part.address, part.bytes, nullptr, nullptr);
    if (more < 0) break;
    made += more;
  }
  return made;
}

void BufferPool::adopt_chunk() {
  const auto count = static_cast<std::uint32_t>(stack_.staged.size());
  stack_.put(stack_.staged.data(), count);
  stack_.staged.clear();
  total_.store(total() + count, std::memory_order_relaxed);
  chunk_ready_.store(false, std::memory_order_release);
}

bool BufferPool::wants_growth() const {
  return free_count() < low_mark() && total() < limit() && !chunk_ready_.load(std::memory_order_acquire);
}

void BufferPool::grow() {
  if (!wants_growth()) return;
  // If there is no memory for a chunk, the pool grows no more: the budget was larger than the machine.
  if (!add_chunk(std::min(config_.chunk, limit() - total()))) limit_ = total();
}

std::size_t BufferPool::alloc(std::span<Packet*> out) {
  if (free_count() < out.size()) take_in();
  const std::size_t n = std::min<std::size_t>(out.size(), free_count());
  void* objects[64];
  std::size_t done = 0;
  while (done < n) {
    const auto batch = static_cast<std::uint32_t>(std::min<std::size_t>(n - done, 64));
    if (!stack_.take(objects, batch)) break;
    for (std::uint32_t i = 0; i < batch; i++) {
      Packet* p = packet_of(static_cast<rte_mbuf*>(objects[i]));
      p->reset(kTxHeadroom);
      out[done++] = p;
    }
  }
  return done;
}

void BufferPool::free_frame(Packet* head) {
  // The chain is walked as it is now: the stack may have cut or joined it since it was received.
  void* objects[64];
  std::uint32_t n = 0;
  for (Packet* p = head; p != nullptr;) {
    Packet* next = p->next_segment;
    rte_mbuf* m = mbuf_of(p);
    m->next = nullptr;
    m->nb_segs = 1;
    objects[n++] = m;
    if (n == 64) {
      stack_.put(objects, n);
      n = 0;
    }
    p = next;
  }
  stack_.put(objects, n);
}

}  // namespace bypass::dpdk
