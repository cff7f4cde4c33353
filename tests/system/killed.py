"""What a peer sees when the last process of a family is killed: the bytes that were written, and then the end or the reset that
the kernel gives. The family's keeper (docs/fork.md) ends the connections. Nothing of it stays."""
import json
import os
import signal
import subprocess

from harness import Side, alive, check, compare, free_port, run_named
from sides import leaves_nobody_to_ask, on

CASES = {}
KEEPER = "bypass-keeper"


def keepers(side):
    """The keepers of this side's programs."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            is_ours = side.dir.encode() in open(f"/proc/{pid}/environ", "rb").read()
            if is_ours and open(f"/proc/{pid}/comm").read().strip() == KEEPER and alive(pid):
                found.append(int(pid))
        except OSError:
            pass  # it has ended, or is another user's
    return found


def nothing_stays(side):
    side.until(lambda: not keepers(side), "no keeper is left")
    wire = side.path("wire")
    if side.name == "bypass" and side.kinds.get("server") and not hasattr(side, "namespaces"):
        side.until(lambda: not os.path.exists(wire), "no socket of the wire is left")


class Ends:
    """A victim and a witness, one of them the server. Both are in `state`."""

    def __init__(self, side, victim, state, processes=1, **extra):
        self.side = side
        self.port = free_port()
        self.roles = {"victim": victim, "witness": {"server": "client", "client": "server"}[victim]}
        self.words = (side.address, self.port, state, processes)
        self.extra = {"BYPASS_KEEPER": "on", **extra}
        first, second = ("victim", "witness") if victim == "server" else ("witness", "victim")
        server = self.start(first, "serve")
        side.wait_for(server, "listening")
        client = self.start(second, "connect")
        self.victim, self.witness = (server, client) if victim == "server" else (client, server)
        side.wait_for(self.witness, "ready")
        side.until(lambda: side.output(self.victim).count("ready") == (1 if state == "pending" else processes),
                   "the victim is ready")

    def start(self, part, way):
        return self.side.start_python(self.roles[part], "killed_ends.py", part, way, *self.words, stdin=subprocess.PIPE, **self.extra)

    def kill(self, how=signal.SIGKILL):
        os.killpg(self.victim.pid, how)
        self.victim.wait(20)

    def found(self):
        """What the witness finds. It ends then."""
        self.witness.stdin.write(b"go\n")
        self.witness.stdin.close()
        check(self.side.end(self.witness, 40) == 0, "the witness has failed")
        return json.loads(self.side.output(self.witness).splitlines()[-1])


def killed(side, victim, state, how=signal.SIGKILL, **options):
    ends = Ends(side, victim, state, **options)
    if side.is_ours(victim):
        check(len(keepers(side)) == (2 if side.is_ours(ends.roles["witness"]) else 1), f"keepers: {keepers(side)}")
    ends.kill(how)
    result = ends.found()
    nothing_stays(side)
    return result


def case(*wires):
    return lambda function: on(CASES, *wires)(leaves_nobody_to_ask(function))


@case("vhost", "virtio", "veth")
def written_bytes_arrive(side):
    return [killed(side, victim, "written") for victim in ("server", "client")]


@case("vhost", "virtio", "veth")
def unread_bytes_reset(side):
    return [killed(side, victim, "unread") for victim in ("server", "client")]


@case("vhost", "veth")
def all_states(side):
    return [killed(side, victim, state, how=how)
            for state, victim, how in (("idle", "server", signal.SIGSEGV), ("shut", "client", signal.SIGKILL), ("pending", "server", signal.SIGKILL))]


@case("vhost", "veth")
def whole_group_killed(side):
    return killed(side, "server", "written", processes=3), killed(side, "client", "unread", processes=2)


if __name__ == "__main__":
    run_named(CASES, "the peers saw what the kernel's see")
