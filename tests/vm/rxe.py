"""soft0 against Linux's rdma_rxe, which others wrote: unmodified verbs programs at both ends of one wire.
rxe.py CASE...   (no name: lists them)"""
from card import long_form
from image import NEWEST
from roce import WIRE, Rxe
from roce_capture import Capture
from roce_pairs import managed, patiently, perftest, pingpong
from harness import check, run_named

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


def programs(**options):
    with Rxe(**options) as guest, Capture(guest, "tap1") as capture:
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


run_named(CASES, "served")
