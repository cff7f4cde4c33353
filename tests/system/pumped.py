"""Connections on a port that two processes go on with, of which one gives rights up. A pump carries such a connection, and
the two share no memory.   pumped.py NAME...   (no name: lists them)"""
import contextlib
import hashlib
import os
import signal
import subprocess

from harness import Skip, check, compare, free_port, kill_one, make_file, run_named
from rights import arena_descriptors, arenas, user_of
from sides import WIRES
from veth_wire import ip

CASES = {}
PUMP = "bypass-pump"


def case(*wires):
    def register(function):
        for wire in wires:
            CASES[f"{function.__name__}_{wire}"] = lambda wire=wire: on_wire(function, wire)
        return function
    return register


def on_wire(function, wire):
    if os.geteuid() != 0:
        raise Skip("only root gives root up")
    with WIRES[wire][0]() as side:
        try:
            function(side)
        finally:
            for pid in inhabitants(side):
                kill_one(pid)


def inhabitants(side):
    """All processes of the server's namespace, if it has one. sshd's processes do not work in the side's folder."""
    if not hasattr(side, "namespaces"):
        return side.inhabitants()
    return [int(pid) for pid in ip("netns", "pids", side.namespaces["ours"]).split()]


def name_of(pid):
    with contextlib.suppress(OSError), open(f"/proc/{pid}/comm") as comm:  # it may have ended
        return comm.read().strip()


def named(side, name):
    return [pid for pid in inhabitants(side) if name_of(pid) == name]


USER = 23456
# Runs in a mount namespace of its own, with a user to log in as, and the folder into which sshd's child is locked.
SSHD = """
set -e
mount --bind "$FOLDER/passwd" /etc/passwd
mount -t tmpfs none /run
mkdir /run/sshd
exec /usr/sbin/sshd "$@"
"""


def users():
    """The system's users, and two of the test's own."""
    with open("/etc/passwd") as file:
        lines = [line for line in file if not line.startswith("sshd:")]
    return "".join(lines) + f"sshd:x:{USER - 1}:{USER - 1}::/run/sshd:/bin/false\nwho:x:{USER}:{USER}::/:/bin/sh\n"


class Sshd:
    """OpenSSH, and a client that may log in with a key."""

    def __init__(self, side, *options):
        if not os.path.exists("/usr/sbin/sshd"):
            raise Skip("no sshd")
        self.side, self.port = side, free_port()
        with open(side.path("passwd"), "w") as file:
            file.write(users())
        os.chmod(side.dir, 0o755)
        for name in ("host", "key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", side.path(name)], check=True)
        os.rename(side.path("key.pub"), side.path("authorized"))
        with open(side.path("sshd_config"), "w") as file:
            file.write(f"Port {self.port}\nListenAddress {side.address}\nHostKey {side.path('host')}\nPidFile none\n"
                       f"AuthorizedKeysFile {side.path('authorized')}\nUsePAM no\nStrictModes no\nPermitRootLogin yes\n"
                       "PasswordAuthentication no\nLogLevel DEBUG1\nSubsystem sftp internal-sftp\n")
        self.child = side.start("server", "unshare", "--mount", "sh", "-c", SSHD, "sh", "-D", "-e", "-f", side.path("sshd_config"),
                                *options, until="Server listening", FOLDER=side.dir)

    def client(self):
        side = self.side
        return ["ssh", "-F", "none", "-i", side.path("key"), "-p", str(self.port), "-o", "BatchMode=yes",
                "-o", "StrictHostKeyChecking=no", "-o", f"UserKnownHostsFile={side.path('known')}", f"who@{side.address}"]

    def run(self, *command, **options):
        return self.side.run("client", *self.client(), *command, **options)


def those_of(side, user):
    found = []
    for pid in inhabitants(side):
        with contextlib.suppress(OSError):  # it may have ended
            found += [pid] if user_of(pid) == user else []
    return found


def arenas_of(pid):
    with contextlib.suppress(OSError):
        return arenas(pid)
    return set()


def check_apart(side, user):
    """That user has processes. None of them has memory that a process of root maps, or a descriptor of such memory."""
    pids = side.until(lambda: those_of(side, user), f"a process of user {user}")
    roots = set().union(*map(arenas_of, those_of(side, 0)))
    check(roots, "root's processes have no arena")
    for pid in pids:
        check(not arenas_of(pid) & roots, f"process {pid} of user {user} has root's memory")
        check(not arena_descriptors(pid), f"process {pid} of user {user} has {arena_descriptors(pid)}")


def carries(side, sshd):
    """Copies 20 MB each way, and checks what the server knows of the connection."""
    bulk, digest = side.path("bulk"), make_file(side.path("bulk"), 20 << 20)
    with open(bulk, "rb") as file:
        told = sshd.run("sha256sum", stdin=file.read()).decode()
    check(told.split()[0] == digest, f"the server has got {told}")
    got = sshd.run("cat", bulk)
    check(hashlib.sha256(got).hexdigest() == digest, f"the client has got {len(got)} bytes")
    names = sshd.run("echo $SSH_CONNECTION").decode().split()
    check(names[0] == side.client_address and names[2:] == [side.address, str(sshd.port)], f"the server knows of {names}")
    check(side.soon(lambda: side.count("tcp_passive_opens") > 0, 5), f"the kernel has served: {side.why()}")
    side.until(lambda: not named(side, PUMP), "the pumps end with the connections")


def before_the_login(side, sshd):
    """The child of sshd that reads what strangers send."""
    stranger = side.start("client", "/usr/bin/python3", "-uc", STRANGER, side.address, sshd.port, until="heard")
    check_apart(side, USER - 1)
    check("shares_with_less" not in side.why(), side.why())
    side.kill(stranger)
    side.until(lambda: named(side, PUMP) == [], "the pump ends with the connection")


STRANGER = r"""
import socket, sys, time
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
connection.sendall(b"SSH-2.0-stranger\r\n")
print("heard", connection.recv(100), flush=True)
time.sleep(60)
"""


def pump_killed(side, sshd):
    """The pump is killed. The session ends, as when its connection is reset. Nothing else ends."""
    session = side.start("client", *sshd.client(), "echo ready; exec sleep 60", until="ready")
    check_apart(side, USER)
    pumps = named(side, PUMP)
    check(side.soon(lambda: "  pumped  " in side.why(), 5), side.why())
    check(len(pumps) == 1 and user_of(pumps[0]) == 0, f"there are {len(pumps)} pumps")
    check(os.getpgid(pumps[0]) == pumps[0], "a signal to the server's group reaches the pump")
    os.kill(pumps[0], signal.SIGKILL)
    check(side.end(session) == 255, side.output(session))
    side.until(lambda: named(side, "sshd") + named(side, PUMP) == [sshd.child.pid], "sshd's processes for it end")
    check(sshd.run("echo", "hello") == b"hello\n", "there is no other session")


def master_ended(side, sshd):
    """The session goes on: the pump, or another process of root, opens the port. All processes end with the session."""
    go = side.path("go")
    session = side.start("client", *sshd.client(), f"echo ready; until [ -e {go} ]; do sleep 0.1; done; head -c 3000000 /dev/zero | sha256sum",
                         until="ready")
    side.kill(sshd.child)
    open(go, "w").close()
    check(side.end(session) == 0, side.output(session))
    check(hashlib.sha256(bytes(3000000)).hexdigest() in side.output(session), side.output(session))
    side.until(lambda: set(map(name_of, inhabitants(side))) <= {"sleep"}, "all processes but the killed session's have ended")


def session(side, *options):
    sshd = Sshd(side, *options)
    check(sshd.run("echo", "hello") == b"hello\n", "no answer")
    before_the_login(side, sshd)
    carries(side, sshd)
    pump_killed(side, sshd)
    master_ended(side, sshd)


@case("veth")
def sshd_session(side): session(side)


@case("veth")
def sshd_session_without_its_own_exec(side): session(side, "-r")


# --- What each side of the drop finds

def digest_of(*seeds):
    """The digest of what peers/pumped_pair.py sends."""
    bulk = b"".join(hashlib.shake_128(str(seed).encode()).digest(3 << 20) for seed in seeds)
    return f"take={len(bulk)}:{hashlib.sha256(bulk).hexdigest()}"


STEPS = {
    "alternate": ["send=abcd", "await=digits", "send=0123456789ABCDEFGHIJ", digest_of(1, 2), "send=edge", "tell=edge", "await=half",
                  "shut", "tell=shut", "end"],
    "reset": ["send=abcd", "await=reset", "reset"],
    "unread": ["send=abcd", "take=4:" + hashlib.sha256(b"tail").hexdigest(), "tell=tail", "end"],
    "aside": ["send=abcd", "end"],
    "recv": ["await=dropped", "send=xyz", "end"],
    "poll": ["await=dropped", "send=xyz", "end"],
    "select": ["await=dropped", "send=xyz", "end"],
    "send": ["await=dropped", digest_of(1, 2), "send=xyz", "end"],
    "sendfile": ["await=dropped", digest_of(1, 2), "send=xyz", "end"],
    "waitall": ["send=abcd", "await=dropped", "send=efghxyz", "end"],
    "spawn": ["await=ran", "send=abcd", "acknowledged", "tell=acknowledged", "end"],
    "vfork": ["send=abcd", "take=6:" + hashlib.sha256(b"hello\n").hexdigest(), "end"],
    "passed": ["send=abcd", "await=looked", "end"],
    "full": ["send=abcd", "end"],
}
PUMPS = {"spawn": 0}  # else one


def both_go_on(how):
    def scenario(side):
        port = free_port()
        os.chmod(side.dir, 0o755)
        log = {"BYPASS_LOG": "info", "BYPASS_LOG_FILE": side.path("told")} if side.name != "kernel" else {}
        server = side.start_python("server", "pumped_pair.py", port, side.dir, how, side.address, until="listening", **log)
        client = side.start_python("client", "scripted_client.py", side.address, port, side.dir, *STEPS[how])
        if how == "passed":
            side.until(lambda: os.path.exists(side.path("passed")), "the connection is passed on")
            check("escaped" not in side.why(), side.why())
            open(side.path("looked"), "w").close()
        said = [side.end(client), side.end(server), side.output(client), side.output(server)]
        if side.name != "kernel":
            with open(side.path("told"), errors="replace") as told:
                made = told.read().count("is pumped by process")
            check(made == PUMPS.get(how, 1), f"{made} pumps were made")
            side.until(lambda: not named(side, PUMP), "the pump ends")
        return said
    return scenario


def compared(how, *wires):
    for wire in wires:
        CASES[f"{how}_{wire}"] = lambda wire=wire: compare(both_go_on(how), WIRES[wire][0], uses_fast_path=False)


compared("alternate", "vhost", "veth")
compared("reset", "vhost", "veth")
compared("aside", "veth")
for call in ("recv", "waitall", "poll", "select", "send", "sendfile", "spawn", "vfork", "full", "passed"):
    compared(call, "veth")


if __name__ == "__main__":
    run_named(CASES, "shown")
