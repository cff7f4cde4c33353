"""soft0 against Linux's rdma_rxe, which others wrote: unmodified verbs programs at both ends of one wire.
rxe.py CASE...   (no name: lists them)"""
import os
import subprocess
import time

from card import long_form
from image import NEWEST
from roce import WIRE, Rxe
from roce_capture import Capture
from roce_pairs import managed, patiently, perftest, pingpong, told
from harness import BUILD, check, run_named

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


VERBS = (("ib_send_bw", "-s", 20_000), ("ib_write_bw", "-s", 20_000), ("ib_read_bw", "-s", 20_000),
         ("ib_atomic_bw", "-A", "FETCH_AND_ADD"), ("ib_atomic_bw", "-A", "CMP_AND_SWAP"), ("ib_send_bw", "-c", "UD", "-s", 1000),
         ("ib_write_bw", "-s", 100_000, "-b", "-q", 2))


def verbs(guest, server):
    """Sends, writes, reads, atomic operations and datagrams; what comes is compared with what was sent."""
    pingpong(guest, server, "rc")
    pingpong(guest, server, "rc", "-e", iterations=20)
    pingpong(guest, server, "uc", "-r", 50, iterations=20)
    pingpong(guest, server, "ud", "-r", 50, "-s", 1000, iterations=20)
    pingpong(guest, server, "srq")
    for command in VERBS:
        perftest(guest, server, *command, "-n", 10)


def connections(guest, server):
    """Each end's connection manager speaks with the other's: one is the kernel's, the other the project's."""
    at = WIRE[server]
    managed(guest, server, ["rping", "-s", "-P", "-v", "-a", at], ["rping", "-c", "-V", "-v", "-C", 5, "-a", at], "ping data: rdma-ping-4")
    managed(guest, server, ["ucmatose", "-c", 4, "-C", 5, "-S", 3000], ["ucmatose", "-c", 4, "-C", 5, "-S", 3000, "-s", at], "return status 0")
    managed(guest, server, ["udaddy", "-c", 2], ["udaddy", "-c", 2, "-s", at], "return status 0")
    managed(guest, server, ["rstream", "-S", 1024, "-C", 50], ["rstream", "-s", at, "-S", 1024, "-C", 50], "custom")
    managed(guest, server, ["cmtime", "-c", 20], ["cmtime", "-c", 20, "-s", at], "disconnect")


# Cases of verbs_abi (tests/system/peers) that rxe cannot take, and why: docs/roce.md says it, too.
CANNOT = {
    "extended_interfaces": "completions have no times",
    "extended_lists_and_writes_with_immediate": "its library, of rdma-core 44, sends lists of inline bytes as no bytes",
    "extended_batches_are_posted_whole": "it does not look at a request before it is its turn",
    "extended_polls_of_several_threads": "its library unlocks the queue when it is found empty, and a second time at the end",
    "calls_are_no_cancellation_points": "calls are system calls, in which a thread may be cancelled",
    "cancelled_threads_leave_everything_usable": "the same",
    "event_of_a_connection_that_is_there": "there is no such event",
    "event_of_a_request_without_the_right": "there is no such event",
    "event_of_the_last_shared_request": "there is no such event",
    "events_of_an_overrun": "the queue pair of a queue that is overrun goes on",
    "fork_leaves_the_parents_alone": "the kernel refuses a child by other errors, and lets it poll",
    "fork_leaves_the_parents_events": "the kernel gives the event to a child that asks for it",
    "closing_takes_everything_along": "descriptors of channels stay open",
    "other_contexts_objects_are_refused": "the kernel knows objects by numbers, and takes the context's own object of that number",
    "places_are_free_when_polled": "a request's place is free when the request is done",
    "xrc_queue_pairs_are_opened_again": "there is no XRC",
    "memory_is_registered_anew": "memory cannot be registered anew",
    "memory_is_registered_anew_under_traffic": "memory cannot be registered anew",
    "memory_that_is_not_there_is_refused": "memory cannot be registered anew",
    "raw_frames_are_steered": "there are no raw-packet queue pairs",
    "what_is_missing_is_refused": "it names what soft0 does not have",
}


def abi(guest):
    """What a program asks of soft0 that no tool asks, asked of rxe0: both give the same answers."""
    known = subprocess.run([os.path.join(BUILD, "bin", "verbs_abi")], capture_output=True, text=True, check=True).stdout.split()
    check(set(CANNOT) <= set(known), f"there are no such cases: {set(CANNOT) - set(known)}")
    names = [name for name in known if name not in CANNOT]
    begun = time.monotonic()
    said = guest.do(f"timeout -s KILL 60 /b/verbs_abi {' '.join(names)}", 70)
    check(said.split("\n")[:-1] == [f"{name}: ok" for name in names], said)
    told(["verbs_abi"], "rxe", begun)


def programs(**options):
    with Rxe(**options) as guest, Capture(guest, "tap1") as capture:
        abi(guest)
        for server in ("rxe", "soft"):
            connections(guest, server)
            verbs(guest, server)
        capture.check(WIRE.values(), least=1000)


@case
def rxe_programs():
    """Both ways round. Each frame has the right ICRC, and tshark finds nothing to remark."""
    programs()


@case
def rxe_of_the_newest_kernel():
    """The same, over a path MTU of 4096."""
    long_form()
    programs(kernel=NEWEST, mtu=9000)


@case
def rxe_loss():
    """One frame in fifty is lost, either way: both ends repeat what the other end misses."""
    long_form()
    with Rxe(loss=2) as guest:
        for server in ("rxe", "soft"):
            pingpong(guest, server, "rc", iterations=100)
            # Of longer messages more than one packet is lost. rxe repeats for the first report of a loss alone, until it gets an
            # acknowledgement. Then its timer repeats, of a second here.
            for command in VERBS[:5]:
                perftest(guest, server, *command, "-n", 50, run=patiently)
        # What rxe0 missed, and what it was told that soft0 missed.
        lost = {name: guest.counter(name) for name in ("out_of_seq_request", "rcvd_seq_err")}
        print(lost)
        check(all(lost.values()), f"nothing was lost: {lost}")


@case
def rxe_over_vhost():
    """The wire is a vhost: port of soft0's, and no interface of the kernel's: QEMU's card takes the frames from memory."""
    long_form()
    with Rxe(served_by=("rping", "-s", "-P", "-v", "-S", 20_000, "-a", WIRE["soft"])) as guest:
        for _ in range(2):  # a second connection, once the first one is over
            guest.do(f"timeout -s KILL 60 rping -c -V -C 10 -S 20000 -a {WIRE['soft']}", 70)
        check(guest.server.poll() is None, "rping has ended")


run_named(CASES, "served")
