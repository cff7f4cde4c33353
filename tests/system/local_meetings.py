"""Connections within a host: which processes share memory, and what happens to those that cannot, may not or should not.
local_meetings.py NAME...   (no name: lists them)"""
import contextlib
import os
import shutil
import signal
import subprocess
import time

from agents import Agent
from harness import LIB, LONG, Failure, Side, Skip, check, free_port, run_named
from local_pairs import cases, connected, listener, meeting_name, moved, needs_root, shared_ever, until_counted, warm

CASES, case, _ = cases()


# --- While it moves

def until_asked(pid):
    """Waits until the main thread is kept in SIOCINQ and has the answer. The wait is bounded, because the thread may not
    ask."""
    seen = 0
    deadline = time.monotonic() + 1
    while seen < 3 and time.monotonic() < deadline:
        time.sleep(0.005)
        with open(f"/proc/{pid}/syscall") as file:
            call = file.read().split()
        seen = seen + 1 if call[0] == "16" and call[2:3] == ["0x541b"] else 0


@case
def messages_come_whole_while_it_moves():
    """A reader asks the kernel how many bytes there are. A message comes during that call, which strace makes longer."""
    if shutil.which("strace") is None:
        raise Skip("no strace")
    slow = ("strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=ioctl", "-e", "inject=ioctl:delay_exit=100000")
    with Side("local") as side:
        server, client = Agent(side, "server", under=slow), Agent(side, "client")
        port = listener(server)
        python = server("os.getpid()")
        for _ in range(3):
            client(f"s = bounded(socket.create_connection(('127.0.0.1', {port})))")
            server("s = bounded(l.accept()[0])")
            server.begin("s.recv(99)")
            until_asked(python)
            client("s.sendall(b'abcde')")
            check((got := server.end()) == "b:abcde", f"a message came as {got}")
            for agent in (client, server):
                agent("s.close()")


# --- With whom, and where

ECHO = r"""
def echo():
    while True:
        try: c = l.accept()[0]
        except OSError: return
        def serve(c=c):
            while data := c.recv(65536): c.sendall(data)
            c.close()
        threading.Thread(target=serve, daemon=True).start()
threading.Thread(target=echo, daemon=True).start()
"""
ASK = r"""
def ask(port, rounds=50):
    with socket.create_connection(('127.0.0.1', port)) as c:
        bounded(c)
        for i in range(rounds):
            c.sendall(pattern(i * 5000, 5000))
            if take(c, 5000) != pattern(i * 5000, 5000): return 'other bytes'
            time.sleep(0.002)
        last.clear(); last.append(c.dup())
    return 'ok'
last = []
"""


def asked(server, client, port):
    """Returns what an echo server answered, and whether any byte went through shared memory."""
    client(ASK)
    verdict = client(f"ask({port})", timeout=60)
    check(verdict == "ok", verdict)


def never_counted(agent):
    time.sleep(0.5)  # published values come a little later
    check(shared_ever(agent) == 0, "a connection had shared memory that must not")


@case
def kernel_clients_and_ours_at_once():
    """One listener, with eight clients at the same time: some with the library, some without."""
    with Side("local") as side:
        server = Agent(side, "server")
        port = listener(server)
        server(ECHO)
        clients = [Agent(side, "client", **({"LD_PRELOAD": ""} if i % 2 else {})) for i in range(8)]
        for client in clients:
            client(ASK)
            client.begin(f"ask({port}, 300)")
        check([c.end(90) for c in clients] == ["ok"] * 8, "an echo was wrong")
        until_counted(server, 4)
        for client in clients[::2]:
            until_counted(client, 1)


def one_side_is_not_ours(**ours):
    """`ours`: the environment of the server or the client, by role."""
    with Side("local") as side:
        server, client = (Agent(side, role, **ours.get(role, {})) for role in ("server", "client"))
        port = listener(server)
        server(ECHO)
        asked(server, client, port)
        for role, agent in (("server", server), ("client", client)):
            if not ours.get(role):
                never_counted(agent)


@case
def plain_client(): one_side_is_not_ours(client={"LD_PRELOAD": ""})


@case
def plain_server(): one_side_is_not_ours(server={"LD_PRELOAD": ""})


@case
def client_with_local_off(): one_side_is_not_ours(client={"BYPASS_LOCAL": "off"})


@case
def server_with_local_off(): one_side_is_not_ours(server={"BYPASS_LOCAL": "off"})


@case
def beside_a_port_that_is_not_needed():
    """A program listens at its port's address and closes that listener at once. Its connections within the host still work.
    When it listens there again, clients reach it, although it makes no call."""
    with Side("bypass", shm=True) as side:
        agents = server, client = [Agent(side, role, BYPASS_LOCAL_AFTER="0") for role in ("server", "client")]
        port, listen = free_port(), "t = socket.socket(); t.bind(('0.0.0.0', {})); t.listen()"
        for agent in agents:
            agent(f"{listen.format(port)}; t.close()")
        local = listener(server)
        client(f"s = bounded(socket.create_connection(('127.0.0.1', {local})))")
        server("s = bounded(l.accept()[0]); l.close()")

        def both_have_moved():
            for one, other in ((client, server), (server, client)):
                one("s.sendall(b'warm')")
                check(other("take(s, 4)") == "b:warm", "other bytes")
            return moved(server) and moved(client)

        side.until(both_have_moved, f"it has moved to shared memory: {side.why()}")
        server(listen.format(port))
        check(client(f"bounded(socket.create_connection(('{side.address}', {port}))).getpeername()") == [side.address, port],
              "it is not reached")


@case
def each_connection_says_where_it_is():
    """`bypass ss` has a row at every moment, and `bypass why` a reason: before the connection looks for shared memory, and
    when it stays with the kernel for good."""
    with Side("local") as side:
        # The server's end never looks.
        server, client = (Agent(side, r, BYPASS_LOCAL_AFTER=n) for r, n in (("server", "1000000"), ("client", "32")))
        port = listener(server)
        client(f"s = bounded(socket.create_connection(('127.0.0.1', {port})))")
        server("s = bounded(l.accept()[0])")

        def row():
            found = [s for s in client.sockets() if s["peer_port"] == port]
            check(len(found) == 1 and found[0]["local_port"] != 0 and found[0]["state"] == "ESTAB", f"rows: {found}")
            return found[0]["path"]

        def reasons():
            return {w["reason"]: f"{w['address']}" for w in side.bypass("why", client.child)["whys"]}

        def until_reason(reason, meanwhile=lambda: time.sleep(0.05)):
            end = time.monotonic() + 20
            while reasons().get(reason) != f"127.0.0.1:{port}":
                check(time.monotonic() < end, f"no {reason}: {side.why()}")
                meanwhile()

        until_reason("local_after")
        check(row() == "kernel", client.sockets())

        def goes_on():
            client("[s.send(b'x') for _ in range(100)]")
            server("take(s, 100)")

        until_reason("no_shared_memory", goes_on)
        check("local_after" not in reasons() and row() == "kernel", f"{reasons()} {client.sockets()}")


@case
def a_rule_gives_it_to_the_kernel():
    for role in ("client", "server"):
        rule = "kernel tcp connect 127.0.0.1:*" if role == "client" else "kernel tcp * 127.0.0.0/8"
        with Side("local") as side:
            agents = {r: Agent(side, r, **({"BYPASS_RULES": rule} if r == role else {})) for r in ("server", "client")}
            port = listener(agents["server"])
            agents["server"](ECHO)
            asked(agents["server"], agents["client"], port)
            never_counted(agents[role])
            never_counted(agents["client" if role == "server" else "server"])


@case
def another_user():
    """Two processes share no memory if one may not trace the other, even if both can write to the run directory."""
    needs_root()
    for other in ("client", "server"):
        with Side("local") as side:
            os.chmod(side.dir, 0o777)
            library = side.path("libbypass.so")
            shutil.copy(LIB, library)
            under = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
            os.mkdir(side.path("theirs"))
            os.chown(side.path("theirs"), 65534, 65534)
            agents = {r: Agent(side, r, under if r == other else (), LD_PRELOAD=library,
                               **({"BYPASS_RUN_DIR": side.path("theirs")} if r == other else {})) for r in ("server", "client")}
            port = listener(agents["server"])
            agents["server"](ECHO)
            asked(agents["server"], agents["client"], port)
            never_counted(agents["client" if other == "server" else "server"])


@case
def network_namespaces():
    """Two processes in a namespace of their own share memory. A third process outside, with the same TCP ports, is not
    taken for the other end."""
    needs_root()
    with Side("local") as side:
        inside = ("unshare", "-n", "sh", "-c", 'ip link set lo up; exec "$@"', "sh")
        server = Agent(side, "server", inside)
        server("0")
        client = Agent(side, "client", ("nsenter", "-t", str(server.pid), "-n"))
        port = connected(server, client)
        server(f"l = socket.socket(); l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)")
        server(f"l.bind(('127.0.0.1', {port})); l.listen()")
        outside, plain = Agent(side, "client"), Agent(side, "server", LD_PRELOAD="")
        plain(f"l = socket.socket(); l.bind(('127.0.0.1', {port})); l.listen()")
        plain(ECHO)
        asked(plain, outside, port)
        never_counted(outside)


@case
def other_families():
    """IPv6's loopback, an IPv6 socket to an IPv4 address, and an address of this host that is not 127.0.0.1."""
    with Side("local") as side:
        for family, bound, target in (("AF_INET6", "::1", "::1"), ("AF_INET6", "::", "::1"), ("AF_INET6", "::", "127.0.0.1"),
                                      ("AF_INET6", "::ffff:127.0.0.1", "::ffff:127.0.0.1"), ("AF_INET", "0.0.0.0", "127.0.0.1"),
                                      ("AF_INET", "127.0.0.7", "127.0.0.7"), ("AF_INET", "0.0.0.0", "127.3.2.1")):
            server, client = Agent(side, "server"), Agent(side, "client")
            port = free_port()
            server(f"l = socket.socket(socket.{family}); l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)")
            server(f"l.bind(('{bound}', {port})); l.listen()")
            to = "AF_INET6" if ":" in target else "AF_INET"
            client(f"s = bounded(socket.socket(socket.{to})); s.connect(('{target}', {port}))")
            server("s = bounded(l.accept()[0])")
            try:
                warm(server, client)
            except Failure as why:
                raise Failure(f"{bound} {target}: {why}") from None


# --- Attackers and want

SQUATTER = r"""
def squat(name, behaviour):
    "Has the name of a connection to come; whoever comes to it meets `behaviour`."
    u = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    folder = os.open(os.path.dirname(name), os.O_RDONLY | os.O_DIRECTORY)
    u.bind(f"/proc/self/fd/{folder}/{os.path.basename(name)}")
    kept.append(u)
    if behaviour == 'deaf': return
    u.listen(16)
    def serve():
        while True:
            c = u.accept()[0]; kept.append(c)
            if behaviour == 'garbage':
                try: c.send(os.urandom(64))
                except OSError: pass
            if behaviour == 'closes': c.close()
    if behaviour != 'silent': threading.Thread(target=serve, daemon=True).start()
kept = []
"""


@case
def squatted_names():
    """A third process of the same user has taken the name before both ends. All bytes go over the kernel."""
    with Side("local") as side:
        for behaviour in ("deaf", "silent", "garbage", "closes") if LONG else ("silent", "garbage"):
            attacker = Agent(side, "server", LD_PRELOAD="")
            attacker(SQUATTER)
            server, client = Agent(side, "server"), Agent(side, "client")
            port, own = listener(server), free_port()
            attacker(f"squat({meeting_name(client, port, own)!r}, '{behaviour}')")
            client("s = bounded(socket.socket()); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)")
            client(f"s.bind(('127.0.0.1', {own})); s.connect(('127.0.0.1', {port}))")
            server("s = bounded(l.accept()[0]); l.close()")
            for i in range(60):
                for one, other in ((client, server), (server, client)):
                    one(f"s.sendall(pattern({i} * 1000, 1000))")
                    check(other("take(s, 1000)") == one(f"pattern({i} * 1000, 1000)"), "other bytes")
                time.sleep(0.03)
            for agent in (server, client):
                never_counted(agent)
            check("shared memory" in side.why() or "shared_memory" in side.why(), f"{behaviour}: no reason is given: {side.why()}")


@case
def squatters_of_a_real_name_are_seen():
    """The name that squatted_names() makes is really the one that the library uses."""
    with Side("local") as side:
        server, client, marked = Agent(side, "server", LD_PRELOAD=""), Agent(side, "client"), Agent(side, "server")
        port, own = listener(marked), free_port()  # first a process of ours listens there, then another process
        marked("l.close()")
        server("l = socket.socket(); l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)")
        server(f"l.bind(('127.0.0.1', {port})); l.listen()")
        client("s = bounded(socket.socket()); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)")
        client(f"s.bind(('127.0.0.1', {own})); s.connect(('127.0.0.1', {port}))")
        client("s.sendall(b'x')")
        name = meeting_name(client, port, own)
        side.until(lambda: os.path.exists(name), name, 3)


def starved(prepare, role, under=(), says=True, never=True):
    """One end has no room for what shared memory needs. The bytes go over the kernel, and the reason is told."""
    with Side("local") as side:
        agents = {r: Agent(side, r, under if r == role else ()) for r in ("server", "client")}
        server, client = agents["server"], agents["client"]
        port = listener(server)
        client(f"s = bounded(socket.create_connection(('127.0.0.1', {port})))")
        server("s = bounded(l.accept()[0]); l.close()")
        if prepare:
            agents[role](prepare)

        def talk(i):
            for one, other in ((client, server), (server, client)):
                one(f"s.sendall(pattern({i} * 1000, 1000))")
                check(other("take(s, 1000)") == one(f"pattern({i} * 1000, 1000)"), "other bytes")
        for i in range(40):
            talk(i)
            time.sleep(0.02)
        if says:  # the ends try when they are called: on a busy machine that takes more calls
            side.until(lambda: "memory" in side.why() or talk(0), f"a reason is given: {side.why()}")
        if never:
            never_counted(agents["client" if role == "server" else "server"])


@case
def no_descriptors():
    for role in ("client", "server"):
        starved("resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir('/proc/self/fd')) - 1, 4096))", role)


@case
def no_address_space():
    """The kernel's limit of address space is reached. A limit that the program sets by setrlimit() does not count what the
    library takes."""
    prepare = """
import ctypes
least = int(open('/proc/self/statm').read().split()[0]) * 4096 + (1 << 19)
prlimit64 = 302
ctypes.CDLL(None).syscall(prlimit64, 0, resource.RLIMIT_AS, (ctypes.c_ulong * 2)(least, least), None)
"""
    for role in ("client", "server"):
        starved(prepare, role)


@case
def small_files_only():
    """RLIMIT_FSIZE is small. No signal comes, and the connection stays the kernel's."""
    for role in ("client", "server"):
        starved(None, role, ("prlimit", "--fsize=65536"), says=False)
        starved("resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))", role, says=False, never=False)  # the other end may make it


@case
def full_run_directory():
    """The run directory has no room. No signal comes, there are no statistics, and the connection stays the kernel's."""
    needs_root()
    with Side("local") as side:
        os.mkdir(side.path("run"), 0o700)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k,mode=700", "tmpfs", side.path("run")], check=True)
        try:
            with open(side.path("run/filler"), "wb") as file, contextlib.suppress(OSError):
                file.write(b"x" * (1 << 20))
            server, client = Agent(side, "server"), Agent(side, "client")
            port = listener(server)
            server(ECHO)
            asked(server, client, port)
        finally:
            for child in side.children:
                side.kill(child, signal.SIGKILL)
            subprocess.run(["umount", "-l", side.path("run")], check=True)


@case
def no_run_directory():
    with Side("local") as side:
        server, client = (Agent(side, r, BYPASS_RUN_DIR="/proc/none") for r in ("server", "client"))
        port = listener(server)
        server(ECHO)
        asked(server, client, port)


@case
def unasked():
    """Without any setting, connections move after some calls and not earlier."""
    with Side("local") as side:
        server, client = (Agent(side, role, BYPASS_LOCAL="", BYPASS_LOCAL_AFTER="") for role in ("server", "client"))
        port = listener(server)
        server(ECHO)
        client(ASK)
        check(client(f"ask({port}, 10)") == "ok", "other bytes")
        never_counted(server)
        check(client(f"ask({port}, 100)") == "ok", "other bytes")
        until_counted(server, 1)


@case
def silent_where_nobody_asked():
    """A process cannot have shared memory. Only a process whose settings ask for it is told."""
    script = "import socket; a = socket.create_server(('127.0.0.1', 0)); socket.create_connection(a.getsockname()); print('ran')"
    for limit in ("--as=400000000", "--fsize=65536"):
        for asked in (False, True):
            with Side("local") as side:
                env = side.environment("server")
                for name in ("BYPASS_LOCAL", "BYPASS_LOCAL_AFTER", "BYPASS_PROFILE")[0 if not asked else 1:]:
                    del env[name]
                done = subprocess.run(["prlimit", limit, "/usr/bin/python3", "-c", script], env=env, capture_output=True, text=True)
                check(done.returncode == 0 and done.stdout == "ran\n", f"{limit}: {done}")
                check(("the program runs on the kernel's sockets" in done.stderr) == asked, f"{limit}, asked for: {asked}: {done.stderr}")
                check(asked or done.stderr == "", f"{limit}: {done.stderr}")


if __name__ == "__main__":
    run_named(CASES, "passed")
