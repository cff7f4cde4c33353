"""Random sequences of socket calls by several threads and processes, made on the kernel's sockets and under the library:
results, errno, readiness and bytes are the same.
random_calls.py NAME...                    (no name: lists them)
random_calls.py replay WIRE SEED [COUNT]   the sequences of these seeds; the steps of one that differs are reduced"""
import os
import re
import subprocess
import sys

from harness import BUILD, LONG, Side, check, run_named
from veth_wire import Namespaces, ip

PROGRAM = os.path.join(BUILD, "bin", "random_calls")
STEPS = 16
CASES = {}


class Ends(Namespaces):
    """The server's process and the client's have a namespace each, and all ports are free there. A veth joins them."""
    addresses = {"server": "10.77.0.1", "client": "10.77.0.2"}

    def __init__(self, ours=False):
        self.ours = ours
        super().__init__("netdev:veth", ["server", "client"])
        self.address, self.client_address = self.addresses.values()
        self.title = "veth"

    def place(self, role):
        return role

    def is_ours(self, role):
        return self.ours

    def address_of(self, role):
        return self.addresses[role]

    def build(self):
        self.pair("server", "veth", "client", "veth")
        for role, address in self.addresses.items() if not self.ours else ():
            ip("-n", self.namespaces[role], "addr", "add", f"{address}/24", "dev", "veth")
        for role in self.addresses:  # each datagram to a closed port is answered
            subprocess.run([*self.inside(role), "sysctl", "-qw", "net.ipv4.icmp_ratelimit=0"], check=True)


class Host(Namespaces):
    """Both processes are on one host, which is a namespace of its own."""

    def __init__(self, wire=None, **options):
        self.wire = Side("local" if wire == "local" else "bypass", **options) if wire else None
        super().__init__("", ["host"])
        self.title = wire or "kernel"
        self.address, self.client_address = (self.wire.address, self.wire.client_address) if wire else ("127.0.0.1", "127.0.0.1")

    def place(self, role):
        return "host"

    def is_ours(self, role):
        return self.wire is not None

    def build(self):
        pass

    def environment(self, role, **extra):
        if not self.wire:
            return super().environment(role, **extra)
        return self.wire.environment(role, BYPASS_RUN_DIR=self.path("run"), **extra)

    def __exit__(self, kind, *rest):
        super().__exit__(kind, *rest)
        if self.wire:
            self.wire.__exit__(None, None, None)


# What is not compared (calls.cc says why).
LACKS = {"vhost": ("URGENT", "EDGES"), "veth": ("URGENT", "EDGES"), "shm": ("URGENT", "EDGES"), "local": ("EDGES",)}

# Answers that differ and are known: on sockets whose attempt to connect has failed, or whose connection or listener has ended
# (shutdown(): the acknowledgement of the end may still be on its way),
# in the form (call, the kernel's answer, the library's).
KNOWN = {("bind", "-1 EADDRINUSE", "-1 EINVAL"), ("bind", "0", "-1 EINVAL"), ("listen", "-1 EADDRINUSE", "0"),
         ("connect", "-1 EINVAL", "-1 ECONNABORTED"), ("getsockname", "0 any:ephemeral", "0 any:0"), ("shutdown", "-1 ENOTCONN", "0")}


def run(side, role, first, count, expected=b"", steps="", wire=""):
    """Both processes of one run. Returns what the server's one said, and its exit code."""
    (down_read, down_write), (up_read, up_write) = os.pipe(), os.pipe()
    common = [side.address, side.client_address, str(STEPS)]
    ends = []
    without = {f"RANDOM_CALLS_WITHOUT_{word}": "1" for word in LACKS.get(wire, ())}
    try:
        for name, words, pair in (("client", [], (down_read, up_write)), ("server", [str(first), str(count)] + [steps] * bool(steps), (up_read, down_write))):
            command = [*side.inside(name), PROGRAM, role if name == "server" else "client", *map(str, pair), *common, *words]
            ends.append(subprocess.Popen(command, env=side.environment(name, **without), pass_fds=pair, cwd=side.dir, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            for fd in pair:
                os.close(fd)
        said = ends[1].communicate(expected, timeout=600)[0]
        check(ends[1].returncode in (0, 1), f"{role}: exit {ends[1].returncode}: {said[-2000:].decode()}")
        return said.decode(), ends[1].returncode
    finally:
        for child in ends:
            child.kill()
            child.communicate()


WIRES = {  # the kernel's way, and ours
    "local": (Host, lambda: Host("local")),
    "vhost": (Ends, lambda: Host("bypass")),
    "shm": (Ends, lambda: Host("bypass", shm=True)),
    "veth": (Ends, lambda: Ends(ours=True)),
}


def compared(wire, first, count, steps=""):
    """What differs, as text; empty: nothing."""
    kernel, ours = WIRES[wire]
    with kernel() as side:
        expected = run(side, "write", first, count, steps=steps, wire=wire)[0].encode()
    with ours() as side:
        said, code = run(side, "compare", first, count, expected, steps, wire)
        return said if code else ""


def is_known(wire, call, kernels, ours):
    """On a lane, who closes with unread bytes when both ends have shut both directions tells its peer of an error."""
    return (call, kernels, ours) in KNOWN or wire == "shm" and kernels.replace(":201d", ":2015") == ours.replace(":201d", ":2015")


def seeds_of(wire, said):
    """Of the sequences that differ, but for known differences."""
    found = re.findall(r"^DIFFERS (\d+) (?:\d+ \w+ (\w+).*|at the end.*)\n  kernel:  (.*)\n  library: (.*)", said, re.M)
    return sorted({int(seed) for seed, *what in found if not is_known(wire, *what)})


CHUNK = 1500  # sequences in a row; a namespace has ports for some 7,900


def case(wire):
    def one():
        first = int(os.environ.get("BYPASS_TEST_SEED", "1"))
        for begin in range(first, first + CHUNK * (100 if LONG else 1), CHUNK):
            said = compared(wire, begin, CHUNK)
            # A sequence may differ by its time. One that differs each time is wrong.
            wrong = [seed for seed in seeds_of(wire, said) if all(seeds_of(wire, compared(wire, seed, 1)) for _ in range(3))]
            if said:
                print(said)
            check(not wrong, f"random_calls.py replay {wire} SEED shows what differs, of these seeds: {wrong}")
    CASES[f"as_on_the_kernel_{wire}"] = one


for name in WIRES:
    case(name)


def replay(wire, first, count=1):
    said = compared(wire, int(first), int(count))
    print(said)
    for seed in seeds_of(wire, said)[:1]:
        reduce_steps(wire, seed)


def reduce_steps(wire, seed):
    """Leaves out step after step as long as the sequence differs."""
    steps = list(range(80))
    for step in reversed(range(80)):
        fewer = [kept for kept in steps if kept != step]
        if compared(wire, seed, 1, ",".join(map(str, fewer))):
            steps = fewer
    print("reduced:", *steps)
    print(compared(wire, seed, 1, ",".join(map(str, steps))))


if __name__ == "__main__":
    if sys.argv[1:2] == ["replay"]:
        replay(*sys.argv[2:])
    else:
        run_named(CASES, "as the kernel")
