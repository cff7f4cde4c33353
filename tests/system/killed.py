"""What a peer sees when the last process of a family is killed: the bytes that were written, and then the end or the reset that
the kernel gives. The family's keeper (docs/fork.md) ends the connections. Nothing of it stays."""
import contextlib
import json
import os
import random
import signal
import subprocess
import time

from harness import LONG, alive, check, compare, free_port, run_named
from sides import leaves_nobody_to_ask, on

CASES = {}
KEEPER = "bypass-keeper"
ASK = """if True:
    import socket, sys
    s = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=20)
    print(s.makefile().read())"""


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
        with contextlib.suppress(BrokenPipeError):  # one that reads at once may have ended
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


@case("vhost", "virtio", "veth", "verbs", "shared")
def written_bytes_arrive(side):
    return [killed(side, victim, "written") for victim in ("server", "client")]


@case("vhost", "virtio", "veth", "shared")
def unread_bytes_reset(side):
    return [killed(side, victim, "unread") for victim in ("server", "client")]


@case("vhost", "veth")
def all_states(side):
    return [killed(side, victim, state, how=how)
            for state, victim, how in (("idle", "server", signal.SIGSEGV), ("shut", "client", signal.SIGKILL), ("pending", "server", signal.SIGKILL))]


@case("vhost", "veth")
def whole_group_killed(side):
    return killed(side, "server", "written", processes=3), killed(side, "client", "unread", processes=2)


@case("vhost", "veth")
def several_threads(side):
    """Other threads are inside malloc() when the keeper is made."""
    return [killed(side, victim, "written", VICTIM_THREADS="3") for victim in ("server", "client")]


@case("vhost", "virtio", "veth")
def killed_at_any_moment(side):
    """The witness reads what was written before, and then an end. It never waits in vain."""
    seed = int(os.environ.get("BYPASS_TEST_SEED", random.randrange(1 << 30)))
    print(f"BYPASS_TEST_SEED={seed}")
    draw = random.Random(seed)
    for _ in range(30 if LONG else 3):
        ends = Ends(side, draw.choice(("server", "client")), "stream")
        time.sleep(draw.random() * 0.1)  # no synchronisation: any moment will do
        ends.kill()
        (found,) = ends.found()
        check(found[2] in ("end", "ConnectionResetError"), f"the witness has found {found}")
        nothing_stays(side)


class Server:
    def __init__(self, side, **extra):
        self.side, self.port, self.extra = side, free_port(), {"BYPASS_KEEPER": "auto", **extra}
        self.start()

    def start(self):
        self.child = self.side.start_python("server", "beside_keeper.py", self.side.address, self.port, stdin=subprocess.PIPE,
                                            until="listening", **self.extra)

    def say(self, word):
        self.child.stdin.write(f"{word}\n".encode())
        self.child.stdin.flush()

    def ask(self):
        return json.loads(self.side.run("client", "/usr/bin/python3", "-c", ASK, self.side.address, self.port))

    def end(self):
        self.say("end")
        return self.side.end(self.child)


@case("vhost", "veth")
def program_sees_nothing_of_it(side):
    server = Server(side)
    result = server.ask()
    ours = keepers(side)
    check(len(ours) == (1 if side.is_ours("server") else 0), f"keepers: {ours}")
    for pid in ours:
        check(os.getsid(pid) == pid, "the keeper has no session of its own")
        check(open(f"/proc/{pid}/cmdline").read().strip("\0") == KEEPER, "ps does not say what the keeper is")
        names = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
        check(names <= {"/dev/null", "anon_inode:[pidfd]"}, f"the keeper has {names}")
    status = server.end()
    nothing_stays(side)
    return result, status


@case("vhost", "virtio", "veth")
def server_is_started_again_at_once(side):
    server = Server(side)
    result = [server.ask()]
    for _ in range(2):
        os.killpg(server.child.pid, signal.SIGKILL)
        server.child.wait(20)
        server.start()
        result.append(server.ask())
    server.end()
    nothing_stays(side)
    return result


@case("veth")
def ends_before_rights_are_given_up(side):
    server = Server(side)
    result = [server.ask()]
    server.say("drop")
    side.wait_for(server.child, "dropped")
    check(not keepers(side), "a keeper has kept the rights that the program gave up")
    result.append(server.ask())
    server.end()
    return result


@case("veth")
def keeper_is_killed(side):
    """Only its service is lost."""
    server = Server(side)
    result = [server.ask()]
    for pid in keepers(side):
        os.kill(pid, signal.SIGKILL)
    result += [server.ask(), server.end()]
    nothing_stays(side)
    return result


if __name__ == "__main__":
    run_named(CASES, "the peers saw what the kernel's see")
