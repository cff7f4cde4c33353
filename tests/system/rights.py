"""What the tests of processes that give rights up share: users, arenas, drivers."""
import contextlib
import os
import re

from harness import Skip, alive
from sides import WIRES


def cases(registry):
    """A decorator of scenarios: one case for each wire."""
    def case(*wires):
        def register(function):
            for wire in wires:
                registry[f"{function.__name__}_{wire}"] = lambda wire=wire: on_wire(function, wire)
            return function
        return register
    return case


def on_wire(function, wire):
    if os.geteuid() != 0:
        raise Skip("only root gives root up")
    with WIRES[wire][0]() as side:
        function(side)


def arenas(pid):
    """The inodes of the arenas that a process has mapped."""
    with open(f"/proc/{pid}/maps") as maps:
        return {found[1] for found in re.finditer(r"rw.s \w+ \S+ (\d+) +/memfd:bypass-arena", maps.read())}


def arena_descriptors(pid):
    """The descriptors of arenas that a process has not mapped. It keeps the one of its own for the next image."""
    folder, mapped = f"/proc/{pid}/fd", arenas(pid)
    those = [fd for fd in os.listdir(folder) if "memfd:bypass-arena" in os.readlink(f"{folder}/{fd}")]
    return [fd for fd in those if str(os.stat(f"{folder}/{fd}").st_ino) not in mapped]


def user_of(pid):
    with open(f"/proc/{pid}/status") as status:
        return int(re.search(r"Uid:\s+(\d+)", status.read())[1])


def processes_named(side, name):
    def name_of(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it may have ended since it was listed
            with open(f"/proc/{pid}/comm") as comm:
                return comm.read().strip()
        return ""
    return [pid for pid in side.inhabitants() if name_of(pid) == name]


def named(side, name):
    """Our processes of that name in the side's family, by user."""
    found = {}
    for pid in processes_named(side, name):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found |= {user_of(pid): pid} if alive(pid) else {}
    return found


def drivers(side):
    """The driver's two processes: the keeper, which has root's rights, and the process that serves."""
    return named(side, "bypass-driver")


def heir(side, but=None):
    """The process that takes the place of both when they are killed."""
    return side.until(lambda: [pid for pid in named(side, "bypass-heir").values() if pid != but], "an heir waits")[0]
