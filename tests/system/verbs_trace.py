"""`bypass verbs-trace` with unmodified verbs programs on the software RDMA devices: what it shows, and what it counts.
verbs_trace.py CASE...   (no name: lists them)"""
import collections
import json
import os
import subprocess

from harness import BUILD, HERE, check, free_port, run_named
from softverbs import LIBRARY, Wire, pair

CASES = {}
COMMAND = os.path.join(BUILD, "bypass")
STUB = os.path.join(BUILD, "bin", "libbypass-counting-stub.so")


def case(function):
    CASES[function.__name__] = function
    return function


class Traced(Wire):
    """Each program runs under the trace, which writes to a file for each role."""

    def __init__(self, form):
        self.form = form
        super().__init__()

    def environment(self, role, **extra):
        return super().environment(role, **dict(LD_PRELOAD=f"{STUB}:{LIBRARY}", COUNTING_STUB=self.path(f"{role}.counts")) | extra)

    def traced(self, role, command):
        form = [] if self.form == "text" else [f"--{self.form}"]
        return [COMMAND, "verbs-trace", *form, "-o", self.path(f"{role}.trace"), "--", *command]

    def start(self, role, *command, **options):
        return super().start(role, *self.traced(role, command), **options)

    def run(self, role, *command, **options):
        return super().run(role, *self.traced(role, command), **options)

    def lines(self, role):
        return open(self.path(f"{role}.trace")).read().splitlines()

    def calls(self, role):
        """The trace as JSON objects."""
        return [json.loads(line) for line in self.lines(role)]

    def counted(self, role):
        return {name: int(calls) for name, calls in map(str.split, open(self.path(f"{role}.counts")))}


def times(calls):
    counts = collections.Counter()
    for call in calls:
        counts[call["verb"]] += call["times"]
    return counts


@case
def counts_equal_a_stubs():
    """A stub of the tests stands behind the trace, and counts by itself. Both say the same of each verb that the stub knows,
    with polling and with events."""
    for options in ((), ("-e",)):
        with Traced("json") as wire:
            pair(wire, "ibv_rc_pingpong", "-d", "soft0", "-g", 1, "-n", 200, *options)
            for role in ("server", "client"):
                counted, told = wire.counted(role), times(wire.calls(role))
                check(counted["ibv_post_send"] == 200 and counted["ibv_poll_cq"] > 0, f"{role}: {counted}")
                check({verb: told[verb] for verb in counted} == counted, f"{role}: the trace has {told}, the stub {counted}")


@case
def pingpong_is_told_in_order():
    """The text names objects, arguments, the queue pair's states and what completes, in the order of the calls."""
    with Traced("text") as wire:
        pair(wire, "ibv_rc_pingpong", "-d", "soft0", "-g", 1, "-n", 3, "-s", 64, "-r", 10)
        text = "\n".join(wire.lines("client"))
        at = -1
        for word in ("ibv_get_device_list() = devices 1  found soft0", "ibv_open_device(device soft0) = context 1", "ibv_alloc_pd(context 1) = pd 1",
                     "ibv_reg_mr(pd 1, length 64, access LOCAL_WRITE) = mr 1  lkey 0x", "ibv_create_cq(context 1, ", "type RC, send_cq cq 1, recv_cq cq 1",
                     "state RESET->INIT", "for 9 more", "gid ::ffff:10.9.0.2", "state INIT->RTR, dgid ::ffff:10.9.0.1", "state RTR->RTS",
                     "wr SEND wr_id 0x2 64 B lkey 0x", "SUCCESS", "ibv_destroy_qp(qp 0x", "ibv_close_device(context 1) = 0", "ibv_free_device_list(devices 1)"):
            check((found := text.find(word, at + 1)) >= 0, f"{word!r} does not follow in\n{text}")
            at = found


@case
def summary_counts_what_the_lines_tell():
    """The summary and the lines have the same number of perftest's requests."""
    command = ("ib_write_bw", "-d", "soft0", "-x", 1, "-F", "-u", 18, "-n", 50, "-s", 1024)
    with Traced("json") as wire:
        pair(wire, *command)
        calls = wire.calls("client")
        told = times(calls)
        posted = told["ibv_wr_rdma_write"] + told["ibv_post_send"]
        check(posted == 50, f"{told}")
        check(any("RTR->RTS" in call["arguments"].get("state", "") for call in calls), f"{told}")
    with Traced("summary") as wire:
        pair(wire, *command)
        rows = {line.split()[-1]: int(line.split()[0]) for line in wire.lines("client")[1:]}
        check(rows.get("ibv_wr_rdma_write", 0) + rows.get("ibv_post_send", 0) == posted, f"{rows} {told}")


@case
def extended_verbs_are_told():
    """Requests that are built call by call, polls of extended queues, memory windows, XRC."""
    command = ("/usr/bin/python3", os.path.join(HERE, "peers", "pyverbs_ends.py"), free_port())
    with Traced("json") as wire:
        server = wire.start("server", *command, until="waits")
        wire.run("client", *command, wire.meeting_point, timeout=60)
        check(wire.end(server) == 0, wire.output(server))
        for role in ("server", "client"):
            told = times(wire.calls(role))
            for verb in ("ibv_create_cq_ex", "ibv_create_qp_ex", "ibv_open_xrcd", "ibv_create_srq_ex", "ibv_alloc_mw"):
                check(told[verb] > 0, f"{role}: no {verb} in {told}")
            check(told["ibv_wr_start"] == told["ibv_wr_complete"] + told["ibv_wr_abort"], f"{told}")
        both = times(wire.calls("server")) + times(wire.calls("client"))
        for verb in ("ibv_wr_start", "ibv_wr_set_sge", "ibv_wr_rdma_write", "ibv_start_poll", "ibv_end_poll"):
            check(both[verb] > 0, f"no {verb} in {both}")


@case
def errors_are_spelled_out():
    """A call that fails says the error's name and text, and the program sees the error as without the trace."""
    program = ("import ctypes, os; verbs = ctypes.CDLL(None, use_errno=True); verbs.ibv_open_device.restype = ctypes.c_void_p; "
               "verbs.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p); "
               "found = verbs.ibv_get_device_list(None); context = ctypes.c_void_p(verbs.ibv_open_device(ctypes.c_void_p(found[0]))); "
               "print(verbs.ibv_query_gid(context, 9, 0, ctypes.create_string_buffer(16)), os.strerror(ctypes.get_errno()))")
    with Traced("text") as wire:
        server = wire.start("server", "/usr/bin/python3", "-c", program)
        check(wire.end(server, 30) == 0, wire.output(server))
        text = "\n".join(wire.lines("server"))
        check("ibv_query_gid(context 1, port 9, index 0) = EINVAL (Invalid argument)" in text, text)


@case
def called_wrongly():
    """What the command does not accept is named, and what it accepts. A missing program ends with 127, a static one with 126."""
    with Wire() as wire:
        for words, code, said in (((), 2, "which program?"), (("--yaml", "true"), 2, "there is no option --yaml; accepted are --json, --summary, -o FILE"),
                                  (("--json", "--summary", "true"), 2, "two forms"), (("-o",), 2, "-o wants a file"),
                                  (("no-such-program",), 127, "no-such-program"), (("true",), 0, "")):
            done = subprocess.run([COMMAND, "verbs-trace", *words], capture_output=True, text=True, timeout=20, env=wire.environment("server"))
            check(done.returncode == code and said in done.stderr, f"{words}: {done}")
        away = subprocess.run([COMMAND, "verbs-trace", "-o", wire.path("nowhere/trace"), "ibv_devices"], capture_output=True, text=True, timeout=20,
                              env=wire.environment("server"))
        check("nowhere/trace: No such file or directory; nothing is traced" in away.stderr and away.returncode == 0, f"{away}")


if __name__ == "__main__":
    run_named(CASES, "shown")
