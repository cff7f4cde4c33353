#include "preload/requests.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <list>
#include <new>
#include <utility>

#include "os/os.h"
#include "os/own/cancellation.h"

namespace bypass::preload {
namespace {

struct Request {
  RequestTerms terms;
  RequestBlock block;
  std::shared_ptr<RequestList> list;
};

/// One descriptor's requests. Its thread takes them one by one, and ends when there are no more.
struct Queue {
  int fd = -1;
  std::list<Request> begun;    // the request whose call the thread makes, or is about to; one at most
  std::list<Request> waiting;  // by priority, and in each as they came

  [[nodiscard]] bool is_empty() const { return begun.empty() && waiting.empty(); }
  void begin_next() {
    if (!waiting.empty()) begun.splice(begun.end(), waiting, waiting.begin());
  }
};

/// Leaked: threads use it until the process's end.
struct State {
  pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  std::list<Queue> queues;
};
std::atomic<State*> state{nullptr};
std::atomic<std::uint32_t> ended{0};

State* made_state() {
  State* seen = state.load();
  if (seen != nullptr) return seen;
  auto* made = new (std::nothrow) State;
  if (made == nullptr || state.compare_exchange_strong(seen, made)) return made;
  delete made;
  return seen;
}

// Handlers may call aio_suspend() (signal-safety(7)), so none runs on a thread that holds the lock.
class Locked {
 public:
  explicit Locked(State& of) : lock_(of.lock) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
    pthread_mutex_lock(&lock_);
  }
  ~Locked() {
    pthread_mutex_unlock(&lock_);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  const socket::CancellationOff off_;
  pthread_mutex_t& lock_;
  sigset_t before_{};
};

template <typename Call>
ssize_t uninterrupted(Call call) {
  ssize_t r;
  do r = call();
  while (r < 0 && errno == EINTR);
  return r;
}

// As handle_fildes_io() in glibc's aio_misc.c: a descriptor that cannot seek is read from where it is.
ssize_t transfer(const RequestTerms& t) {
  const ssize_t r = uninterrupted(
      [&] { return t.writes ? ::pwrite(t.fd, t.data, t.bytes, t.offset) : ::pread(t.fd, t.data, t.bytes, t.offset); });
  if (r >= 0 || errno != ESPIPE) return r;
  return uninterrupted([&] { return t.writes ? ::write(t.fd, t.data, t.bytes) : ::read(t.fd, t.data, t.bytes); });
}

// The result comes before the error number, which says that the request has ended. After that the block may be gone.
void end_request(const Request& request, ssize_t result, int error) {
  *request.block.result = result;
  const sigevent event = request.block.event;
  std::atomic_ref(*request.block.error).store(error, std::memory_order_release);
  bool is_last = false;
  if (request.list != nullptr) {
    if (error != 0) request.list->failed = true;
    is_last = request.list->left.fetch_sub(1) == 1;
  }
  ended.fetch_add(1);  // what a sleeper looks at has changed before
  os::futex_wake(reinterpret_cast<const std::uint32_t*>(&ended), INT_MAX);
  notify(event);
  if (is_last) notify(request.list->event);
}

void* serve(void* argument) {
  State& of = *state.load();
  auto* const queue = static_cast<Queue*>(argument);
  for (;;) {
    {
      const Locked hold(of);
      if (queue->is_empty()) {
        of.queues.remove_if([=](const Queue& each) { return &each == queue; });
        return nullptr;
      }
    }
    const ssize_t r = transfer(queue->begun.front().terms);
    const int error = r < 0 ? errno : 0;
    std::list<Request> done;
    {
      const Locked hold(of);
      done.swap(queue->begun);
      queue->begin_next();  // once the program sees this one's end, the next one can no longer be cancelled
    }
    end_request(done.front(), r, error);
  }
}

/// The thread is the program's own in every respect but signals, of which it takes none. 0 or an errno.
int start_thread(void* (*body)(void*), void* argument, const pthread_attr_t* given) {
  pthread_attr_t own;
  if (given == nullptr) {
    if (pthread_attr_init(&own) != 0) return EAGAIN;
    pthread_attr_setdetachstate(&own, PTHREAD_CREATE_DETACHED);
  }
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  const int problem = pthread_create(&thread, given != nullptr ? given : &own, body, argument);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (given == nullptr) pthread_attr_destroy(&own);
  return problem == 0 ? 0 : EAGAIN;
}

void* call_function(void* argument) {
  const std::unique_ptr<sigevent> event(static_cast<sigevent*>(argument));
  sigset_t none;
  sigemptyset(&none);
  pthread_sigmask(SIG_SETMASK, &none, nullptr);
  event->sigev_notify_function(event->sigev_value);
  return nullptr;
}

int cancel_in(Queue& queue, const void* block, std::list<Request>& cancelled) {
  for (auto each = queue.waiting.begin(); each != queue.waiting.end();) {
    const auto next = std::next(each);
    if (block == nullptr || each->block.block == block) cancelled.splice(cancelled.end(), queue.waiting, each);
    each = next;
  }
  const bool has_begun = std::ranges::any_of(
      queue.begun, [=](const Request& each) { return block == nullptr || each.block.block == block; });
  if (has_begun) return AIO_NOTCANCELED;
  return cancelled.empty() ? AIO_ALLDONE : AIO_CANCELED;
}

}  // namespace

int begin_request(const RequestTerms& terms, const RequestBlock& block, std::shared_ptr<RequestList> list) {
  constexpr int kMostPriority = 20;  // AIO_PRIO_DELTA_MAX
  if (terms.priority < 0 || terms.priority > kMostPriority) return EINVAL;
  State* const of = made_state();
  if (of == nullptr) return EAGAIN;
  const Locked hold(*of);
  try {
    auto queue = std::ranges::find(of->queues, terms.fd, &Queue::fd);
    const bool is_new = queue == of->queues.end();
    if (is_new) queue = of->queues.insert(queue, Queue{terms.fd, {}, {}});
    std::list<Request>& requests = queue->is_empty() ? queue->begun : queue->waiting;
    const auto after = std::ranges::find_if(requests, [&](const Request& each) {
      return each.terms.priority > terms.priority;  // the number is taken off the thread's priority
    });
    requests.insert(after, Request{terms, block, std::move(list)});
    std::atomic_ref(*block.error).store(EINPROGRESS);
    *block.result = 0;
    if (!is_new || start_thread(serve, &*queue, nullptr) == 0) return 0;
    of->queues.erase(queue);
  } catch (const std::bad_alloc&) {  // nothing has changed, or an empty queue is left for the next request
  }
  return EAGAIN;
}

bool is_our_request(const void* block) {
  State* const of = state.load();
  if (of == nullptr) return false;
  const Locked hold(*of);
  const auto is_it = [=](const Request& each) { return each.block.block == block; };
  return std::ranges::any_of(of->queues, [=](const Queue& queue) {
    return std::ranges::any_of(queue.begun, is_it) || std::ranges::any_of(queue.waiting, is_it);
  });
}

int cancel_requests(int fd, const void* block) {
  State* const of = state.load();
  if (of == nullptr) return AIO_ALLDONE;
  std::list<Request> cancelled;
  int answer = AIO_ALLDONE;
  {
    const Locked hold(*of);
    const auto queue = std::ranges::find(of->queues, fd, &Queue::fd);
    if (queue != of->queues.end()) answer = cancel_in(*queue, block, cancelled);
  }
  for (const Request& each : cancelled) end_request(each, -1, ECANCELED);
  return answer;
}

std::uint32_t requests_ended() {
  return ended.load();
}

long await_ended_request(std::uint32_t seen, const timespec* until) {
  // FUTEX_WAIT_BITSET takes the time of its end, so a call that is made again waits no longer.
  return os::call(SYS_futex, os::address(&ended), FUTEX_WAIT_BITSET, static_cast<long>(seen),
                  until != nullptr ? os::address(until) : 0, 0, FUTEX_BITSET_MATCH_ANY);
}

void notify(const sigevent& event) {
  if (event.sigev_notify == SIGEV_SIGNAL) {
    siginfo_t info{};
    info.si_signo = event.sigev_signo;
    info.si_code = SI_ASYNCIO;
    info.si_pid = getpid();
    info.si_uid = getuid();
    info.si_value = event.sigev_value;
    os::call(SYS_rt_sigqueueinfo, info.si_pid, info.si_signo, os::address(&info));
  } else if (event.sigev_notify == SIGEV_THREAD) {
    auto* copy = new (std::nothrow) sigevent(event);
    if (copy != nullptr && start_thread(call_function, copy, event.sigev_notify_attributes) != 0) delete copy;
  }
}

void forget_requests_after_fork() {
  state = nullptr;  // leaked: a thread of the parent's may have held the lock
}

}  // namespace bypass::preload
