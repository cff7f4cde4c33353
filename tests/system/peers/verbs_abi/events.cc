// Events: who sleeps is woken, who is interrupted is told, and what has been told is counted.
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <thread>

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
  std::atomic<bool> destroyed{false};
  std::thread destroyer([&] {
    CHECK(ibv_destroy_cq(cq) == 0);
    destroyed = true;
  });
  for (int i = 0; i < 10'000 && !destroyed; i++) std::this_thread::yield();
  CHECK(!destroyed);
  ibv_ack_cq_events(told, 1);
  destroyer.join();
  CHECK(ibv_destroy_comp_channel(channel) == 0);
}

void asynchronous_events() {
  Device device;
  ibv_srq_init_attr srq_init{};
  srq_init.attr = {16, 4, 0};
  ibv_srq* const srq = ibv_create_srq(device.pd, &srq_init);
  ibv_cq* const cq = ibv_create_cq(device.context, 16, nullptr, nullptr, 0);
  CHECK(srq != nullptr && cq != nullptr && !readable(device.context->async_fd));
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
    ibv_ack_async_event(&event);
    CHECK(fcntl(device.context->async_fd, F_SETFL, O_NONBLOCK) == 0);
    CHECK(ibv_get_async_event(device.context, &event) == -1 && errno == EAGAIN);
  }
  CHECK(ibv_destroy_cq(cq) == 0 && ibv_destroy_srq(srq) == 0);
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

constexpr Case kCases[] = {
    {"cancelled_threads_leave_everything_usable", cancelled_threads_leave_everything_usable},
    {"channel_that_does_not_block", channel_that_does_not_block},
    {"sleepers_are_woken", sleepers_are_woken},
    {"signals_interrupt_as_they_should", signals_interrupt_as_they_should},
    {"destroying_waits_for_acknowledgements", destroying_waits_for_acknowledgements},
    {"asynchronous_events", asynchronous_events},
    {"port_states", port_states, false},
};

}  // namespace

std::span<const Case> event_cases() {
  return kCases;
}

}  // namespace verbs_abi
