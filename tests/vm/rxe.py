"""soft0 against Linux's rdma_rxe, which others wrote: unmodified verbs programs at both ends of one wire.
rxe.py CASE...   (no name: lists them)"""
import re
import time

from roce import MEET, WIRE, Rxe, other
from roce_capture import Capture
from harness import PERFTEST, Failure, check, free_port, run_named

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def pair(guest, server, *command, timeout=60):
    """A program of two ends, whose server is at the end `server`. Returns the output of both."""
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
    print(f"{' '.join(map(str, command))}: server {server}: {time.monotonic() - begun:.1f} s")
    return served, said


def pingpong(guest, server, name, *options, iterations=50):
    """Its queue pairs wait 67 ms for an answer, and a guest without KVM may be slower. Linux 6.1's rxe then sends again. If the answer
    comes while it does so, its queue pair stands still for ever. So a run in which rxe has sent again may be repeated."""
    for attempt in range(4):
        before = guest.sent_again()
        try:
            ends = pair(guest, server, f"ibv_{name}_pingpong", "-g", 1, "-n", iterations, "-c", *options, timeout=10)
            break
        except Failure:
            if guest.sent_again() == before or attempt == 3:
                raise
    for said in ends:
        check(f"{iterations} iters in" in said and "invalid data" not in said, said)


def perftest(guest, server, *command):
    said = pair(guest, server, command[0], *PERFTEST, *command[1:])[1]
    rows = [line.split() for line in said.splitlines() if re.match(r" \d+ +\d+ +[\d.]+", line)]
    check(rows and all(float(row[-1]) > 0 for row in rows), said)


VERBS = (("ib_send_bw", "-s", 20_000), ("ib_write_bw", "-s", 20_000), ("ib_read_bw", "-s", 20_000),
         ("ib_atomic_bw", "-A", "FETCH_AND_ADD"), ("ib_atomic_bw", "-A", "CMP_AND_SWAP"), ("ib_send_bw", "-c", "UD", "-s", 1000),
         ("ib_write_bw", "-s", 100_000, "-b", "-q", 2))


@case
def rxe_programs():
    """Sends, writes, reads, atomic operations and datagrams, both ways round; what comes is compared with what was sent. Each
    frame has the right ICRC, and tshark finds nothing to remark."""
    with Rxe() as guest, Capture(guest, "tap1") as capture:
        for server in ("rxe", "soft"):
            pingpong(guest, server, "rc")
            pingpong(guest, server, "rc", "-e", iterations=20)
            pingpong(guest, server, "uc", "-r", 50, iterations=20)
            pingpong(guest, server, "ud", "-r", 50, "-s", 1000, iterations=20)
            pingpong(guest, server, "srq")
            for command in VERBS:
                perftest(guest, server, *command, "-n", 10)
        capture.check(WIRE.values(), least=1000)


run_named(CASES, "served")
