// Events: who sleeps is woken, who is interrupted is told, and what has been told is counted.
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <thread>
#include <utility>

#include "program.h"

namespace verbs_abi {
namespace {

void channel_that_does_not_block() {
  Device device;
  ibv_comp_channel* const channel = ibv_create_comp_channel(device.context);
  CHECK(channel != nullptr && (fcntl(channel->fd, F_GETFD) & FD_CLOEXEC) != 0);
  CHECK(fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK) == 0);
  int mark = 0;
  ibv_cq* const cq = ibv_create_cq(device.context, 16, &mark, channel, 0);
  CHECK(cq != nullptr && ibv_destroy_comp_channel(channel) == EBUSY);
  {
    Pair pair(device, cq);
    ibv_cq* told = nullptr;
    void* context = nullptr;
    CHECK(ibv_get_cq_event(channel, &told, &context) == -1 && errno == EAGAIN);
    exchange(device, pair, cq);  // not armed: no event
    CHECK(!readable(channel->fd));
    CHECK(ibv_req_notify_cq(cq, 0) == 0);
    exchange(device, pair, cq);  // two completions, armed once: one event
    CHECK(readable(channel->fd));
    CHECK(ibv_get_cq_event(channel, &told, &context) == 0 && told == cq && context == &mark);
    CHECK(!readable(channel->fd));
    ibv_ack_cq_events(cq, 1);
    CHECK(ibv_req_notify_cq(cq, 1) == 0);
    exchange(device, pair, cq);  // nothing of it is solicited
    CHECK(!readable(channel->fd));
    CHECK(ibv_req_notify_cq(cq, 0) == 0);
    exchange(device, pair, cq);
    CHECK(readable(channel->fd));
  }
  CHECK(ibv_destroy_cq(cq) == 0);  // takes its unread event along
  CHECK(!readable(channel->fd) && ibv_destroy_comp_channel(channel) == 0);
}

// The program sleeps in poll() or in ibv_get_cq_event, and the device's own thread does the work.
void sleepers_are_woken() {
  Device device;
  ibv_comp_channel* const channel = ibv_create_comp_channel(device.context);
  ibv_cq* const cq = ibv_create_cq(device.context, 16, nullptr, channel, 0);
  {
    Pair pair(device, cq);
    for (const bool by_poll : {true, false}) {
      CHECK(ibv_req_notify_cq(cq, 0) == 0);
      std::atomic<bool> woken{false};
      std::thread sleeper([&] {
        pollfd item{channel->fd, POLLIN, 0};
        if (by_poll) CHECK(poll(&item, 1, -1) == 1);
        ibv_cq* told = nullptr;
        void* context = nullptr;
        CHECK(ibv_get_cq_event(channel, &told, &context) == 0 && told == cq);
        woken = true;
      });
      post_receive(pair.b, 2, device.sge(1024, 64));
      CHECK(post_send(pair.a, 1, device.sge(0, 64)) == 0);
      sleeper.join();  // nobody polls the completion queue meanwhile
      CHECK(woken && completion(cq).wr_id + completion(cq).wr_id == 3);
      ibv_ack_cq_events(cq, 1);
    }
  }
  CHECK(ibv_destroy_cq(cq) == 0 && ibv_destroy_comp_channel(channel) == 0);
}

// A device has the kernel's object, not its number: a file of the program's that takes the number is the program's
// alone.
void numbers_that_are_the_programs() {
  Device device;
  ibv_comp_channel* const channel = ibv_create_comp_channel(device.context);
  ibv_cq* const cq = ibv_create_cq(device.context, 16, nullptr, channel, 0);
  {
    Pair pair(device, cq);
    std::FILE* const file = std::tmpfile();
    constexpr char kText[] = "0123456789abcdef";
    CHECK(file != nullptr && pwrite(fileno(file), kText, sizeof kText, 0) == sizeof kText);
    for (const int number : {channel->fd, device.context->async_fd}) CHECK(dup2(fileno(file), number) == number);
    CHECK(ibv_req_notify_cq(cq, 0) == 0);
    exchange(device, pair, cq);
    ibv_qp_attr failed{};
    failed.qp_state = IBV_QPS_ERR;
    CHECK(ibv_modify_qp(pair.a, &failed, IBV_QP_STATE) == 0);
    char found[sizeof kText] = {};
    CHECK(pread(fileno(file), found, sizeof found, 0) == sizeof found && std::strcmp(found, kText) == 0);
    CHECK(lseek(fileno(file), 0, SEEK_CUR) == 0 && std::fclose(file) == 0);
  }
  CHECK(ibv_destroy_cq(cq) == 0 && ibv_destroy_comp_channel(channel) == 0);
}

// A daemon closes all that it has not opened itself: messages go on, and nobody spins.
void everything_is_closed() {
  Device device;
  ibv_cq* const cq = ibv_create_cq(device.context, 16, nullptr, nullptr, 0);
  {
    Pair pair(device, cq);
    exchange(device, pair, cq);
    closefrom(3);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the polls above are over
    const std::clock_t before = std::clock();
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    CHECK(std::clock() - before < CLOCKS_PER_SEC / 5);
    for (int i = 0; i < 100; i++) exchange(device, pair, cq);
  }
  CHECK(ibv_destroy_cq(cq) == 0);
}

void signals_interrupt_as_they_should() {
  Device device;
  for (const bool restart : {false, true}) {
    ibv_comp_channel* const channel = ibv_create_comp_channel(device.context);
    ibv_cq* const cq = ibv_create_cq(device.context, 16, nullptr, channel, 0);
    static std::atomic<int> handled;
    handled = 0;
    struct sigaction action {};
    action.sa_handler = [](int) { handled++; };
    action.sa_flags = restart ? SA_RESTART : 0;
    CHECK(sigaction(SIGUSR1, &action, nullptr) == 0);
    {
      Pair pair(device, cq);
      CHECK(ibv_req_notify_cq(cq, 0) == 0);
      std::atomic<int> result{1};
      std::thread sleeper([&] {
        ibv_cq* told = nullptr;
        void* context = nullptr;
        result = ibv_get_cq_event(channel, &told, &context) == 0 ? 0 : -errno;
      });
      // Asked for again and again: the thread may not sleep yet when the first one comes.
      while (restart ? handled < 20 : result == 1) {
        pthread_kill(sleeper.native_handle(), SIGUSR1);
        std::this_thread::yield();
      }
      CHECK(restart ? result == 1 : result == -EINTR);
      exchange(device, pair, cq);
      sleeper.join();
      CHECK(result == (restart ? 0 : -EINTR));
      if (restart) ibv_ack_cq_events(cq, 1);
    }
    CHECK(ibv_destroy_cq(cq) == 0 && ibv_destroy_comp_channel(channel) == 0);
  }
}

/// `destroy` ends what an event speaks of that has been taken.
template <typename Destroy, typename Acknowledge>
void waits_for_acknowledgement(Destroy destroy, Acknowledge acknowledge) {
  std::atomic<bool> begins{false}, destroyed{false};
  std::thread destroyer([&] {
    begins = true;
    CHECK(destroy() == 0);
    destroyed = true;
  });
  while (!begins) std::this_thread::yield();
  for (int i = 0; i < 10'000 && !destroyed; i++) std::this_thread::yield();
  CHECK(!destroyed);
  acknowledge();
  destroyer.join();
}

void destroying_waits_for_acknowledgements() {
  Device device;
  ibv_comp_channel* const channel = ibv_create_comp_channel(device.context);
  ibv_cq* const cq = ibv_create_cq(device.context, 16, nullptr, channel, 0);
  {
    Pair pair(device, cq);
    CHECK(ibv_req_notify_cq(cq, 0) == 0);
    exchange(device, pair, cq);
  }
  ibv_cq* told = nullptr;
  void* context = nullptr;
  CHECK(ibv_get_cq_event(channel, &told, &context) == 0);
  waits_for_acknowledgement([&] { return ibv_destroy_cq(cq); }, [&] { ibv_ack_cq_events(told, 1); });
  CHECK(ibv_destroy_comp_channel(channel) == 0);
}

/// The event has been taken.
template <typename Destroy>
void waits_for_acknowledgement_of(ibv_async_event event, Destroy destroy) {
  waits_for_acknowledgement(destroy, [&] { ibv_ack_async_event(&event); });
}

/// The next asynchronous event, which there is already.
ibv_async_event next_event(const Device& device) {
  CHECK(readable(device.context->async_fd));
  ibv_async_event event{};
  CHECK(ibv_get_async_event(device.context, &event) == 0);
  return event;
}

/// A queue pair that has been made and no more.
ibv_qp* new_pair(const Device& device, ibv_cq* send_cq, ibv_cq* receive_cq, ibv_srq* srq = nullptr) {
  ibv_qp_init_attr init = rc_init(send_cq, srq);
  init.recv_cq = receive_cq;
  ibv_qp* const qp = ibv_create_qp(device.pd, &init);
  CHECK(qp != nullptr);
  return qp;
}

void asynchronous_events() {
  Device device;
  ibv_srq_init_attr srq_init{};
  srq_init.attr = {16, 4, 0};
  ibv_srq* const srq = ibv_create_srq(device.pd, &srq_init);
  ibv_cq* const cq = ibv_create_cq(device.context, 16, nullptr, nullptr, 0);
  CHECK(srq != nullptr && cq != nullptr && !readable(device.context->async_fd));
  ibv_async_event taken{};
  {
    Pair pair(device, cq, srq);
    for (int i = 0; i < 2; i++) {
      ibv_sge sge = device.sge(1024, 64);
      ibv_recv_wr wr{2, nullptr, &sge, 1}, *bad = nullptr;
      CHECK(ibv_post_srq_recv(srq, &wr, &bad) == 0);
    }
    ibv_srq_attr limit{0, 0, 2};
    CHECK(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT) == 0);
    CHECK(post_send(pair.a, 1, device.sge(0, 64)) == 0);
    CHECK(completion(cq).wr_id + completion(cq).wr_id == 3);
    CHECK(readable(device.context->async_fd));
    ibv_async_event event{};
    CHECK(ibv_get_async_event(device.context, &event) == 0);
    CHECK(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && event.element.srq == srq);
    CHECK(!readable(device.context->async_fd));
    CHECK(fcntl(device.context->async_fd, F_SETFL, O_NONBLOCK) == 0);
    ibv_async_event none{};
    CHECK(ibv_get_async_event(device.context, &none) == -1 && errno == EAGAIN);
    taken = event;
  }
  waits_for_acknowledgement_of(taken, [&] { return ibv_destroy_srq(srq); });
  CHECK(ibv_destroy_cq(cq) == 0);
}

// The first message comes before the program has been told by other ways that its peer is ready.
void event_of_a_connection_that_is_there() {
  Device device;
  ibv_cq* const cq = ibv_create_cq(device.context, 16, nullptr, nullptr, 0);
  ibv_qp *const a = new_pair(device, cq, cq), *const b = new_pair(device, cq, cq);
  to_rts(device, a, b->qp_num);
  to_rtr(b, device.gid, a->qp_num);
  for (int i = 0; i < 2; i++) {
    post_receive(b, 2, device.sge(1024, 64));
    CHECK(post_send(a, 1, device.sge(0, 64)) == 0);
    CHECK(completion(cq).wr_id + completion(cq).wr_id == 3);
  }
  const ibv_async_event event = next_event(device);
  CHECK(event.event_type == IBV_EVENT_COMM_EST && event.element.qp == b);
  CHECK(!readable(device.context->async_fd));  // once
  waits_for_acknowledgement_of(event, [&] { return ibv_destroy_qp(b); });
  CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_cq(cq) == 0);
}

// Told at the end whose memory it is; and what nobody has taken goes with what it speaks of.
void event_of_a_request_without_the_right() {
  Device device;
  ibv_cq* const cq = ibv_create_cq(device.context, 16, nullptr, nullptr, 0);
  for (const bool taken : {true, false}) {
    ibv_qp *const a = new_pair(device, cq, cq), *const b = new_pair(device, cq, cq);
    to_rts(device, a, b->qp_num);
    to_rts(device, b, a->qp_num);
    CHECK(write_to(a, device.sge(0, 8), device.memory + 1024, device.mr->rkey + 1) == IBV_WC_REM_ACCESS_ERR);
    CHECK(readable(device.context->async_fd));
    if (taken) {
      const ibv_async_event event = next_event(device);
      CHECK(event.event_type == IBV_EVENT_QP_ACCESS_ERR && event.element.qp == b);
      waits_for_acknowledgement_of(event, [&] { return ibv_destroy_qp(b); });
    } else {
      CHECK(ibv_destroy_qp(b) == 0);
    }
    CHECK(!readable(device.context->async_fd) && ibv_destroy_qp(a) == 0);
  }
  CHECK(ibv_destroy_cq(cq) == 0);
}

// A queue pair that has ended takes no more of the shared requests, which are another's now.
void event_of_the_last_shared_request() {
  Device device;
  ibv_srq_init_attr srq_init{};
  srq_init.attr = {16, 4, 0};
  ibv_srq* const srq = ibv_create_srq(device.pd, &srq_init);
  ibv_cq* const cq = ibv_create_cq(device.context, 16, nullptr, nullptr, 0);
  ibv_qp* const qp = new_pair(device, cq, cq, srq);
  to_rts(device, qp, qp->qp_num);
  CHECK(!readable(device.context->async_fd));
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
  const ibv_async_event event = next_event(device);
  CHECK(event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED && event.element.qp == qp);
  waits_for_acknowledgement_of(event, [&] { return ibv_destroy_qp(qp); });
  CHECK(ibv_destroy_srq(srq) == 0 && ibv_destroy_cq(cq) == 0);
}

// More messages come than the queue has places for their completions.
void events_of_an_overrun() {
  Device device;
  ibv_cq* const cq = ibv_create_cq(device.context, 256, nullptr, nullptr, 0);
  ibv_cq* const small = ibv_create_cq(device.context, 1, nullptr, nullptr, 0);
  CHECK(cq != nullptr && small != nullptr && small->cqe < 16);
  ibv_qp *const a = new_pair(device, cq, cq), *const b = new_pair(device, cq, small);
  to_rts(device, a, b->qp_num);
  to_rts(device, b, a->qp_num);
  for (int i = 0; i <= small->cqe; i++) {
    CHECK(!readable(device.context->async_fd));
    post_receive(b, 2, device.sge(1024, 64));
    CHECK(post_send(a, 1, device.sge(0, 64)) == 0);
    CHECK(completion(cq).wr_id == 1);
  }
  ibv_async_event events[2] = {next_event(device), next_event(device)};
  if (events[0].event_type == IBV_EVENT_QP_FATAL) std::swap(events[0], events[1]);
  CHECK(events[0].event_type == IBV_EVENT_CQ_ERR && events[0].element.cq == small);
  CHECK(events[1].event_type == IBV_EVENT_QP_FATAL && events[1].element.qp == b);
  CHECK(!readable(device.context->async_fd));
  ibv_qp_attr attr{};
  ibv_qp_init_attr init{};
  CHECK(ibv_query_qp(b, &attr, IBV_QP_STATE, &init) == 0 && attr.qp_state == IBV_QPS_ERR);
  waits_for_acknowledgement_of(events[1], [&] { return ibv_destroy_qp(b); });
  waits_for_acknowledgement_of(events[0], [&] { return ibv_destroy_cq(small); });
  CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_cq(cq) == 0);
}

// What the port says, until the peer that comes has gone again. The caller makes both happen.
void port_states() {
  Device device;
  for (const ibv_event_type expected : {IBV_EVENT_PORT_ACTIVE, IBV_EVENT_PORT_ERR}) {
    ibv_async_event event{};
    std::puts("waiting");
    std::fflush(stdout);
    CHECK(ibv_get_async_event(device.context, &event) == 0 && event.event_type == expected);
    ibv_ack_async_event(&event);
    const bool up = expected == IBV_EVENT_PORT_ACTIVE;
    ibv_port_attr port{};
    CHECK(ibv_query_port(device.context, 1, &port) == 0);
    CHECK(port.state == (up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN) && port.phys_state == (up ? kLinkUp : kPolling));
  }
}

// A thread is cancelled where a program may be: between its calls, or in the one that sleeps. What it used goes on.
void cancelled_threads_leave_everything_usable() {
  Device device;
  ibv_comp_channel* const channel = ibv_create_comp_channel(device.context);
  ibv_cq* const cq = ibv_create_cq(device.context, 16, nullptr, channel, 0);
  {
    Pair pair(device, cq);
    const auto cancel_at = [](std::thread& thread, const std::atomic<unsigned>& done, unsigned at) {
      while (done < at) std::this_thread::yield();
      CHECK(pthread_cancel(thread.native_handle()) == 0);
      thread.join();
    };
    for (unsigned round = 0; round < 50; round++) {
      std::atomic<unsigned> done{0};
      std::thread busy([&] {
        for (;;) {
          exchange(device, pair, cq);
          done++;
          pthread_testcancel();
        }
      });
      cancel_at(busy, done, round % 7);
    }
    for (unsigned round = 0; round < 20; round++) {
      std::atomic<unsigned> begun{0};
      CHECK(ibv_req_notify_cq(cq, 0) == 0);
      std::thread asleep([&] {
        ibv_cq* told = nullptr;
        void* context = nullptr;
        begun++;
        (void)ibv_get_cq_event(channel, &told, &context);
        CHECK(!"an event of which nobody knows");
      });
      cancel_at(asleep, begun, 1);
      exchange(device, pair, cq);
      ibv_cq* told = nullptr;
      void* context = nullptr;
      CHECK(ibv_get_cq_event(channel, &told, &context) == 0 && told == cq);
      ibv_ack_cq_events(cq, 1);
    }
  }
  CHECK(ibv_destroy_cq(cq) == 0 && ibv_destroy_comp_channel(channel) == 0);
}

// Of all calls only those that wait for events are cancellation points: a thread that is told to end does so there.
void calls_are_no_cancellation_points() {
  std::atomic<unsigned> rounds{0};
  std::thread told_to_end([&] {
    CHECK(pthread_cancel(pthread_self()) == 0);
    Device device;
    for (unsigned round = 0; round < 20; round++) {
      ibv_comp_channel* const channel = ibv_create_comp_channel(device.context);
      ibv_cq* const cq = ibv_create_cq(device.context, 16, nullptr, channel, 0);
      {
        Pair pair(device, cq);
        CHECK(ibv_req_notify_cq(cq, 0) == 0);
        exchange(device, pair, cq);  // an event is told of
      }
      CHECK(ibv_destroy_cq(cq) == 0 && ibv_destroy_comp_channel(channel) == 0);
      rounds++;
    }
    ibv_async_event event{};
    (void)ibv_get_async_event(device.context, &event);
    CHECK(!"the wait for an event is no cancellation point");
  });
  told_to_end.join();
  CHECK(rounds == 20);
}

constexpr Case kCases[] = {
    {"calls_are_no_cancellation_points", calls_are_no_cancellation_points},
    {"cancelled_threads_leave_everything_usable", cancelled_threads_leave_everything_usable},
    {"channel_that_does_not_block", channel_that_does_not_block},
    {"sleepers_are_woken", sleepers_are_woken},
    {"numbers_that_are_the_programs", numbers_that_are_the_programs},
    {"everything_is_closed", everything_is_closed, false},
    {"signals_interrupt_as_they_should", signals_interrupt_as_they_should},
    {"destroying_waits_for_acknowledgements", destroying_waits_for_acknowledgements},
    {"asynchronous_events", asynchronous_events},
    {"event_of_a_connection_that_is_there", event_of_a_connection_that_is_there},
    {"event_of_a_request_without_the_right", event_of_a_request_without_the_right},
    {"event_of_the_last_shared_request", event_of_the_last_shared_request},
    {"events_of_an_overrun", events_of_an_overrun},
    {"port_states", port_states, false},
};

}  // namespace

std::span<const Case> event_cases() {
  return kCases;
}

}  // namespace verbs_abi
