"""Programs of two ends, one on rxe0 and one on soft0: whose server listens with TCP beside the wire, and whose ends find each
other by rdma_cm."""
import re
import time

from roce import MEET, other
from harness import PERFTEST, Failure, check, free_port


def told(command, server, begun):
    print(f"{' '.join(map(str, command))}: server {server}: {time.monotonic() - begun:.1f} s")


def pair(guest, server, *command, timeout=60):
    """A program whose server is at the end `server`. Returns the output of both."""
    begun = time.monotonic()
    port = free_port()
    command = [*command, "-p", port]
    child = guest.start_end(server, *command, timeout=timeout)
    guest.await_listener(server, child, port)
    try:
        said = guest.run_end(other(server), *command, MEET[server], timeout=timeout)
        served = guest.end_end(server, child, timeout)
    except BaseException:
        guest.kill_end(server, child)
        raise
    told(command, server, begun)
    return served, said


def patiently(guest, server, *command, timeout=60):
    """If an answer comes while rxe of Linux 6.1 repeats a message, its queue pair may stand still for ever. So a run in which rxe
    has repeated something may be repeated."""
    for attempt in range(4):
        before = guest.counter("completer_retry_err")
        try:
            return pair(guest, server, *command, timeout=timeout)
        except Failure:
            if attempt == 3 or guest.counter("completer_retry_err") == before:
                raise
            print(f"again: {command}")


def pingpong(guest, server, name, *options, iterations=50):
    """Its queue pairs wait 67 ms for an answer, and a guest without KVM may be slower."""
    for said in patiently(guest, server, f"ibv_{name}_pingpong", "-g", 1, "-n", iterations, "-c", *options, timeout=10):
        check(f"{iterations} iters in" in said and "invalid data" not in said, said)


def perftest(guest, server, *command, run=pair):
    said = run(guest, server, command[0], *PERFTEST, *command[1:])[1]
    # Of a short run the rates may be rounded to nothing.
    check(re.search(r"^ \d+ +\d+ +[\d.]+", said, re.M), said)


# After a client that was accepted in part, the kernel refuses the next one's queue pair of the same number once, as a stale
# connection.
STALE = re.compile(r"REJECTED,? error:? 10\b")


def managed(guest, server, served_by, asked_by, word, timeout=30):
    """Two programs that find each other by rdma_cm."""
    begun = time.monotonic()
    while True:
        child = guest.start_listener(server, *served_by)
        try:
            code, said = guest.try_end(other(server), *asked_by, timeout=timeout)
        finally:
            guest.kill_end(server, child)
        if not STALE.search(said) or time.monotonic() > begun + timeout:
            break
    check(code == 0 and word in said, f"{asked_by}: exit {code}: {said}")
    told(asked_by, server, begun)
